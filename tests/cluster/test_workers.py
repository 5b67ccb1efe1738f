import base64
import json
from pathlib import Path

import pytest

from hermes_state.models.profiles import learn_context
from hermes_state.values import Millis, Tokens
from tests.cluster.nodes import Cluster
from tests.cluster.proxy import Proxy
from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.test_approvals import delivered
from tests.e2e.test_compression import page_of
from tests.e2e.test_files import FREELY, on_telegram
from tests.e2e.test_voice import ALWAYS, EARS, VOICE
from tests.e2e.world import Gateway
from tests.fakes.object_store import object_store
from tests.pictures import picture
from tests.postgres import Postgres, connect

pytestmark = pytest.mark.cluster

PLAN = {"path": "plan.md", "content": "# Plan"}


async def with_worker(cluster: Cluster, **changes: str) -> Gateway:
    """Start an owner of the bot without room, and a worker without tokens that gets all turns."""
    await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **changes)
    await cluster.keep_busy()
    worker = cluster.add("worker", "worker", **changes)
    del worker.environ["HERMES_TELEGRAM__TOKEN"]
    await worker.start()
    return worker


async def write_and_send(cluster: Cluster) -> None:
    """The model writes a file and gives it to the chat."""
    writes = [{"name": "write_file", "arguments": PLAN}]
    sends = [{"name": "send_file", "arguments": {"path": PLAN["path"], "caption": "as you asked"}}]
    await cluster.script(match="a plan", last_role="user", tool_calls=writes)
    await cluster.script(match_any="Wrote 6 bytes", last_role="tool", times=1, tool_calls=sends)
    await cluster.say("make a plan")


async def test_a_worker_gives_a_file_to_the_chat(cluster: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    worker = await with_worker(cluster, **FREELY, HERMES_ATTACHMENTS__URL=f"file://{shared}")
    await write_and_send(cluster)
    assert await on_telegram(cluster, "document") == [("as you asked", "plan.md", b"# Plan")]
    assert await cluster.replies(1, match="is on its way to the chat")
    assert "delivery.no_adapter" not in worker.log_text(), "its owner sends it"


async def test_a_worker_answers_with_the_agent_of_the_chat_and_another_node_takes_it_over(cluster: Cluster) -> None:
    agents = {"HERMES_AGENTS": '{"ops": {"persona": "You run servers."}}'}
    routes = {"HERMES_ROUTES": '[{"agent": "ops", "chat": "telegram:42"}]'}
    worker = await with_worker(cluster, **agents, **routes)
    await cluster.hold(match="a long question")
    await cluster.say("a long question")
    assert "You run servers." in prompt_of((await cluster.asked(2))[1])[0].text
    await worker.kill()
    await cluster.release()
    assert await cluster.replies(1, match="a long question")
    asked = [one for one in await cluster.asked(3) if "a long question" in conversation_of(one)]
    assert ["You run servers." in prompt_of(one)[0].text for one in asked] == [True, True]
    assert cluster.query(
        "SELECT DISTINCT s.agent FROM sessions s JOIN chats c ON c.id = s.chat_id AND c.chat_ref = '42'"
    ) == [("ops",)]


async def test_the_owner_speaks_the_answer_of_a_worker(cluster: Cluster) -> None:
    await with_worker(cluster, **ALWAYS)
    await cluster.say("hello")
    assert len(await on_telegram(cluster, "voice")) == 1


async def test_where_files_are_not_shared_people_are_told_of_one_that_cannot_be_sent(cluster: Cluster) -> None:
    await with_worker(cluster, **FREELY)
    await write_and_send(cluster)
    [told] = await cluster.replies(1, match="could not be sent")
    assert told == "as you asked\n(The file “plan.md” could not be sent here.)"


async def test_a_worker_asks_and_a_button_lets_it_go_on(cluster: Cluster) -> None:
    worker = await with_worker(cluster)
    await cluster.script(match="a plan", last_role="user", tool_calls=[{"name": "write_file", "arguments": PLAN}])
    await cluster.say("make a plan")
    assert len(await cluster.replies(1, match="May I use")) == 1
    await cluster.tg.post("callback", {"chat_id": 42, "user_id": 42, "button": "Yes, once"})
    assert await cluster.replies(1, match="Wrote 6 bytes")
    await delivered(cluster)
    assert "turn.waiting" in worker.log_text()
    assert len(await cluster.replies(0, wait=0, match="May I use")) == 1


async def test_a_free_chat_is_found_behind_many_of_a_busy_neighbour(cluster: Cluster) -> None:
    cluster.environ["HERMES_ACCESS__ALLOW_ALL"] = "true"
    people = range(101, 113)
    [one] = await cluster.start("one", HERMES_SESSIONS__MAX_TURNS=str(len(people)))
    for person in people:
        await cluster.hold(match="wait")
        await cluster.say("wait for it", chat_id=person)
    await cluster.asked(len(people))
    await cluster.say("quick", chat_id=113)
    await cluster.stored(len(people) + 1)
    [two] = await cluster.start("two", role="worker", HERMES_SESSIONS__MAX_TURNS="1")
    assert await cluster.replies(1, chat_id=113)
    await two.wait_for_log("turn.finished")
    await cluster.release()
    for person in people:
        assert await cluster.replies(1, chat_id=person)
    await one.wait_for_log("turn.finished")


async def test_whoever_has_waited_for_longest_is_answered_first_on_whichever_node(cluster: Cluster) -> None:
    cluster.environ |= {"HERMES_ACCESS__ALLOW_ALL": "true", "HERMES_SESSIONS__MAX_TURNS": "1"}
    await cluster.start("one")
    people = [107, 102, 110, 104, 101, 109, 103, 108, 106, 105]
    for person in sorted(people):  # in another order than they come in later
        await cluster.say("hello", chat_id=person)
        assert await cluster.replies(1, chat_id=person)
    await cluster.start("two", role="worker")
    for number, person in enumerate((41, 43), start=1):
        await cluster.hold(match="wait")
        await cluster.say("wait for it", chat_id=person)
        await cluster.asked(len(people) + number)
    for number, person in enumerate(people, start=1):
        await cluster.say(f"from {person}", chat_id=person)
        await cluster.stored(len(people) + 2 + number)
    await cluster.release()
    for person in people:
        assert await cluster.replies(2, chat_id=person)
    asked = [conversation_of(request) for request in await cluster.asked(0, wait=0)]
    order = sorted(people, key=lambda person: [f"from {person}" in said for said in asked].index(True))
    print(f"came as {people}, were answered as {order}")
    assert all(abs(order.index(person) - people.index(person)) <= 3 for person in people)


async def test_a_picture_and_a_recording_sent_to_a_worker_reach_the_model(cluster: Cluster) -> None:
    settings = {**EARS, "HERMES_MODEL__IMAGES": "true"}
    owner, worker = await cluster.start_with_worker(**settings)
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


async def test_a_window_that_a_provider_stated_to_one_node_holds_on_the_others(cluster: Cluster) -> None:
    [one] = await cluster.start("one", HERMES_ACCESS__ADMINS="telegram:42")
    await cluster.converse("hello")
    [(route, model)] = cluster.query("SELECT route, model FROM model_profiles")
    in_force = Tokens(int(cluster.environ["HERMES_MODEL__CONTEXT_LENGTH"]))
    seen = len(one.log_bytes())
    with connect(cluster.environ["HERMES_STORE__URL"]) as db:  # as another node does
        learn_context(db, route, model, Tokens(16_384), in_force, Millis(1))
    await cluster.converse("and now?")
    assert b"model.window_known" in one.log_bytes()[seen:]
    await cluster.say("/status")
    assert await cluster.replies(1, match=r"16,384 tokens \(reported by the provider when")


async def begin_answer(cluster: Cluster, proxy: Proxy) -> Gateway:
    """A node that answers somebody when its database begins to hang: the placeholder shows, and is not stored."""
    await cluster.tg.post("faults", {"kind": "404", "match": "sendMessageDraft", "times": -1})
    [node] = await cluster.start("one", HERMES_STORE__URL=proxy.address_of(cluster.address))
    await cluster.hold(match="hang please", text="one two three " * 9, chunk_chars=10, hang_after=6)
    await cluster.say("hang please")
    assert await cluster.asked(1)
    proxy.hang()
    await cluster.release()
    assert await cluster.replies(1, match="one")
    return node


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_node_with_a_silent_database_gives_up_its_seat_and_can_be_stopped(
    cluster: Cluster, postgres: Postgres, is_stopped: bool
) -> None:
    async with Proxy(postgres.port) as proxy:
        node = await begin_answer(cluster, proxy)
        if is_stopped:
            assert await node.stop() == 0
            return
        await node.wait_for_log("seat.lost", seconds=60)
        proxy.mend()
        await node.wait_for_log("turn.resumed", seconds=60)


STORY = "once upon a time " * 10


async def start_with_page(cluster: Cluster, **changes: str) -> Gateway:
    """Start a node that serves the page and has no room for another turn, and a worker. Return the worker."""
    page = {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(cluster.free_port())}
    [cluster.gateway] = await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **page, **changes)
    await cluster.keep_busy()
    [worker] = await cluster.start("worker", role="worker", **changes)
    return worker


