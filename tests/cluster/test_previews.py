from functools import partial
from typing import Any

import pytest

from hermes_state.store.seats import LockKind
from tests.cluster.nodes import Cluster, cluster_in
from tests.cluster.test_owners import until

pytestmark = pytest.mark.cluster
CLUSTER = partial(cluster_in, is_further=True)

WORDS = "word " * 40
TYPING_SECONDS = 5.0
"""Seconds for which Telegram shows one signal."""


async def growing(cluster: Cluster, **options: Any) -> None:
    """Someone asks for a story, of which half is there; `release` lets the rest follow."""
    await cluster.script(match="story", text=WORDS, chunk_chars=10, chunk_delay=0.05, pause_after=12, **options)
    await cluster.say("tell me a story")


async def seen(cluster: Cluster, method: str, count: int = 0, wait: float = 15) -> list[dict[str, Any]]:
    """What the person who asked could see of the bot; waits for `count`."""
    query = {"method": f"({method})$", "chat_id": 42, "wait": wait if count else 0, "count": count}
    found: list[dict[str, Any]] = await cluster.tg.get("sent", **query)
    return found


async def whole(cluster: Cluster) -> None:
    """Wait for the whole answer, and check that nothing else is visible."""
    query = {"method": "(sendMessage|editMessageText)$", "chat_id": 42, "match": f"^{WORDS.strip()}$"}
    assert await cluster.tg.get("sent", **query, wait=15, count=1)
    assert await cluster.visible() == [WORDS.strip()]


async def test_a_worker_shows_typing_and_a_growing_answer_before_the_whole(cluster: Cluster) -> None:
    _, worker = await cluster.start_with_worker()
    await growing(cluster)
    await seen(cluster, "sendChatAction", 1)
    assert await seen(cluster, "sendMessageDraft", 1)
    assert cluster.query("SELECT count(*) FROM previews") == [(1,)], "the turn at the owner stores none"
    await cluster.release()
    await whole(cluster)
    await worker.wait_for_log("turn.finished")
    *_, last = await seen(cluster, "sendMessageDraft|sendMessage|sendChatAction")
    assert last["method"] == "sendMessage"
    assert cluster.query("SELECT count(*) FROM previews") == [(0,)]


async def test_typing_ends_with_a_killed_worker(cluster: Cluster) -> None:
    _, worker = await cluster.start_with_worker()
    await cluster.hold(match="wait", times=2)
    await cluster.say("wait for it")
    assert len(await seen(cluster, "sendChatAction", 2)) == 2, "it is renewed while the worker works"
    await worker.kill()
    count = len(await seen(cluster, "sendChatAction"))
    later = await seen(cluster, "sendChatAction", count + 1, wait=TYPING_SECONDS)
    assert len(later) == count, "nobody works on it"
    await cluster.release()
    assert len(await cluster.replies(1)) == 1
    assert len(await cluster.visible()) == 1


@pytest.mark.parametrize("has_drafts", [True, False])
async def test_a_turn_of_a_killed_worker_goes_on_in_the_same_place(cluster: Cluster, has_drafts: bool) -> None:
    if not has_drafts:
        await cluster.tg.post("faults", {"kind": "404", "match": "sendMessageDraft", "times": -1})
    await cluster.start_with_worker()
    await growing(cluster, times=2)
    [placeholder] = await seen(cluster, "sendMessageDraft" if has_drafts else "sendMessage", 1)
    [other] = await cluster.start("other", role="worker")
    assert "worker" in cluster.holders(LockKind.CHAT)
    await cluster.nodes.pop("worker").kill()
    await cluster.asked(3)
    await cluster.release()
    await other.wait_for_log("turn.finished")
    await whole(cluster)
    query = "SELECT state, restarts, epoch, preview_ref FROM turns t JOIN chats c ON c.id = t.chat_id"
    [(*facts, preview_ref)] = cluster.query(f"{query} WHERE c.chat_ref = '42'")
    assert facts == ["finished", 1, 2]
    assert has_drafts or preview_ref == str(placeholder["message_id"])


async def test_a_new_owner_of_the_bot_shows_what_grows_elsewhere(cluster: Cluster) -> None:
    owner, _ = await cluster.start_with_worker()
    await growing(cluster)
    await seen(cluster, "sendMessageDraft", 1)
    await cluster.start("heir", HERMES_SESSIONS__MAX_TURNS="1")
    shown = len(await seen(cluster, "sendMessageDraft"))
    await owner.kill()
    await seen(cluster, "sendMessageDraft", shown + 1)
    await cluster.release()
    await whole(cluster)


@pytest.mark.parametrize("has_drafts", [True, False])
async def test_who_becomes_the_owner_in_the_middle_of_its_own_turn_shows_that(
    cluster: Cluster, has_drafts: bool
) -> None:
    if not has_drafts:
        await cluster.tg.post("faults", {"kind": "404", "match": "sendMessageDraft", "times": -1})
    [owner] = await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1")
    await cluster.keep_busy()
    [heir] = await cluster.start("heir")
    await growing(cluster)
    await seen(cluster, "sendMessageDraft" if has_drafts else "sendMessage", 1)
    if not has_drafts:  # one that its owner has not stored yet is lost with it
        await until(cluster, "SELECT 1 FROM turns WHERE preview_ref IS NOT NULL")
    renewed = "sendMessageDraft" if has_drafts else "sendChatAction"
    shown = len(await seen(cluster, renewed))
    await owner.kill()
    assert len(await seen(cluster, renewed, shown + 1)) == shown + 1
    await cluster.release()
    await heir.wait_for_log("turn.finished")
    await whole(cluster)
    assert cluster.query("SELECT count(*) FROM previews") == [(0,)]
