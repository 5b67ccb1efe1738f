"""Plugin engines: the conversation continues whatever they do."""

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from agent.context.compressor import Compressor, Engine
from agent.context.cuts import SkipReason
from agent.context.estimate import Estimator
from agent.context.job import (
    Aborted,
    CompressionJob,
    CompressionRequest,
    ContinuedEvent,
    EndedEvent,
    NotNeeded,
    PreparedCompression,
    ReplyEvent,
)
from agent.context.limits import LimitSettings, limits_of
from agent.context.model_handle import ModelInfo
from agent.context.state import ContextState, stored_form
from agent.engines.adapter import MAX_HANDLES, PluginEngine
from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine
from agent.handoff import SUMMARY_PREFIX
from agent.model.base import ModelRequest, ToolSchema
from agent.tools.registry import ToolContext, ToolRegistry
from hermes_state import sessions
from hermes_state.compressions import Layer
from hermes_state.redaction import redact
from hermes_state.sessions import Session
from hermes_state.tool_runs import ToolRunState
from hermes_state.transcripts import NewMessage, View
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ChatKey,
    ChatKind,
    ConversationRef,
    EstimatedTokens,
    LineageId,
    Origin,
    Tokens,
    ToolCall,
    Transcript,
)
from tests.agent.conftest import Chat, FixedClock
from tests.agent.context.contexts import SetClock
from tests.agent.context.rows import answer, human, session
from tests.agent.engines.examples import KeepNewest, conversation

LIMITS = limits_of(8_192, 2_048, LimitSettings())
ROWS = conversation(8)
CLOCK = FixedClock()
CONVERSATION = ConversationRef(
    chat_id=ChatId(1),
    lineage_id=LineageId(1),
    chat=ChatKey(platform="telegram", account="telegram", chat_ref="1"),
    chat_kind=ChatKind.DIRECT,
)
EngineT = TypeVar("EngineT", bound=ContextEngine)
LAB = ModelInfo(name="lab", context_length=Tokens(8_192), api_key="key")


def job(
    rows: Transcript = ROWS,
    *,
    tokens: int = 5_000,
    layer: Layer = "in_loop",
    must_shrink: bool = False,
    at: Session | None = None,
    **changes: Any,
) -> CompressionJob:
    view = View(session=at or session(), transcript=rows)
    made = CompressionJob(
        conversation=CONVERSATION,
        view=view,
        request=ModelRequest(system="You help.", transcript=rows, max_output_tokens=2_048),
        limits=LIMITS,
        threshold=LIMITS.threshold,
        layer=layer,
        focus=None,
        keep_turns=None,
        tokens_before=EstimatedTokens(tokens),
        must_shrink=must_shrink,
        model=LAB,
        estimator=Estimator(),
    )
    return replace(made, **changes)


built_in = Compressor(redact=redact, clock=CLOCK)
SCHEMAS = [ToolSchema(**schema) for schema in KeepNewest().get_tool_schemas()]


def plugin(make: Callable[[], ContextEngine] = KeepNewest, **changes: Any) -> PluginEngine:
    values: dict[str, Any] = {"model": LAB, "clock": CLOCK, **changes}
    return PluginEngine("theirs", make, fallback=built_in, redact=redact, **values)


def remembered(make: Callable[[], EngineT]) -> tuple[list[EngineT], PluginEngine]:
    """The engine objects of the conversations, and the plugin engine that manages them."""
    made: list[EngineT] = []

    def remember() -> EngineT:
        made.append(make())
        return made[-1]

    return made, plugin(remember)


async def prepared(
    engine: Engine, wanted: CompressionJob, state: ContextState | None = None
) -> tuple[PreparedCompression | NotNeeded | Aborted, ContextState]:
    return await engine.prepare(wanted, state or ContextState())


async def compressed(engine: Engine, wanted: CompressionJob) -> PreparedCompression:
    result, _ = await engine.prepare(wanted, ContextState())
    assert isinstance(result, PreparedCompression)
    return result


async def aborted(engine: Engine, wanted: CompressionJob) -> str:
    """The reason of an aborted compression."""
    result, _ = await engine.prepare(wanted, ContextState())
    assert (type(result), result.kind) == (Aborted, "engine")
    return result.reason