async def test_a_page_shows_an_answer_of_another_node_as_it_grows(cluster: Cluster) -> None:
    worker = await start_with_page(cluster, **FREELY)
    writes = [{"name": "write_file", "arguments": {"path": "plan.md", "content": "# Plan"}}]
    await cluster.script(match="a story", last_role="user", tool_calls=writes, times=1)
    await cluster.script(
        match_any="Wrote 6 bytes", last_role="tool", text=STORY, chunk_chars=20, pause_after=4, times=1
    )
    async with page_of(cluster) as page:
        await page.write("tell me a story")
        await page.until("write_file")
        await page.until("once upon a time")
        assert STORY.strip() not in await page.html()
        await cluster.release()
        await page.until(STORY.strip())
        await page.write("/whoami")
        await page.until("local:owner")
        await delivered(cluster)
        assert (await page.html()).count(STORY.strip()) == 1
    assert "turn.finished" in worker.log_text()


async def test_what_waits_behind_a_turn_of_another_node_is_shown_and_answered(cluster: Cluster) -> None:
    await start_with_page(cluster)
    await cluster.hold(match="wait")
    async with page_of(cluster) as page:
        await page.write("wait for it")
        await cluster.asked(2)
        await page.write("and then?")
        await page.until("and then?")
        await cluster.release()
        await page.until_answered(2)
        await delivered(cluster)


async def test_a_turn_of_another_node_is_stopped_from_the_page(cluster: Cluster) -> None:
    await start_with_page(cluster)
    await cluster.script(match="a story", text=STORY, chunk_chars=20, hang_after=4)
    async with page_of(cluster) as page:
        await page.write("tell me a story")
        await page.until("once upon a time")
        await page.write("/stop")
        await page.until("Stopped.")
        await delivered(cluster)
        assert await cluster.asked(1, outcome="client_gone")
