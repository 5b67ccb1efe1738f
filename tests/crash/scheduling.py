"""Scenario: two schedules are due at the start, one of which repeats. A command runs a third one.

Wherever the daemon is killed, each message is sent and answered once, and the repeating schedule gets its next time.
"""

import time
from contextlib import closing
from sqlite3 import Connection

from hermes_state.chats import ensure_chat
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.tools.schedules import NewSchedule, insert_schedule
from hermes_state.values import ChatKey, ChatKind, Millis, UserRef
from platforms.telegram.rendering import REPEAT_MARK
from tests.crash.invariants import file_problems, model_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

CHAT = 42
TEXTS = ("take the cake out", "count the boats", "read the mail")
RUN = "Sending schedule 3 now."
SCRIPT: list[dict[str, object]] = [{"match": text, "text": f"Done: {text}."} for text in reversed(TEXTS)]


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    store = await SqliteStore.open(world.home / "state.db", synchronous="NORMAL")
    await store.write(_fill, Millis(time.time_ns() // 1_000_000))
    await store.close()
    await world.begin(SCRIPT, CHAT)
    await world.until_seen(CHAT, f"Done: {TEXTS[0]}.")
    await world.until_seen(CHAT, f"Done: {TEXTS[1]}.")
    await world.say(CHAT, "/schedule run 3")
    await world.until_seen(CHAT, RUN)
    await world.until_seen(CHAT, f"Done: {TEXTS[2]}.")
    await world.end()


def _fill(db: Connection, now: Millis) -> None:
    key = ChatKey(platform="telegram", account="telegram", chat_ref=str(CHAT))
    chat_id = ensure_chat(db, key, ChatKind.DIRECT, None, now)
    specs = (("2026-01-01T08:00", Millis(now - 1)), ("0 0 1 1 *", Millis(now - 1)), ("@yearly", None))
    for text, (spec, next_at) in zip(TEXTS, specs, strict=True):
        number = insert_schedule(
            db,
            NewSchedule(
                chat_id=chat_id,
                creator_ref=UserRef("telegram:42"),
                creator_name="Ann",
                spec=spec,
                zone="UTC",
                text=text,
                next_at=next_at or now,
                created_at=now,
            ),
        )
        if next_at is None:
            db.execute("UPDATE schedules SET state = 'paused', next_at = NULL WHERE id = ?", (number,))


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        came = db.execute("SELECT event_ref FROM inbox WHERE event_ref LIKE 'schedule:%' ORDER BY id").fetchall()
        said = db.execute("SELECT text FROM messages WHERE origin = 'human' ORDER BY id").fetchall()
        states = db.execute("SELECT state, next_at > fired_at FROM schedules ORDER BY id").fetchall()
    if len(came) != len(set(came)) or len(came) != len(TEXTS):
        found.append(f"what came is {came}")
    if sorted(said) != sorted((text,) for text in TEXTS):
        found.append(f"the turns are about {said}")
    if states != [("done", None), ("active", 1), ("paused", None)]:
        found.append(f"the schedules are {states}")
    expected = (RUN, *(f"Done: {text}." for text in TEXTS))
    return [*found, *await screen_problems(world, CHAT, *expected), *await model_problems(world)]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: nothing may be marked as a possible repeat."""
    marked = [text for text in await world.visible(CHAT) if REPEAT_MARK in text]
    return [f"without a kill: {marked}"] if marked else []
