"""Files that people send while a worker answers them: the owner of the bot, who alone can fetch them, goes on."""

import base64
import json

import pytest

from tests.cluster.nodes import Cluster
from tests.e2e.protocols import prompt_of
from tests.e2e.test_voice import EARS, VOICE
from tests.fakes.object_store import object_store
from tests.pictures import picture

pytestmark = pytest.mark.cluster


async def test_a_picture_and_a_recording_sent_to_a_worker_reach_the_model(cluster: Cluster) -> None:
    settings = {**EARS, "HERMES_MODEL__IMAGES": "true"}
    [owner] = await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **settings)
    await cluster.hold(match="keep busy")
    await cluster.say("keep busy", chat_id=43)
    await cluster.asked(1)
    [worker] = await cluster.start("worker", role="worker", **settings)
    await cluster.hold(match="wait")
    await cluster.say("wait for it")
    await cluster.asked(2)
    dot = {"file_b64": base64.b64encode(picture((30, 15))).decode(), "file_name": "dot.png", "mime": "image/png"}
    await cluster.say("", media="photo", caption="what is it?", **dot)
    await cluster.say("", **VOICE, file_text="OggS SAYS:remind me of the heron")
    await cluster.stored(4)
    await cluster.release()
    assert await cluster.replies(1, match="heron")
    await worker.wait_for_log("turn.finished")
    assert "attachment.fetch_failed" not in owner.log_text() + worker.log_text()
    last = prompt_of((await cluster.asked(0))[-1])
    assert [said.images for said in last if said.images] == [1]
    assert "remind me of the heron" in last[-1].text
    assert cluster.query("SELECT count(*) FROM inbox WHERE state <> 'done'") == [(0,)]


async def test_a_picture_that_one_node_has_kept_is_shown_by_another(cluster: Cluster) -> None:
    with object_store() as store:
        place = {"HERMES_ATTACHMENTS__URL": store.url, "HERMES_ATTACHMENTS__OPTIONS": json.dumps(store.options)}
        settings = {**place, "HERMES_MODEL__IMAGES": "true"}
        await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **settings)
        large = base64.b64encode(picture((3_000, 1_500))).decode()
        await cluster.say("", media="photo", caption="what is it?", file_b64=large, file_name="a.png", mime="image/png")
        assert await cluster.replies(1, match="what is it")
        await cluster.hold(match="keep busy")
        await cluster.say("keep busy", chat_id=43)
        await cluster.asked(2)
        [worker] = await cluster.start("worker", role="worker", **settings)
        await cluster.say("and now?")
        assert await cluster.replies(1, match="and now")
    assert "turn.finished" in worker.log_text()
    scaled = base64.b64encode(picture((2_000, 1_000))).decode()
    assert [scaled in str(request["body"]) for request in await cluster.asked(3)] == [True, False, True]