def made_once(engine: ContextEngine) -> Callable[[], ContextEngine]:
    return lambda: engine


def engine_that(compress: Callable[..., Any], **methods: Any) -> Callable[[], ContextEngine]:
    """An engine with this function as its `compress`."""
    body = {"compress": lambda self, messages, current_tokens=None, focus_topic=None: compress(messages), **methods}
    return type("Made", (KeepNewest,), body)


# ---- compressing


async def test_an_engine_for_lists_compresses_rows() -> None:
    recorder = KeepNewest()
    result, state = await prepared(plugin(made_once(recorder)), job(focus="foxes"))
    assert isinstance(result, PreparedCompression)
    handoff, *rest = result.context
    assert handoff.origin is Origin.SUMMARY
    assert handoff.text.startswith("Earlier: 24 messages about foxes.")
    assert rest == [row.id for row in ROWS[-8:]]
    assert (result.model, result.summarised, result.summary_kind) == ("theirs", 24, "model")
    assert result.tokens_after < 5_000
    assert state == ContextState()
    assert ("compress", 33, 5_000, "foxes") in recorder.calls


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (engine_that(list), "returned the messages unchanged"),
        (engine_that(lambda messages: [{"role": "user", "content": "foxes " * 20_000}]), "returned a list that is no"),
        (engine_that(lambda messages: 1 / 0), "crashed (ZeroDivisionError)"),
        (engine_that(lambda messages: "nothing"), "returned an unusable list"),
    ],
)
@pytest.mark.parametrize("must_shrink", [False, True])
async def test_the_log_has_the_reason_for_a_skipped_compression(
    made: Callable[[], ContextEngine], reason: str, must_shrink: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    await prepared(plugin(made), job(must_shrink=must_shrink))
    events = ("engine.replaced",) if must_shrink else ("engine.no_change", "engine.failed")
    lines = [line for line in capsys.readouterr().out.splitlines() if any(event in line for event in events)]
    assert len(lines) == 1
    assert reason in re.sub(r"\x1b\[[\d;]*m", "", lines[0])


async def test_without_room_an_engine_gets_at_least_its_own_threshold() -> None:
    """Like `lossless-hermes-py` 0.1.6, whose threshold is three quarters of the window, above the gateway's limits."""

    class Hesitant(KeepNewest):
        def compress(
            self, messages: list[dict[str, Any]], current_tokens: int | None = None, focus_topic: str | None = None
        ) -> list[dict[str, Any]]:
            assert current_tokens is not None
            if current_tokens < self.threshold_tokens:
                return messages
            return super().compress(messages, current_tokens, focus_topic)

    assert (await compressed(plugin(Hesitant), job(must_shrink=True))).model == "theirs"


async def test_the_built_in_engine_works_as_a_plugin() -> None:
    result = await compressed(plugin(lambda: ContextCompressor(context_length=8_192)), job())
    [handoff] = [item for item in result.context if isinstance(item, NewMessage)]
    assert handoff.text.startswith("No summary could be made")
    assert SUMMARY_PREFIX not in handoff.text
    kept = [item for item in result.context if not isinstance(item, NewMessage)]
    assert kept == sorted(kept)
    newest = max(index for index, row in enumerate(ROWS) if row.origin is Origin.HUMAN)
    assert set(kept) >= {row.id for row in ROWS[newest:]}


async def test_the_longest_idle_engines_are_dropped_and_made_again() -> None:
    made, engine = remembered(KeepNewest)
    for number in range(MAX_HANDLES + 2):
        at = session(number + 1, lineage_id=LineageId(number + 1), reported_prompt_tokens=1)
        await engine.on_event(ReplyEvent(session=at, usage=CanonicalUsage(input=1)))
    await engine.on_event(ReplyEvent(session=session(reported_prompt_tokens=1), usage=CanonicalUsage(input=2)))
    assert (len(made), made[-1].calls) == (MAX_HANDLES + 3, [("start", "s1", "resumed", None), ("usage", 2)])


async def test_an_async_engine_is_awaited() -> None:
    class Later(KeepNewest):
        async def compress(self, messages: list[Any], *rest: Any) -> list[Any]:  # type: ignore[override]  # allowed
            await asyncio.sleep(0)
            return super().compress(messages, *rest)

        async def should_compress(self, prompt_tokens: int | None = None) -> bool:  # type: ignore[override]
            return True

    engine = plugin(partial(Later))  # a factory without a name
    assert await engine.request(job(tokens=10)) == CompressionRequest(reason="threshold")
    await compressed(engine, job())


async def test_a_sync_engine_does_not_block_the_loop() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slowly(messages: list[Any]) -> list[Any]:
        entered.set()
        assert leave.wait(10)
        return messages[-1:]

    task = asyncio.create_task(prepared(plugin(engine_that(slowly)), job()))
    assert await asyncio.to_thread(entered.wait, 10)
    leave.set()
    result, _ = await task
    assert isinstance(result, PreparedCompression)


async def test_an_engine_that_changes_its_list_changes_no_row() -> None:
    def ruthless(messages: list[Any]) -> list[Any]:
        for message in messages:
            message["content"] = "gone"
        del messages[1:-1]
        return messages

    before = tuple(row.text for row in ROWS)
    result, _ = await prepared(plugin(engine_that(ruthless)), job())
    assert tuple(row.text for row in ROWS) == before
    assert isinstance(result, PreparedCompression)
    newest = max(index for index, row in enumerate(ROWS) if row.origin is Origin.HUMAN)
    assert ROWS[newest].id in result.context


BROKEN = [lambda _: 1 / 0, lambda _: exec("raise SystemExit"), lambda _: next(iter(()))]


@pytest.mark.parametrize("broken", BROKEN, ids=["ZeroDivisionError", "SystemExit", "StopIteration"])
async def test_an_engine_that_raises_aborts(broken: Callable[..., Any]) -> None:
    assert "crashed" in await aborted(plugin(engine_that(broken)), job())


@pytest.mark.parametrize(
    "returned", [None, 7, [], ["x"], [{"role": "tool", "tool_call_id": "?", "content": "r"}], {"role": "user"}, [{}]]
)
async def test_an_illegal_list_aborts_and_changes_nothing(returned: object) -> None:
    engine = plugin(engine_that(lambda messages: returned))
    result, state = await prepared(engine, job())
    assert (type(result), result.kind) == (Aborted, "engine")
    assert "theirs returned an unusable list" in result.reason
    assert engine.is_cooling("in_loop", (), state)
    assert engine.is_cooling("hygiene", (), state) is False


async def test_an_engine_that_hangs_is_dropped_and_made_again_when_its_call_has_ended() -> None:
    leave, made, entered = threading.Event(), list[ContextEngine](), list[threading.Thread]()

    def hang(*_: object) -> list[Any]:
        entered.append(threading.current_thread())
        leave.wait(30)
        return []

    def make() -> ContextEngine:
        made.append(engine_that(hang, should_compress=hang, update_from_response=hang)())
        return made[-1]

    engine = plugin(make, compress_seconds=0.02, quick_seconds=0.02)
    assert "did not answer within 0.02 seconds" in await aborted(engine, job())
    for _ in range(3):
        assert "has not returned from an earlier call" in await aborted(engine, job())
    assert await engine.request(job(tokens=10)) is None
    assert await engine.request(job(tokens=LIMITS.threshold)) == CompressionRequest(reason="threshold")
    assert (len(made), len(entered)) == (1, 1), "a conversation uses at most one thread"
    other = session(2, lineage_id=LineageId(2))
    assert await engine.request(job(tokens=10, at=other)) is None
    assert len(made) == 2, "another conversation has its own engine"
    leave.set()
    await asyncio.gather(*(asyncio.to_thread(thread.join, 10) for thread in entered))
    assert "it is empty" in await aborted(engine, job())
    assert len(made) == 3
    await engine.close()


async def test_an_event_is_delivered_after_a_hanging_call_has_ended() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    def end(*_: object) -> None:
        loop.call_soon_threadsafe(ended.set)

    loop = asyncio.get_running_loop()
    engine = plugin(engine_that(list, update_from_response=hang, on_session_end=end), quick_seconds=0.02)
    replied = asyncio.create_task(engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=1))))
    await entered.wait()
    await engine.on_event(EndedEvent(view=View(session=session(), transcript=ROWS), was_reset=False))
    await replied
    await asyncio.wait_for(ended.wait(), 10)
    await engine.close()


