import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from hermes_state.store.seats import LockKind
from platforms.telegram.rendering import REPEAT_MARK
from tests.cluster.faulty import SEAT_SECONDS, faulty_cluster
from tests.cluster.nodes import Cluster
from tests.cluster.test_faults import resume_later
from tests.e2e.test_approvals import delivered
from tests.e2e.test_delivery import long_answer
from tests.e2e.test_discord import ALICE
from tests.e2e.test_files import FREELY, on_telegram
from tests.e2e.world import Gateway
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster
CLUSTER = faulty_cluster

GROUP: dict[str, Any] = {"chat_id": -100200, "chat_type": "supergroup", "user_id": 42}
WORDS = long_answer(1_300)
"""An answer of three messages."""


async def start_both(cluster: Cluster, **changes: str) -> tuple[Gateway, Gateway]:
    """The owner of the bots, and who has them after it. `changes` are the owner's."""
    [owner] = await cluster.start("owner", **changes)
    [heir] = await cluster.start("heir")
    return owner, heir


async def until(cluster: Cluster, query: str) -> None:
    """Wait until a query finds something."""
    async with asyncio.timeout(15):
        while not cluster.query(query):  # noqa: ASYNC110 - a row of another process has no event to wait for
            await asyncio.sleep(0.02)


async def asked_for_all(cluster: Cluster) -> None:
    await cluster.script(match="tell me all", text=WORDS)
    await cluster.say("tell me all")


async def test_the_parts_of_an_answer_that_are_left_follow(cluster: Cluster) -> None:
    owner, _ = await start_both(cluster, CRASH_KILL="begin_send:3:before")
    await asked_for_all(cluster)
    assert len(await cluster.replies(3)) == 3
    assert await owner.wait() == -signal.SIGKILL
    assert "\n".join(await cluster.visible()) == WORDS
    await delivered(cluster)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["killed", "stopped"])
async def test_the_part_that_was_under_way_is_the_only_one_that_comes_again(cluster: Cluster, is_stopped: bool) -> None:
    owner, _ = await start_both(cluster)
    slow = {"kind": "delay", "seconds": 3 * SEAT_SECONDS}
    await cluster.tg.post("faults", {"match": "sendMessage", "skip": 2, **slow})
    await asked_for_all(cluster)
    await until(cluster, "SELECT 1 FROM outbox WHERE part = 2 AND state = 'sending'")
    if is_stopped:
        owner.signal(signal.SIGSTOP)
        await resume_later(owner)
    else:
        await owner.kill()
    await cluster.replies(4)
    await delivered(cluster)
    visible = await cluster.visible()
    plain = [text for text in visible if not text.startswith(REPEAT_MARK)]
    [again] = [text for text in visible if text.startswith(REPEAT_MARK)]
    assert "\n".join(plain) == WORDS
    assert again == REPEAT_MARK + plain[2]
    assert cluster.query("SELECT state FROM outbox ORDER BY part") == [("sent",)] * 3


