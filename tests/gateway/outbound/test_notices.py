"""Notices about the context window, which the model never reads."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.context.limits import ContextSettings
from gateway.config.context_settings import NoticeConfig
from gateway.outbound.notices import accuracy_sentence
from hermes_state.errors import AuthRejected
from hermes_state.sessions import set_context_state
from hermes_state.store.writer import Store
from hermes_state.values import SessionId
from tests.gateway.helpers import Hang, TestGateway, answer, eventually, settled
from tests.gateway.models.windows import SUMMARY, WORDS, CountingModel, Talk, say_much, talking
from tests.hermes_state.helpers import accept_rows, refuse_rows

PRESSURE = "% of the way to the next compression"
OFTEN = "This conversation has been compressed"


@pytest.fixture
async def gateway(talk: Talk) -> AsyncIterator[TestGateway]:
    async with talk(length=100_000) as running:
        yield running


async def answer_reporting(gateway: TestGateway, model: CountingModel, tokens: int) -> str:
    """Return the answer to a message whose prompt counts as `tokens`."""
    model.reported = tokens
    return await gateway.ask("hello there")


def read_by_the_model(model: CountingModel) -> str:
    return str([(request.system, [row.text for row in request.transcript]) for request in model.requests])


def notices(gateway: TestGateway, words: str) -> list[str]:
    return [text for text in gateway.adapter.texts() if words in text]


# ---- pressure


async def test_pressure_notice_is_shown_once_at_85_percent_of_the_threshold(
    gateway: TestGateway, model: CountingModel
) -> None:
    assert PRESSURE not in await answer_reporting(gateway, model, 42_499)
    told = await answer_reporting(gateway, model, 42_500)
    assert told.startswith("echo: hello there")
    assert "85 % of the way to the next compression (42,500 of 50,000 tokens)" in told
    assert PRESSURE not in await answer_reporting(gateway, model, 43_000)
    assert PRESSURE not in await answer_reporting(gateway, model, 49_000)
    assert PRESSURE not in read_by_the_model(model)
    [(count,)] = await gateway.rows("SELECT count(*) FROM messages WHERE text LIKE '%room before%'")
    assert count == 0, "it belongs to what is shown, not to what was said"


async def test_pressure_notice_is_shown_again_after_a_drop(gateway: TestGateway, model: CountingModel) -> None:
    told = [await answer_reporting(gateway, model, count) for count in (45_000, 45_500, 30_000, 45_000, 45_100)]
    assert [PRESSURE in text for text in told] == [True, False, False, True, False]


async def test_a_pressure_notice_of_a_lost_answer_moves_to_the_next_answer(
    gateway: TestGateway, model: CountingModel
) -> None:
    """The notice was not shown, because the answer was lost before its rows were stored."""
    await gateway.store.write(refuse_rows, "UPDATE ON turns", "NEW.state = 'finished'")
    assert (await answer_reporting(gateway, model, 45_000)).startswith("An internal error stopped my answer")
    await gateway.store.write(accept_rows)
    told = [await answer_reporting(gateway, model, count) for count in (45_000, 45_100)]
    assert [PRESSURE in text for text in told] == [True, False]


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"notices": {"pressure": False}}, 45_000),
        ({"context": ContextSettings(enabled=False)}, 45_000),
        ({}, 40_000),
    ],
    ids=["switched off", "nothing is compressed", "below the share"],
)
async def test_no_pressure_notice_is_shown(
    talk: Talk, model: CountingModel, settings: dict[str, Any], tokens: int
) -> None:
    async with talk(length=100_000, **settings) as gateway:
        assert await answer_reporting(gateway, model, tokens) == "echo: hello there"
        assert await gateway.rows("SELECT * FROM compressions") == []


@pytest.mark.parametrize("held_back", ['{"strikes":2,"blocked_at":54000}', '{"held_at":54000}'])
async def test_no_pressure_notice_while_compression_is_blocked(
    gateway: TestGateway, model: CountingModel, held_back: str
) -> None:
    """Compression no longer helps or was just undone, so the threshold does not trigger a compression."""
    await answer_reporting(gateway, model, 1_000)
    await gateway.store.write(set_context_state, SessionId(1), held_back)
    assert await answer_reporting(gateway, model, 55_000) == "echo: hello there"


async def test_a_prompt_above_the_threshold_announces_a_compression_soon(
    gateway: TestGateway, model: CountingModel
) -> None:
    told = await answer_reporting(gateway, model, 52_000)
    assert "This conversation will be compressed soon (52,000 of 50,000 tokens)" in told


# ---- compressions


async def test_the_second_compression_shows_the_accuracy_notice(talk: Talk, model: CountingModel) -> None:
    async with talk(length=8_192) as gateway:
        events = "SELECT count(*) FROM compressions WHERE outcome = 'compressed'"
        done = number = 0
        while done < 3:
            await say_much(gateway, range(number, number + 1))
            number += 1
            [(now_done,)] = await gateway.rows(events)
            assert now_done <= done + 1
            done = now_done
            assert len(notices(gateway, OFTEN)) == (done >= 2)
        [told] = notices(gateway, OFTEN)
        assert told.startswith("This conversation has been compressed 2 times, so I may miss details.")
        assert OFTEN not in read_by_the_model(model)


def test_later_accuracy_notices_come_with_every_tenth_compression() -> None:
    assert [count for count in range(40) if accuracy_sentence(count, NoticeConfig()) is not None] == [2, 10, 20, 30]
    assert "compressed 30 times" in (accuracy_sentence(30, NoticeConfig()) or "")


async def test_a_second_manual_compression_has_the_notice_in_its_reply(talk: Talk) -> None:
    async with talk(count=24) as gateway:
        for expected in (False, True):
            await gateway.tell("/compress here 2")
            assert gateway.adapter.texts()[-1].startswith("Compressed: ")
            assert (f"{OFTEN} 2 times" in gateway.adapter.texts()[-1]) is expected
            await say_much(gateway, range(12))
        assert len(notices(gateway, OFTEN)) == 1


async def test_a_compression_is_an_event_for_webhooks(talk: Talk) -> None:
    hook = {"secret": "a-secret-of-twenty-characters", "url": "http://127.0.0.1:9/"}
    silent = {**hook, "events": ["turn.finished"]}
    async with talk(count=24, webhooks={"ops": hook, "turns": silent}) as gateway:
        await gateway.tell("/compress here 2")
        query = "SELECT payload FROM outbox WHERE dedupe_key LIKE 'hook:%:compression:ops' ORDER BY id"
        [(payload,)] = await gateway.rows(query)
    event = json.loads(json.loads(payload)["markdown"])
    assert event["type"] == "compression"
    assert event["data"]["layer"] == "manual"
    assert event["data"]["tokens_before"] > 0


async def test_the_accuracy_notice_can_be_switched_off(talk: Talk) -> None:
    quiet = {"pressure": False}
    async with talk(length=8_192, notices=quiet, count=40) as gateway:
        [(done,)] = await gateway.rows("SELECT count(*) FROM compressions WHERE outcome = 'compressed'")
        assert done >= 2
        assert all(text.startswith("echo: ") for text in gateway.adapter.texts())


# ---- long waits

SOON = ContextSettings(quiet_seconds=0.05)
WAITING = "I am compressing it before I continue"
THRESHOLD_TOKENS, HYGIENE_TOKENS = 17_000, 22_500
"""More tokens than every layer's threshold in the window of `talking`."""