async def test_an_async_call_that_cancels_itself_does_not_cancel_its_caller() -> None:
    async def cancelled(messages: list[Any]) -> list[Any]:
        raise asyncio.CancelledError

    assert "cancelled its own call" in await aborted(plugin(engine_that(cancelled)), job())


async def test_an_async_engine_that_ignores_its_cancellation_is_abandoned() -> None:
    leave = asyncio.Event()

    async def stubborn(messages: list[Any]) -> list[Any]:
        while not leave.is_set():
            with suppress(asyncio.CancelledError):
                await leave.wait()
        return messages

    engine = plugin(engine_that(stubborn), compress_seconds=0.02)
    await aborted(engine, job())
    leave.set()
    await engine.close()


async def test_an_engines_cooldown_starts_at_its_failure() -> None:
    clock = SetClock()

    def slow(messages: list[Any]) -> list[Any]:
        clock.pass_seconds(110)
        raise RuntimeError("out of order")

    _, state = await prepared(plugin(engine_that(slow), clock=clock), job())
    [cooldown] = state.cooldowns.values()
    assert cooldown.until == clock.now() + 60_000


async def test_changed_settings_end_an_engines_cooldown() -> None:
    broken = engine_that(lambda messages: None)
    before, after = plugin(broken, mark="a1"), plugin(broken, mark="b2")
    _, state = await prepared(before, job())
    assert before.is_cooling("in_loop", (), state)
    assert not after.is_cooling("in_loop", (), state)
    _, state = await prepared(after, job(), state)
    [(key, cooldown)] = state.cooldowns.items()
    assert (key, cooldown.failures) == ("loop:engine:theirs:b2", 1)


