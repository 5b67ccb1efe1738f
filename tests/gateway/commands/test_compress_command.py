"""`/compress`: effect and reply of each form. tests/e2e covers the platforms."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.context.limits import ContextSettings
from agent.model.base import FinishReason, ModelReply
from gateway.commands.compression import STARTED
from gateway.commands.registry import Command, CommandKind, CommandRegistry, CommandRequest, CommandResult
from gateway.commands.table import REGISTRY
from gateway.commands.turns import stop
from hermes_state.errors import AuthRejected, ModelError, ModelTimeout
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_view
from hermes_state.values import LineageId, Origin, Transcript
from tests.gateway.helpers import (
    BOB,
    BOSS,
    DIRECT,
    GROUP,
    Hang,
    Step,
    TestGateway,
    answer,
    eventually,
    hanging,
    human_texts,
    settled,
)
from tests.gateway.models.windows import SUMMARY, WORDS, CountingModel, Talk, say_much, talking
from tests.hermes_state.rows import finish

COUNT = 24
EVENTS = "SELECT layer, outcome, focus, summary_kind FROM compressions ORDER BY id"


@pytest.fixture
async def gateway(talk: Talk) -> AsyncIterator[TestGateway]:
    async with talk(count=COUNT) as running:
        yield running


async def view_of(gateway: TestGateway) -> Transcript:
    [(lineage_id,)] = await gateway.rows("SELECT max(lineage_id) FROM sessions")
    return (await gateway.store.read(load_view, LineageId(lineage_id))).transcript


async def compress(gateway: TestGateway, argument: str = "") -> str:
    """Send a `/compress` and return its final reply."""
    before = len(gateway.adapter.texts())
    await gateway.tell(f"/compress {argument}".strip())
    await eventually(lambda: len(gateway.adapter.texts()) > before, "an answer")
    shown = gateway.adapter.texts()[before:]
    assert shown[:-1] in ([], [STARTED]), shown
    return shown[-1]


def said(rows: Transcript) -> list[str]:
    return [text.split(".")[0] for text in human_texts(rows)]


async def dump(gateway: TestGateway) -> str:
    """Return all rows that a command without effect must not change."""
    tables = ("sessions", "session_context", "messages", "view_edits", "compressions", "model_profiles")
    return str([await gateway.rows(f"SELECT * FROM {table}") for table in tables])


# ---- plain


async def test_the_reply_shows_sizes_the_summary_model_and_the_new_id(
    gateway: TestGateway, model: CountingModel
) -> None:
    told = await compress(gateway)
    messages = re.search(r"^Compressed: (\d+) → (\d+) messages$", told, re.MULTILINE)
    assert messages is not None
    assert int(messages[1]) == 2 * COUNT
    assert int(messages[2]) == len(await view_of(gateway)) < 2 * COUNT
    tokens = re.search(r"^Next prompt \(estimate\): about ([\d,]+) → ([\d,]+) tokens$", told, re.MULTILINE)
    assert tokens is not None
    before, after = (int(number.replace(",", "")) for number in tokens.groups())
    assert after < before
    assert "Summary written by scripted. It replaces " in told
    [(key,)] = await gateway.rows("SELECT key FROM sessions ORDER BY id DESC LIMIT 1")
    assert f"The conversation continues with the id `{key[:8]}`." in told
    assert await gateway.rows(EVENTS) == [("manual", "compressed", None, "model")]
    assert gateway.adapter.texts()[-2] == STARTED
    await gateway.ask("and now?")
    assert any(row.origin is Origin.SUMMARY for row in model.turns[-1].transcript)
    assert said(await view_of(gateway))[-2] == f"TICKET-{COUNT - 1}"
    assert not any("/compress" in (row.text or "") for request in model.turns for row in request.transcript)
    assert await gateway.rows("SELECT 1 FROM messages WHERE text LIKE '/compress%'") == []


async def test_a_second_compression_counts_the_messages_of_earlier_summaries(gateway: TestGateway) -> None:
    first = re.search(r"It replaces (\d+) messages for the model\.", await compress(gateway))
    assert first is not None
    await say_much(gateway, range(COUNT, 2 * COUNT))
    told = await compress(gateway)
    second = re.search(r"It replaces (\d+) messages for the model \((\d+) including earlier summaries\)", told)
    assert second is not None, told
    assert int(second[2]) == int(first[1]) + int(second[1])
    [summary] = [row for row in await view_of(gateway) if row.origin is Origin.SUMMARY]
    assert f"Stands for {second[2]} messages" in (summary.text or "")


async def test_a_compression_that_cannot_help_makes_no_model_call(gateway: TestGateway, model: CountingModel) -> None:
    """A summary updated with a few words is as long as before."""
    assert "Compressed: " in await compress(gateway)
    await gateway.ask("and now?")
    before = await dump(gateway)
    for argument in ("preview", "", "here 1", "the boats"):
        told = await compress(gateway, argument)
        assert "Nothing could be compressed: " in told, argument
    assert STARTED not in gateway.adapter.texts()[-3:]
    assert len(model.summaries) == 1
    assert await dump(gateway) == before


async def test_a_manual_compression_logs_like_other_layers(gateway: TestGateway, model: CountingModel) -> None:
    with capture_logs() as said_in_log:
        model.summary = AuthRejected("401")
        await compress(gateway)
        model.summary = answer(SUMMARY)
        await compress(gateway)
        await compress(gateway)
    lines = [line for line in said_in_log if line.get("layer") == "manual"]
    names = [line["event"] for line in lines if line["event"] != "compression.planned"]
    assert names == [
        "compression.summary_failed",
        "compression.aborted",
        "session.compressed",
        "compression.not_needed",
    ]
    compressed = next(line for line in lines if line["event"] == "session.compressed")
    assert compressed["tokens_after"] < compressed["tokens_before"]


# ---- the argument


@pytest.mark.parametrize(
    ("argument", "focus"),
    [
        ("database schema", "database schema"),
        ("focus: database schema", "database schema"),
        ("FOCUS:schema", "schema"),
        ("here", "here"),
        ("here and there", "here and there"),
        ("here 2 days ago", "here 2 days ago"),
        ("preview of the plan", "preview of the plan"),
        ("undo button", "undo button"),
        ("数据库", "数据库"),
    ],
)
async def test_any_other_argument_is_the_focus(
    gateway: TestGateway, model: CountingModel, argument: str, focus: str
) -> None:
    assert f"with the focus “{focus}”" in await compress(gateway, argument)
    assert await gateway.rows(EVENTS) == [("manual", "compressed", focus, "model")]
    [summary] = model.summaries
    asked_for = summary.transcript[-1].text or ""
    assert asked_for.rfind(focus) > asked_for.rfind("TICKET-"), "the focus comes last"


async def test_a_secret_in_the_focus_is_redacted_everywhere(gateway: TestGateway, model: CountingModel) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    told = await compress(gateway, f"the key {secret}")
    assert "the key" in told
    assert secret not in told
    assert secret not in str(model.summaries)
    assert secret not in str(await gateway.rows("SELECT * FROM compressions"))


async def test_here_n_keeps_only_the_n_newest_messages(gateway: TestGateway) -> None:
    before = await view_of(gateway)
    assert "Compressed: " in await compress(gateway, "here 4")
    after = await view_of(gateway)
    index = next(index for index, row in enumerate(after) if row.origin is Origin.SUMMARY)
    assert after[index + 1 :] == before[-8:]
    assert said(after[index + 1 :]) == [f"TICKET-{number}" for number in range(COUNT - 4, COUNT)]


async def test_here_n_requires_at_least_one(gateway: TestGateway, model: CountingModel) -> None:
    before = await dump(gateway)
    assert "at least 1" in await compress(gateway, "here 0")
    assert "Nothing could be compressed" in await compress(gateway, "HERE 900")
    assert await dump(gateway) == before
    assert model.summaries == []


@pytest.mark.parametrize("word", ["preview", "PREVIEW", " preview "])
async def test_preview_describes_the_compression_and_changes_nothing(
    gateway: TestGateway, model: CountingModel, word: str
) -> None:
    before, calls = await dump(gateway), len(model.requests)
    told = await compress(gateway, word)
    assert await dump(gateway) == before
    assert len(model.requests) == calls
    counts = re.search(r"summarise (\d+) messages\. It would keep the first (\d+) and the newest (\d+)", told)
    assert counts is not None
    assert "(estimate)" in told
    assert told.endswith("for the summary.\nNothing was changed."), "there is no tool result to shorten"
    middle, head, tail = map(int, counts.groups())
    assert middle + head + tail == 2 * COUNT
    done = await compress(gateway)
    assert f"replaces {middle:,} messages" in done
    assert f"{2 * COUNT} → {head + 1 + tail} messages" in done


@pytest.mark.parametrize("count", [10, 25, 27, 34])
async def test_a_conversation_that_fits_into_the_tail_is_still_compressed(talk: Talk, count: int) -> None:
    async with talk(count=count) as gateway:
        before = len(await view_of(gateway))
        assert "Compressed: " in await compress(gateway)
        assert len(await view_of(gateway)) < before


# ---- nothing to do, and what goes wrong


@pytest.mark.parametrize("argument", ["", "the boats", "here 2", "preview"])
async def test_a_short_conversation_is_refused_without_a_model_call(
    talk: Talk, model: CountingModel, argument: str
) -> None:
    async with talk() as gateway:
        assert await compress(gateway, argument) == "This chat has no conversation yet."
        await gateway.ask("hello")
        before = await dump(gateway)
        told = await compress(gateway, argument)
        assert told.startswith("Nothing could be compressed: ")
        assert "Nothing could be compressed: " in told
        assert STARTED not in gateway.adapter.texts()
        assert model.summaries == []
        assert await dump(gateway) == before


@pytest.mark.parametrize("failure", [AuthRejected("401"), ModelTimeout("slow")])
async def test_a_provider_failure_changes_nothing(
    gateway: TestGateway, model: CountingModel, failure: ModelError
) -> None:
    model.summary = failure
    before = await view_of(gateway)
    told = await compress(gateway)
    assert told.startswith("Not compressed; nothing was changed")
    assert len(told.splitlines()) >= 2, "and why"
    assert "401" not in told
    assert await view_of(gateway) == before
    assert [row[1] for row in await gateway.rows(EVENTS)] == ["aborted"]
    model.summary = answer(SUMMARY)
    assert "Compressed: " in await compress(gateway), "asking again tries again at once"


@pytest.mark.parametrize(
    "reply",
    [
        answer(""),
        answer("I cannot help with that."),
        ModelReply(text=SUMMARY, finish=FinishReason.LENGTH, usage=None),
        answer("garbage " * 200),
    ],
)
async def test_an_unusable_summary_is_replaced_by_a_rule_based_one(
    gateway: TestGateway, model: CountingModel, reply: Step
) -> None:
    model.summary = reply
    told = await compress(gateway)
    assert "Compressed: " in told
    assert "No model could write a summary (" in told
    assert "so I made a list of the key points without a model" in told
    assert await gateway.rows(EVENTS) == [("manual", "compressed", None, "deterministic")]
    await gateway.ask("and now?")
    assert said(await view_of(gateway))[-2] == f"TICKET-{COUNT - 1}"


async def test_manual_compression_works_when_automatic_compression_is_off(talk: Talk) -> None:
    settings = ContextSettings(enabled=False)
    async with talk(length=8_192, context=settings, count=36) as gateway:
        assert await gateway.rows(EVENTS) == []
        assert "Compressed: " in await compress(gateway)


# ---- while it works


class SlowStop:
    """`/stop` whose transaction waits for the test, to simulate a slow database."""

    def __init__(self) -> None:
        self.decided, self.may_store = asyncio.Event(), asyncio.Event()
        others = [one for one in REGISTRY.commands if one.name != "stop"]
        self.registry = CommandRegistry([*others, Command("stop", CommandKind.CONTROL, self._handle, "")])

    async def _handle(self, request: CommandRequest) -> CommandResult:
        result = await stop(request)
        self.decided.set()
        await self.may_store.wait()
        return result


async def test_stopping_a_compression_keeps_the_rest_of_the_queue(store: Store, tmp_path: Path) -> None:
    slow, following, model = SlowStop(), Hang(), CountingModel()
    async with talking(store, tmp_path, model, count=COUNT, registry=slow.registry) as gateway:
        model.summary = hang = Hang()
        await gateway.say("/compress")
        await hang.begun.wait()
        await gateway.say("said meanwhile")
        model.script.append(following)
        await gateway.say("/stop")
        await slow.decided.wait()
        await settled()
        slow.may_store.set()
        await eventually(lambda: "Stopped." in str(gateway.adapter.texts()), "/stop")
        await following.begun.wait()
        following.release()
        assert "finally" in await gateway.replies(COUNT + 4)
        assert (await gateway.turns_of())[-1] == ("finished", "said meanwhile")


async def test_a_late_stop_for_a_turn_does_not_cancel_the_next_compression(store: Store, tmp_path: Path) -> None:
    slow, model = SlowStop(), CountingModel()
    async with talking(store, tmp_path, model, count=COUNT, registry=slow.registry) as gateway:
        await hanging(gateway, "the last answer")
        turn = gateway.lanes.running_in(DIRECT)
        assert turn is not None
        await gateway.say("/compress")
        await gateway.say("/stop")
        await slow.decided.wait()
        await store.write(finish, turn, "it was on its way to the database")
        slow.may_store.set()
        await eventually(lambda: "Compressed: " in str(gateway.adapter.texts()), "the compression")


async def test_in_a_group_only_the_sender_or_an_admin_stops_a_compression(talk: Talk, model: CountingModel) -> None:
    async with talk() as gateway:
        for number in range(COUNT):
            await gateway.ask(f"TICKET-{number}. {WORDS}", chat=GROUP)
        model.summary = hang = Hang(says="")
        await gateway.say("/compress", chat=GROUP)
        await hang.begun.wait()
        for sender, words in ((BOB, "Only the person who sent this command"), (BOSS, "Stopped.")):
            await gateway.say("/stop", chat=GROUP, sender=sender)
            await eventually(lambda words=words: any(words in text for text in gateway.adapter.texts(GROUP)), words)


# ---- back again


async def test_compress_undo_restores_the_view_and_keeps_later_messages(
    gateway: TestGateway, model: CountingModel
) -> None:
    before = await view_of(gateway)
    await compress(gateway)
    await gateway.ask("said since")
    told = await compress(gateway, "undo")
    after = await view_of(gateway)
    assert (after[: len(before)], said(after)[-1]) == (before, "said since")
    assert f"{len(after)} messages" in told
    [(key,)] = await gateway.rows("SELECT key FROM sessions ORDER BY id DESC LIMIT 1")
    assert f"`{key[:8]}`" in told
    assert "no compression" in await compress(gateway, "undo")
    assert await gateway.rows("SELECT end_reason FROM sessions ORDER BY id") == [("compression",), ("undo",), (None,)]
    await gateway.ask("and now?")
    assert len(model.turns[-1].transcript) == len(after) + 1


async def test_two_compressions_are_undone_one_at_a_time(gateway: TestGateway) -> None:
    first = await view_of(gateway)
    await compress(gateway)
    for number in range(12):
        await gateway.ask(f"MORE-{number}. {WORDS}")
    second = await view_of(gateway)
    await compress(gateway, "here 2")
    assert len(await view_of(gateway)) < len(second)
    assert "Compression undone" in await compress(gateway, "undo")
    assert await view_of(gateway) == second
    assert "Compression undone" in await compress(gateway, "UNDO")
    assert (await view_of(gateway))[: len(first)] == first
    assert said(await view_of(gateway))[-1] == "MORE-11"
    assert "no compression" in await compress(gateway, "undo")


async def test_compress_undo_is_refused_if_the_view_no_longer_fits(talk: Talk) -> None:
    async with talk(length=8_192, count=20) as gateway:
        await compress(gateway)
        for number in range(24):
            await gateway.ask(f"MORE-{number}. {WORDS}")
        before = await dump(gateway)
        events = len(await gateway.rows(EVENTS))
        for _ in range(events):
            told = await compress(gateway, "undo")
            if "no room" in told:
                break
            before = await dump(gateway)
        assert re.search(r"would use about [\d,]+ of 6,144 tokens", told)
        assert "Nothing was changed" in told
        assert await dump(gateway) == before
        assert (await gateway.ask("and now?")).startswith("echo: and now?")


async def test_undo_reaches_back_only_to_the_summary(gateway: TestGateway) -> None:
    """The kept head, before the summary, is not part of "the last three"."""
    await compress(gateway, "here 2")
    before = await view_of(gateway)
    told = await gateway.ask("/undo 3")
    assert told.startswith("Undid 2 exchanges, starting with “TICKET-22.")
    assert "`/compress undo`" in told
    assert await view_of(gateway) == before[:-4]
    assert "`/compress undo`" in await gateway.ask("/undo")
    assert await view_of(gateway) == before[:-4]
    assert "Compression undone" in await compress(gateway, "undo")
    assert "Undid 1 exchange, starting with “TICKET-21." in await gateway.ask("/undo")


async def test_compression_keeps_the_message_count(gateway: TestGateway) -> None:
    await compress(gateway)
    assert f"{2 * COUNT} messages" in await gateway.ask("/status")
    assert "goes back to the previous one" in await gateway.ask("/new")


async def test_the_undo_button_is_for_its_compression_only_and_vanishes(gateway: TestGateway) -> None:
    for number in range(12):
        await gateway.ask(f"question {number} " + "words " * 200)
    await gateway.ask("/compress")
    compressed = gateway.adapter.requests[-1]
    [button] = compressed.part.buttons
    assert button.label == "Undo"
    await gateway.ask("/compress here 1000")
    assert await gateway.rows("SELECT count(*) FROM live_buttons WHERE topic = 'undo'") == [(1,)], (
        "nothing was compressed"
    )
    assert "can no longer be undone" in await gateway.ask("/compress undo #0000abcd")
    assert "Compression undone" in await gateway.ask(button.command)
    await gateway.quiet()
    [edit] = [request for request in gateway.adapter.requests if request.replaces is not None]
    assert (edit.part.text, edit.part.buttons, edit.only_edits) == (compressed.part.text, (), True)
    assert "can no longer be undone" in await gateway.ask(button.command)