@asynccontextmanager
async def waiting(
    store: Store, folder: Path, *, tokens: int = THRESHOLD_TOKENS, quiet_seconds: float = 0.05, is_on: bool = True
) -> AsyncIterator[tuple[TestGateway, CountingModel, Hang]]:
    """Run a conversation of `tokens` that must be compressed before "and now?" is answered. The summary hangs."""
    model, hang = CountingModel(), Hang(text=SUMMARY)
    context, told = ContextSettings(quiet_seconds=quiet_seconds), {"pressure": is_on}
    async with talking(store, folder, model, context=context, count=23, notices=told) as gateway:
        await answer_reporting(gateway, model, tokens)
        model.reported, model.summary = None, hang
        await gateway.say("and now?")
        await hang.begun.wait()
        yield gateway, model, hang


@pytest.mark.parametrize(("tokens", "layer"), [(THRESHOLD_TOKENS, "preflight"), (HYGIENE_TOKENS, "hygiene")])
async def test_a_chat_that_waits_for_a_compression_is_told_once(
    store: Store, tmp_path: Path, tokens: int, layer: str
) -> None:
    async with waiting(store, tmp_path, tokens=tokens) as (gateway, model, hang):
        await eventually(lambda: notices(gateway, WAITING), "the notice")
        assert not any("and now?" in text for text in gateway.adapter.texts())
        await settled(0.2)
        hang.release()
        await gateway.quiet()
        assert await gateway.rows("SELECT layer, outcome FROM compressions") == [(layer, "compressed")]
        assert gateway.adapter.texts()[-2:] == [*notices(gateway, WAITING), "echo: and now?"]
        await gateway.ask("and then?")
        assert len(notices(gateway, WAITING)) == 1
        assert WAITING not in read_by_the_model(model)
        assert await gateway.rows("SELECT 1 FROM messages WHERE text LIKE ?", f"%{WAITING}%") == []


async def test_the_waiting_notice_is_not_repeated_after_a_restart(store: Store, tmp_path: Path) -> None:
    async with waiting(store, tmp_path) as (gateway, model, _):
        await eventually(lambda: notices(gateway, WAITING), "the notice")
        await gateway.until_rows("SELECT 1 FROM outbox WHERE state = 'sent' AND dedupe_key LIKE '%:waiting:%'")
    model.summary = again = Hang(text=SUMMARY)
    async with talking(store, tmp_path, model, context=SOON, notices={"pressure": False}) as gateway:
        await again.begun.wait()
        await settled(0.2)
        again.release()
        await gateway.quiet()
        assert gateway.adapter.texts() == ["echo: and now?"]