@pytest.mark.parametrize("returned", ["the same", "longer"])
async def test_without_room_the_built_in_engine_replaces_a_useless_compression(returned: str) -> None:
    def of_no_use(messages: list[Any]) -> list[Any]:
        return messages if returned == "the same" else [{"role": "user", "content": "words " * 9_000}, messages[-1]]

    result, state = await prepared(plugin(engine_that(of_no_use)), job(must_shrink=True))
    assert (result.summary_kind, state.strikes) == ("deterministic", 0)


async def test_a_success_clears_an_engines_failures() -> None:
    _, failed = await prepared(plugin(engine_that(lambda messages: None)), job())
    result, state = await prepared(plugin(engine_that(lambda messages: messages[-4:])), job(), failed)
    assert (bool(failed.cooldowns), type(result), state.cooldowns) == (True, PreparedCompression, {})


async def test_without_room_an_engine_with_a_hanging_call_is_not_asked() -> None:
    entered, leave, calls = threading.Event(), threading.Event(), list[threading.Thread]()

    def hanging(messages: list[Any]) -> list[Any]:
        calls.append(threading.current_thread())
        entered.set()
        leave.wait(30)
        return messages

    engine = plugin(engine_that(hanging))
    task = asyncio.create_task(prepared(engine, job(must_shrink=True)))
    assert await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.wait({task})
    try:
        for rows in (ROWS, (*ROWS, human("and what now?"))):
            assert await engine.request(job(rows, tokens=10)) is None
            result, _ = await prepared(engine, job(rows, must_shrink=True))
            assert isinstance(result, PreparedCompression)
        assert len(calls) == 1
        leave.set()
        await asyncio.to_thread(calls[0].join, 10)
        await prepared(engine, job(must_shrink=True))
        assert len(calls) == 2
    finally:
        leave.set()
    await engine.close()


async def test_nobody_waits_for_a_busy_engine() -> None:
    entered, leave = threading.Event(), threading.Event()
    recorder = KeepNewest()

    def slowly(messages: list[Any], current_tokens: int | None = None, focus_topic: str | None = None) -> list[Any]:
        entered.set()
        assert leave.wait(10)
        return messages[-4:]

    recorder.compress = slowly  # type: ignore[method-assign]
    engine = plugin(made_once(recorder))
    task = asyncio.create_task(prepared(engine, job()))
    assert await asyncio.to_thread(entered.wait, 10)
    assert await engine.request(job(tokens=10)) is None
    usage = CanonicalUsage(input=11, output=3)
    await engine.on_event(ReplyEvent(session=session(), usage=usage))
    assert recorder.last_prompt_tokens == 0
    second, _ = await prepared(engine, job())
    assert isinstance(second, Aborted)
    assert "busy" in second.reason
    leave.set()
    first, _ = await task
    assert isinstance(first, PreparedCompression)
    assert (recorder.last_prompt_tokens, recorder.last_completion_tokens, recorder.last_total_tokens) == (11, 3, 14)


