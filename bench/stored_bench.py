"""Measure whether stored data slows down new messages: many messages, and a chat with a thousand turns."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.corpus import Corpus
from bench.measure import Measure, in_turns
from bench.searches import full_home, stored_messages
from bench.subjects import Lab, gateway, lab
from bench.traffic import burst, sequence
from hermes_state.chats import ensure_chat
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.sessions import start_session
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatKey, ChatKind, MessageRole, Millis, Origin, SystemClock

SEED_SLICE = 2_000


async def full(quick: bool) -> list[Measure]:
    """Measure the same messages with an empty and a full database, in turns."""
    stored = stored_messages(quick)
    home = await full_home(stored)

    async def empty(number: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            return await _answers(Path(folder), number)

    async def filled(number: int) -> tuple[float, float]:
        return await _answers(home.parent, number)

    found = await in_turns(3 if quick else 7, empty, filled)
    (empty_times, empty_costs), (times, costs) = (zip(*side, strict=True) for side in found)
    name = f"with {stored:,} messages stored"
    return [
        Measure(name=f"one chat, p50, {name}", ours=times, yardstick=empty_times, unit="ms", bar=1.1),
        Measure(name=f"time per message of a burst, {name}", ours=costs, yardstick=empty_costs, unit="ms", bar=1.2),
    ]


async def _answers(folder: Path, number: int) -> tuple[float, float]:
    """Return the median milliseconds to an answer in one chat, and the milliseconds per message of a burst.

    A repeated message is answered only once, so each round uses different chats.
    """
    async with lab() as here, gateway(here, folder) as subject:
        await here.speak()
        alone = await sequence(here, subject, 40, chat_id=10 + number)
        together = await burst(here, subject, 10, first_chat=10_000 * (number + 1))
    return alone.p50, 1000 / together.per_second


async def long(quick: bool) -> list[Measure]:
    """Measure the time outside the model call in a chat with many turns, compared with a new chat in the same run."""
    turns = 100 if quick else 1_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await _fill(folder / "home" / "state.db", 2 * turns, chat_ref="7")
        async with lab() as here, gateway(here, folder):
            fresh, long = [], []
            for number in range(12):
                fresh.append(await _outside_model(here, 3_000 + number))
                long.append(await _outside_model(here, 7))
    name = f"outside the model call, after {turns:,} turns in the chat"
    return [Measure(name=name, ours=long[2:], unit="ms", yardstick=fresh[2:], bar=1.15)]


async def _outside_model(here: Lab, chat_id: int) -> float:
    earlier = await here.model.get("requests")
    began = await here.say(chat_id, "how long does this take?")
    [row] = await here.answers(1)
    requests = await here.model.get("requests", since=earlier[-1]["seq"] if earlier else 0, count=1, wait=10)
    [request] = [one for one in requests if one["outcome"] == "ok"]  # the model refuses an unknown output limit once
    return float((row["t"] - began - request["seconds"]) * 1000)


async def _fill(path: Path, messages: int, chat_ref: str = "999") -> None:
    """Create a database with one chat that has `messages` messages."""
    store = await SqliteStore.open(path)
    try:
        now = SystemClock().now()
        session_id = await store.write(_start, chat_ref, now)
        texts = list(Corpus().messages(messages))
        for at in range(0, messages, SEED_SLICE):
            await store.write(_append_all, session_id, texts[at : at + SEED_SLICE], now)
            while await store.write(add_words):
                pass
    finally:
        await store.close()


def _start(db, chat_ref: str, now: Millis) -> int:
    key = ChatKey(platform="telegram", account="telegram", chat_ref=chat_ref)
    return start_session(db, ensure_chat(db, key, ChatKind.DIRECT, None, now), now).id


def _append_all(db, session_id, texts: Sequence[str], now: Millis) -> None:
    for number, text in enumerate(texts):
        is_human = number % 2 == 0
        row = NewMessage(
            role=MessageRole.USER if is_human else MessageRole.ASSISTANT,
            origin=Origin.HUMAN if is_human else Origin.ASSISTANT,
            text=text,
            sender_name="Ada" if is_human else None,
        )
        append(db, session_id, row, now)