async def test_a_file_that_may_have_been_sent_comes_whole_from_the_next_owner(cluster: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    place = {"HERMES_ATTACHMENTS__URL": f"file://{shared}", **FREELY}
    [owner] = await cluster.start("owner", **place)
    await cluster.start("heir", **place)
    await cluster.tg.post("faults", {"kind": "500", "match": "sendDocument", "times": -1})
    writes = [{"name": "write_file", "arguments": {"path": "plan.md", "content": "# Plan"}}]
    sends = [{"name": "send_file", "arguments": {"path": "plan.md", "caption": "as you asked"}}]
    await cluster.script(match="a plan", last_role="user", tool_calls=writes)
    await cluster.script(match_any="Wrote 6 bytes", last_role="tool", times=1, tool_calls=sends)
    await cluster.say("make a plan")
    assert await cluster.tg.get("calls", method="sendDocument", count=1, wait=20)
    await owner.kill()
    await cluster.tg.delete("faults")
    [(caption, *file)] = await on_telegram(cluster, "document")
    assert (caption.removeprefix(REPEAT_MARK), *file) == ("as you asked", "plan.md", b"# Plan")
    await delivered(cluster)


async def test_a_placeholder_that_was_being_edited_becomes_the_answer(cluster: Cluster) -> None:
    owner, _ = await start_both(cluster)
    story = ("once upon a time " * 10).strip()
    await cluster.script(match="a story", text=story, chunk_chars=20, pause_after=4)
    await cluster.tg.post("message", {**GROUP, "text": "@lab_gateway_bot tell me a story"})
    assert await cluster.replies(1, chat_id=GROUP["chat_id"])
    await cluster.tg.post("faults", {"kind": "hang", "match": "editMessageText", "where": {"text": story}})
    await cluster.release()
    await until(cluster, "SELECT 1 FROM outbox WHERE state = 'sending'")
    await owner.kill()
    await delivered(cluster)
    assert await cluster.visible(GROUP["chat_id"]) == [story]


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
async def test_a_group_that_moves_while_a_worker_answers_there_gets_the_answer_where_it_is(
    cluster: Cluster, is_known: bool
) -> None:
    await cluster.start_with_worker()
    old, new = GROUP["chat_id"], -100300
    if is_known:
        await cluster.tg.post("message", {**GROUP, "chat_id": new, "text": "@lab_gateway_bot hello"})
        await cluster.replies(1, chat_id=new)
    await cluster.hold(match="wait")
    await cluster.tg.post("message", {**GROUP, "text": "@lab_gateway_bot wait for it"})
    await cluster.asked(2 + is_known)
    await cluster.tg.post("message", {**GROUP, "text": "@lab_gateway_bot and then?"})
    await cluster.stored(3 + is_known)
    await cluster.tg.post("chat", {"chat_id": old, "migrated_to": new})
    await cluster.tg.post("message", {"chat_id": old, "chat_type": "group", "migrate_to_chat_id": new})
    await cluster.tg.post("message", {**GROUP, "chat_id": new, "migrate_from_chat_id": old})
    await cluster.release()
    answers = await cluster.replies(2 + is_known, chat_id=new)
    await delivered(cluster)
    found = [word for text in answers for word in ("hello", "wait for it", "and then?") if word in text]
    assert sorted(found) == sorted(["wait for it", "and then?", *["hello"] * is_known])
    assert await cluster.visible(old) == []
    assert len(await cluster.visible(new)) == 2 + is_known


async def test_a_slash_command_whose_owner_ends_before_its_acknowledgement_is_answered(cluster: Cluster) -> None:
    owner, heir = await start_both(cluster)
    await owner.wait_for_log("discord.menu_published")
    await cluster.dc.post("faults", {"kind": "hang", "match": r"POST /interactions"})
    given = await cluster.dc.post("interaction", {"name": "whoami", "dm_user_id": ALICE})
    await until(cluster, "SELECT 1 FROM inbox")
    await owner.kill()
    await heir.wait_for_log("discord running")
    await delivered(cluster)
    rows = await cluster.dc.get("messages", channel_id=given["channel_id"])
    assert len([row for row in rows if row["author"].get("bot") and f"discord:{ALICE}" in row["content"]]) == 1


async def test_the_next_owner_is_posted_to_at_its_own_webhook(cluster: Cluster) -> None:
    places = [(name, cluster.free_port()) for name in ("owner", "heir")]
    nodes = []
    for name, port in places:
        bots = cluster.bot_list(webhook={"url": f"http://127.0.0.1:{port}/telegram", "port": port})
        nodes += await cluster.start(name, HERMES_TELEGRAM__ACCOUNTS=bots)
    await cluster.tg.get("calls", method="setWebhook", wait=15, count=1)
    await cluster.converse("before")
    await delivered(cluster)
    await nodes[0].kill()
    await cluster.say("meanwhile")
    assert await cluster.replies(1, match="meanwhile")
    await cluster.converse("after")
    await delivered(cluster)
    assert len(await cluster.visible()) == 3


TEXT = "tell us the weather of the harbour"


async def start_two(cluster: Cluster, point: str, folder: Path) -> None:
    """A keeper that ends at a commit, and another node, which would end there, too, if the keeper had not."""
    once = {"CRASH_KILL": point, "CRASH_ONCE": str(folder / "once")}
    await cluster.start("one", "two", HERMES_AGENT__TIME_ZONE="UTC", **FREELY, **once)
    assert cluster.holders(LockKind.KEEPER) == ["one"]


async def have_tool_called(cluster: Cluster, name: str, **arguments: object) -> None:
    await cluster.script(match="please", last_role="user", times=1, tool_calls=[{"name": name, "arguments": arguments}])
    await cluster.say("please")


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_schedule_comes_once_although_its_keeper_ends_in_the_middle(
    cluster: Cluster, postgres: Postgres, tmp_path: Path, side: str
) -> None:
    await start_two(cluster, f"fire_due:1:{side}", tmp_path)
    await have_tool_called(cluster, "schedule", action="add", text=TEXT, cron="*/5 * * * *")
    await cluster.say("/approve")
    assert await cluster.replies(1, match="Schedule 1 is set")
    await cluster.script(match="weather of the harbour", last_role="user", text="Sunny, as ever.")
    postgres.run("UPDATE schedules SET next_at = next_at - 300000", database=cluster.database)
    assert await cluster.replies(1, match="Sunny, as ever")
    await cluster.converse("and now?")
    await delivered(cluster)
    assert cluster.query("SELECT count(*) FROM inbox WHERE event_ref LIKE 'schedule:%'") == [(1,)]
    assert len(await cluster.replies(0, wait=0, match="Sunny, as ever")) == 1
    assert cluster.holders(LockKind.KEEPER) == ["two"]


async def test_a_question_that_was_asked_at_another_node_expires_once(cluster: Cluster, postgres: Postgres) -> None:
    [keeper] = await cluster.start("keeper", HERMES_AGENT__TIME_ZONE="UTC")
    await cluster.start("other", HERMES_AGENT__TIME_ZONE="UTC")
    await have_tool_called(cluster, "write_file", path="plan.md", content="# Plan")
    assert await cluster.replies(1, match="May I use")
    postgres.run("UPDATE approvals SET expires_at = 0", database=cluster.database)
    await keeper.kill()
    assert await cluster.asked(2), "the turn goes on with a no"
    assert await cluster.replies(2)
    await cluster.converse("and now?")
    await delivered(cluster)
    assert cluster.query("SELECT state FROM approvals") == [("expired",)]
    assert cluster.query("SELECT state FROM turns ORDER BY id") == [("finished",), ("finished",)]
    assert cluster.holders(LockKind.KEEPER) == ["other"]