LONGER = [{"role": "user", "content": "words " * 9_000}]
USELESS = pytest.mark.parametrize(
    ("useless", "why"),
    [(list, SkipReason.UNCHANGED), (lambda rows: [*LONGER, rows[-1]], SkipReason.NOT_SMALLER)],
    ids=["the same", "longer"],
)


@USELESS
async def test_a_list_that_is_not_smaller_is_refused_and_counts_as_a_strike(useless: Any, why: SkipReason) -> None:
    result, state = await prepared(plugin(engine_that(useless)), job())
    assert (result.why, state.strikes) == (why, 1)


async def test_nothing_is_compressed_while_a_tool_runs() -> None:
    result, _ = await prepared(plugin(), job((*ROWS, human("go"), answer(None, "open"))))
    assert result.why is SkipReason.TOOL_RUNS


async def test_the_built_in_engine_handles_keep_turns() -> None:
    recorder = KeepNewest()
    engine = plugin(made_once(recorder))
    result = await compressed(engine, job(keep_turns=1))
    assert (result.summary_kind, recorder.calls) == ("deterministic", [])
    assert engine.preview(job()).why is SkipReason.NO_PREVIEW


# ---- the decision to compress


async def test_the_engine_decides_until_the_window_is_full() -> None:
    engine = plugin()
    threshold = 8_192 * 3 // 4
    assert await engine.request(job(tokens=LIMITS.threshold)) is None
    late = plugin(engine_that(list, should_compress=lambda *_: False))
    assert await late.request(job(tokens=LIMITS.urgent - 1)) is None
    assert await late.request(job(tokens=LIMITS.urgent)) == CompressionRequest(reason="window")
    assert threshold > LIMITS.urgent
    early = plugin(engine_that(list, threshold_percent=0.1))
    assert await early.request(job(tokens=900)) == CompressionRequest(reason="threshold")


async def test_preflight_and_has_content_receive_the_list() -> None:
    seen: list[int] = []

    def preflight(self: object, messages: list[Any]) -> bool:
        seen.append(len(messages))
        return True

    engine = plugin(engine_that(list, should_compress_preflight=preflight))
    assert await engine.request(job(tokens=10, layer="in_loop")) is None
    assert await engine.request(job(tokens=10, layer="preflight")) == CompressionRequest(reason="preflight")
    assert seen == [33]
    empty = engine_that(list, should_compress=lambda *_: True, has_content_to_compress=lambda *_: False)
    assert await plugin(empty).request(job(tokens=10)) is None


class Vague:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


@pytest.mark.parametrize("decide", [lambda *_: 1 / 0, lambda *_: Vague()], ids=["raises", "returns no boolean"])
async def test_the_gateway_decides_if_should_compress_fails(decide: Callable[..., Any]) -> None:
    engine = plugin(engine_that(list, should_compress=decide))
    assert await engine.request(job(tokens=LIMITS.threshold - 1)) is None
    assert await engine.request(job(tokens=LIMITS.threshold)) == CompressionRequest(reason="threshold")


async def test_an_engine_may_request_a_compression_with_a_reason_and_a_focus() -> None:
    recorder = KeepNewest()
    engine = plugin(made_once(recorder))
    recorder.request_compression("a chapter\nends", focus_topic="the  schema " + "x" * 900)
    wish = await engine.request(job(tokens=10))
    assert wish.reason == "a chapter ends"
    assert wish.focus.startswith("the schema x")
    assert len(wish.focus) == 500
    assert await engine.request(job(tokens=10)) is None