@pytest.mark.parametrize(
    ("quiet_seconds", "is_on"), [(0.05, False), (30.0, True)], ids=["switched off", "the summary is soon there"]
)
async def test_other_compressions_send_no_waiting_notice(
    store: Store, tmp_path: Path, quiet_seconds: float, is_on: bool
) -> None:
    async with waiting(store, tmp_path, quiet_seconds=quiet_seconds, is_on=is_on) as (gateway, _, hang):
        await settled(0.2)
        hang.release()
        await gateway.quiet()
        assert await gateway.rows("SELECT layer, outcome FROM compressions") == [("preflight", "compressed")]
        assert all(text.startswith("echo: ") for text in gateway.adapter.texts())


async def test_a_manual_compression_sends_no_waiting_notice(store: Store, tmp_path: Path) -> None:
    model, hang = CountingModel(), Hang(text=SUMMARY)
    async with talking(store, tmp_path, model, context=SOON, count=24) as gateway:
        model.summary = hang
        await gateway.say("/compress")
        await hang.begun.wait()
        await settled(0.2)
        hang.release()
        await gateway.quiet()
        assert gateway.adapter.texts()[-1].startswith("Compressed: ")
        assert notices(gateway, WAITING) == []


async def test_a_failed_notice_does_not_lose_the_answer(store: Store, tmp_path: Path) -> None:
    await store.write(refuse_rows, "INSERT ON outbox", "NEW.dedupe_key LIKE '%:waiting:%'")
    async with waiting(store, tmp_path) as (gateway, _, hang):
        await settled(0.2)
        hang.release()
        await gateway.quiet()
        assert (gateway.adapter.texts()[-1], notices(gateway, WAITING)) == ("echo: and now?", [])


# ---- failures


async def test_a_failed_compression_is_reported_once_and_the_answer_arrives(talk: Talk, model: CountingModel) -> None:
    model.summary = AuthRejected("401")
    async with talk(length=16_384, notices={"pressure": False}) as gateway:
        number = 0
        while not await gateway.rows("SELECT 1 FROM compressions"):
            await gateway.tell(f"TICKET-{number}. {WORDS * 3}")
            number += 1
        [told] = notices(gateway, "could not compress")
        assert "Nothing was changed" in told
        assert "To try now, send /compress" in told
        assert "401" not in told
        assert sum(text.startswith("echo: ") for text in gateway.adapter.texts()) == number
        await gateway.ask("and now?")
        assert len(notices(gateway, "could not compress")) == 1, "it cools down"
        assert "could not compress" not in read_by_the_model(model)


async def test_without_a_summary_the_notice_counts_the_listed_messages(talk: Talk, model: CountingModel) -> None:
    model.summary = answer("I will not do that.")
    async with talk(length=8_192, notices={"pressure": False}) as gateway:
        number = 0
        while not notices(gateway, "could not summarise"):
            assert number < 40
            await gateway.tell(f"TICKET-{number}. {WORDS}")
            number += 1
        [told] = notices(gateway, "could not summarise")
        assert "I kept a list of key points from" in told
        assert "All of these messages are still stored" in told
        assert "could not summarise" not in read_by_the_model(model)


async def test_a_block_lifted_by_growth_stays_lifted(talk: Talk, store: Store) -> None:
    async with talk(length=8_192, notices={"pressure": False}, count=2) as gateway:

        async def block(at: int) -> None:
            await store.write(set_context_state, SessionId(1), f'{{"strikes":2,"blocked_at":{at}}}')

        await block(1_000_000)
        await say_much(gateway, range(2, 26))
        assert await gateway.rows("SELECT * FROM compressions") == []
        await block(100)
        await gateway.ask("and now?")
        assert await gateway.rows("SELECT layer, outcome FROM compressions") == [("preflight", "compressed")]
        [(state,)] = await gateway.rows("SELECT context_state FROM sessions ORDER BY id DESC LIMIT 1")
        assert "blocked_at" not in (state or "")


# ---- too many messages


async def test_the_message_limit_sends_a_notice(talk: Talk, model: CountingModel) -> None:
    context = ContextSettings(hard_message_limit=50)
    async with talk(length=131_072, context=context) as gateway:
        for number in range(26):
            await gateway.tell(f"short {number}")
        [told] = notices(gateway, "the limit is 50")
        assert "had 51 messages" in told, "the new one counts"
        assert await gateway.rows("SELECT layer, outcome FROM compressions") == [("hygiene", "compressed")]
        assert "the limit is 50" not in read_by_the_model(model)


async def test_many_short_messages_are_not_compressed_on_every_message(talk: Talk) -> None:
    context = ContextSettings(hard_message_limit=50)
    async with talk(length=131_072, context=context) as gateway:
        unhurried = gateway.live.config.sessions.model_copy(update={"messages_per_minute": 0})
        gateway.configure(gateway.live.config.model_copy(update={"sessions": unhurried}))
        for number in range(100):
            await gateway.tell(f"{number} is a short message, but not too short for a summary of many of its kind")
        [(done,)] = await gateway.rows("SELECT count(*) FROM compressions")
        assert 4 <= done <= 12
        assert notices(gateway, "hardly shortens") == []