async def test_the_threshold_comes_from_the_status_up_to_the_hygiene_limit() -> None:
    class Early(KeepNewest):
        threshold_percent = 0.25

        def update_from_response(self, usage: dict[str, Any]) -> None:
            super().update_from_response(usage)
            self.threshold_tokens = usage["prompt_tokens"] * 2

    engine = plugin(Early)
    assert engine.threshold(LineageId(1), LIMITS) == LIMITS.hygiene, "its status is not known yet"
    await engine.request(job())
    assert engine.threshold(LineageId(1), LIMITS) == 2_048
    await engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=1_500)))
    assert engine.threshold(LineageId(1), LIMITS) == 3_000
    await engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=8_000)))
    assert engine.threshold(LineageId(1), LIMITS) == LIMITS.hygiene


@pytest.mark.parametrize(
    "status", [None, {}, {"threshold_tokens": "many"}, {"threshold_tokens": float("inf")}, {"threshold_tokens": -1}]
)
async def test_a_status_without_a_threshold_is_accepted(status: object) -> None:
    engine = plugin(engine_that(lambda messages: messages[-4:], get_status=lambda self: status))
    assert await engine.request(job(tokens=10)) is None
    assert engine.threshold(LineageId(1), LIMITS) == LIMITS.hygiene
    broken = plugin(engine_that(lambda messages: messages[-4:], get_status=lambda self: 1 / 0))
    await compressed(broken, job())


# ---- events


async def test_each_engine_receives_its_conversation_from_start_to_end() -> None:
    made, engine = remembered(KeepNewest)
    await engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=10, cache_read=60, output=4)))
    await prepared(engine, job())
    child = session(2, parent=1)
    await engine.on_event(ContinuedEvent(child=child))
    await engine.on_event(ContinuedEvent(child=child))
    await engine.on_event(EndedEvent(view=View(session=child, transcript=ROWS), was_reset=True))
    assert [call for call in made[0].calls if call[0] != "compress"] == [
        ("start", "s1", "started", None),
        ("usage", 70),
        ("start", "s2", "compression", "s1"),
        ("end", "s2", 33),
        ("reset",),
    ]
    assert (made[0].context_length, len(made)) == (8_192, 1)
    other = session(9, lineage_id=LineageId(9), reported_prompt_tokens=5)
    await engine.on_event(ReplyEvent(session=other, usage=CanonicalUsage(input=1)))
    assert made[1].calls == [("start", "s9", "resumed", None), ("usage", 1)]


async def test_an_engine_learns_of_an_undone_compression() -> None:
    recorder = KeepNewest()
    engine = plugin(made_once(recorder))
    await engine.request(job())
    undone = stored_form(ContextState().undone(5_000))
    await engine.request(job(at=session(3, parent=2, context_state=undone)))
    assert ("start", "s3", "undo", "s1") in recorder.calls


async def test_a_learned_window_is_sent_as_a_model_update() -> None:
    made, engine = remembered(KeepNewest)
    other = session(9, lineage_id=LineageId(9))
    await engine.request(job())
    await engine.request(job(at=other))
    await engine.request(job(limits=limits_of(4_096, 1_024, LimitSettings())))
    for at in (session(), other):
        await engine.on_event(ReplyEvent(session=at, usage=CanonicalUsage(input=1)))
    assert [(one.context_length, one.threshold_tokens) for one in made] == [(4_096, 3_072), (8_192, 6_144)]


async def test_an_engine_is_dropped_at_the_end_even_if_it_crashes() -> None:
    made, engine = remembered(engine_that(list, on_session_end=lambda *_: 1 / 0))
    await engine.request(job())
    await engine.on_event(EndedEvent(view=View(session=session(), transcript=ROWS), was_reset=False))
    await engine.request(job())
    assert len(made) == 2


@pytest.mark.parametrize(
    "make", [engine_that(list, update_from_response=lambda *_: 1 / 0), lambda: None, lambda: 1 / 0], ids=[0, 1, 2]
)
async def test_events_never_raise(make: Callable[[], Any]) -> None:
    await plugin(make).on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=1)))


async def test_a_plugin_learns_of_compressions_by_the_built_in_engine() -> None:
    recorder = KeepNewest()
    engine = plugin(made_once(recorder))
    await engine.request(job())
    result, state = await prepared(engine, job(keep_turns=1))
    assert isinstance(result, PreparedCompression)
    await engine.request(job(at=session(2, parent=1, context_state=stored_form(state.compressed(5_000)))))
    assert ("start", "s2", "compression", "s1") in recorder.calls


async def test_events_left_by_a_cancellation_are_delivered_later() -> None:
    asked, answer_now, told, go_on, all_told = (threading.Event() for _ in range(5))
    usages = list[int]()

    class Slow(KeepNewest):
        def should_compress(self, prompt_tokens: int | None = None) -> bool:
            asked.set()
            assert answer_now.wait(10)
            return False

        def update_from_response(self, usage: dict[str, Any]) -> None:
            usages.append(usage["prompt_tokens"])
            told.set()
            assert go_on.wait(10)
            if len(usages) == 3:
                all_told.set()

    engine = plugin(Slow)
    task = asyncio.create_task(engine.request(job(tokens=10)))
    assert await asyncio.to_thread(asked.wait, 10)
    for tokens in (1, 2):
        await engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=tokens)))
    answer_now.set()
    assert await asyncio.to_thread(told.wait, 10)
    task.cancel()
    await asyncio.wait({task})
    go_on.set()
    await engine.on_event(ReplyEvent(session=session(), usage=CanonicalUsage(input=3)))
    assert await asyncio.to_thread(all_told.wait, 10)
    assert usages == [1, 2, 3]


async def test_late_events_do_not_return_the_engine_to_an_old_session() -> None:
    recorder = KeepNewest()
    engine = plugin(made_once(recorder))
    await engine.request(job(at=session(2, parent=1)))
    await engine.on_event(ReplyEvent(session=session(1), usage=CanonicalUsage(input=7)))
    assert recorder.calls == [("start", "s2", "resumed", None), ("usage", 7)]


async def test_a_failed_model_update_is_repeated() -> None:
    class Late(KeepNewest):
        tries = 0

        def update_model(self, model: str, context_length: int, *args: str, **kwargs: str) -> None:
            Late.tries += 1
            if Late.tries == 1:
                raise ConnectionError("no prices yet")
            super().update_model(model, context_length)

    engine = plugin(Late)
    assert await engine.request(job(tokens=10)) is None
    assert await engine.request(job(tokens=10)) is None, "its threshold is no longer 0"


# ---- tools


@pytest.fixture
async def context(chat: Chat) -> ToolContext:
    turn = await chat.start("hello")
    return ToolContext.of(turn, chat.store)


CALL = ToolCall(id="c", name="look_back", arguments='{"word": "schema"}')


async def test_tools_of_an_engine_are_tools_of_the_agent(context: ToolContext) -> None:
    engine = plugin(schemas=SCHEMAS)
    tools = ToolRegistry(engine.tools())
    outcome = await tools.run(CALL, tools.check(CALL), context)
    assert (outcome.text, outcome.state) == ('{"found": "schema"}', ToolRunState.DONE)
    tip = await context.store.read(sessions.load_tip, context.lineage_id)
    wish = CompressionRequest(reason="the model looks back", focus="schema")
    assert await engine.request(job(at=tip, tokens=10)) == wish


async def test_a_crashing_tool_of_an_engine_is_an_error_for_the_model(context: ToolContext) -> None:
    broken = engine_that(list, handle_tool_call=lambda *_, **__: 1 / 0)
    tools = ToolRegistry(plugin(broken, schemas=SCHEMAS).tools())
    outcome = await tools.run(CALL, tools.check(CALL), context)
    assert outcome.state is ToolRunState.FAILED
    assert "theirs crashed (ZeroDivisionError)" in outcome.text


# ---- models


class Told(KeepNewest):
    """Remembers the models that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[tuple[str, int, str]] = []

    def update_model(
        self, model: str, context_length: int, base_url: str = "", api_key: str = "", provider: str = ""
    ) -> None:
        super().update_model(model, context_length, base_url, api_key, provider)
        self.models.append((model, context_length, provider))


async def test_an_engine_receives_the_new_model_of_its_conversation() -> None:
    engines, engine = remembered(Told)
    small = ModelInfo(name="small", context_length=Tokens(8_192), provider="responses")
    for model in (LAB, small, small, LAB):
        await engine.request(job(tokens=10, model=model))
    [engine_of_the_conversation] = engines
    assert engine_of_the_conversation.models == [("lab", 8_192, ""), ("small", 8_192, "responses"), ("lab", 8_192, "")]
