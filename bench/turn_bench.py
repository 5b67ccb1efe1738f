"""Measure the cost of checking the context window in a turn without compression: `make bench ARGS=turn`.

It runs turns of a real agent on a real store with a model that answers at once, and compares them with an agent that
does not measure its prompts.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection

from msgspec.structs import replace

from agent.context.controller import ContextController
from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import LearnedProfile, ModelHandle, ModelInfo
from agent.context.pending import CompressionRegistry
from agent.model.base import FinishReason, ModelLimits, ModelReply, ModelRequest
from agent.model.caps import StoreLedger
from agent.model.client import ModelClient
from agent.model.usage import Size
from agent.prompt import PromptBuilder
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from agent.turn import Agent
from bench.compression_bench import heartbeat, prepared
from bench.conversation import Conversation, as_new_message
from bench.measure import Measure
from hermes_state import chats, inbox, journal
from hermes_state.compressions import Layer
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.sessions import ensure_active
from hermes_state.store.writer import Store
from hermes_state.transcripts import View, append
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    CanonicalUsage,
    ChatKey,
    ChatKind,
    ConversationRef,
    EstimatedTokens,
    Millis,
    SystemClock,
    Tokens,
    Transcript,
    UserRef,
)

ROWS = (20, 2_000)
STALL_BAR = 10.0
"""Maximum stall of the event loop, in milliseconds."""
OVERHEAD_BAR = 3.0
"""Maximum CPU milliseconds per turn: a third of the time allowed for passing a long prompt to the SDK."""
_KEY = ChatKey(platform="local", account="local", chat_ref="bench")
_SENDER = UserRef("local:bench")
_NOW = Millis(0)


class InstantModel:
    """Answers at once, and reports a plausible token count."""

    route = "bench"
    name = "instant"
    prompt_tokens = 1_000

    async def fetch_limits(self) -> ModelLimits | None:
        return None

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Return the same text each time."""
        usage = CanonicalUsage(input=self.prompt_tokens, output=5)
        return ModelReply(text="All is well.", finish=FinishReason.STOP, usage=usage)

    async def close(self) -> None:
        """Do nothing, because there are no connections."""


def _show_nothing(text: str) -> None:
    pass


def run(quick: bool) -> list[Measure]:
    """Measure the overhead per turn in short and in long conversations."""
    overheads = [asyncio.run(_overhead(rows, 40 if quick else 120)) for rows in ROWS]
    return [*overheads, asyncio.run(_stall(ROWS[-1], 5))]


async def _overhead(count: int, rounds: int) -> Measure:
    """Measure the CPU time of one turn with its model call, minus that of an agent that measures nothing."""
    with tempfile.TemporaryDirectory(prefix="turn-bench-") as folder:
        store = await SqliteStore.open(Path(folder) / "turns.db", synchronous="NORMAL")
        turn = await store.write(started_turn, Conversation().transcript(count))
        model = InstantModel()
        agents, handle = [_agent(store), _agent(store)], _handle(store, model)
        model.prompt_tokens = (await agents[0].context.status(turn.conversation, handle)).prompt
        _measure_nothing(agents[1])
        times: tuple[list[float], list[float]] = ([], [])
        for agent in agents:
            await agent.run(turn, _show_nothing, handle)
        gc.collect()
        for _ in range(rounds):
            for agent, took in zip(agents, times, strict=True):
                began = time.process_time()
                await agent.run(turn, _show_nothing, handle)
                took.append(time.process_time() - began)
        for agent in agents:
            await agent.close()
        await store.close()
    whole, bare = (statistics.median(took) * 1e3 for took in times)
    print(f"{count:,} messages: {whole:.2f} ms of processor time for a turn, {bare:.2f} ms of them without the window")
    return Measure(
        name=f"window of {count:,} messages, for each model call", ours=whole - bare, unit="ms", bar=OVERHEAD_BAR
    )


async def _stall(count: int, rounds: int) -> Measure:
    """Measure how long other tasks wait during the first turn of a conversation, which counts all its tokens.

    The best of several rounds counts. Our own code blocks the loop in every round, other programs do not.
    """
    longest = []
    with tempfile.TemporaryDirectory(prefix="turn-bench-") as folder, prepared():
        for number in range(rounds):
            store = await SqliteStore.open(Path(folder) / f"{number}.db", synchronous="NORMAL")
            # Each round uses a new conversation, because the token counts of known rows are cached.
            turn = await store.write(started_turn, Conversation(number).transcript(count))
            agent, handle = _agent(store), _handle(store, InstantModel())
            async with heartbeat() as lags:
                await agent.run(turn, _show_nothing, handle)
            longest.append(max(lags))
            await agent.close()
            await store.close()
    name = f"first turn with {count:,} messages: longest stall of the event loop"
    return Measure(name=name, ours=min(longest) * 1e3, unit="ms", bar=STALL_BAR)


def _agent(store: Store) -> Agent:
    clock = SystemClock()
    return Agent(
        store=store,
        prompts=PromptBuilder(tools=ToolRegistry(recall_tools())),
        clock=clock,
        pending=CompressionRegistry(),
    )


def _handle(store: Store, model: InstantModel) -> ModelHandle:
    clock, sizes = SystemClock(), ModelLimits(context_length=Tokens(10_000_000), max_output_tokens=Tokens(8_000))
    client = ModelClient(model, StoreLedger(store, clock))
    return ModelHandle(
        client=client,
        profile=LearnedProfile(store, client.route, client.name, sizes, clock),
        info=ModelInfo(name=client.name, context_length=Tokens(10_000_000)),
    )


class _NoController(ContextController):
    """Replaces an agent's handling of the context window. It creates the request, but measures nothing."""

    async def make_room(
        self,
        conversation: ConversationRef,
        model: ModelHandle,
        view: View,
        layer: Layer,
        known: MeasuredPrompt | None = None,
    ) -> MeasuredPrompt:
        limits = model.limits
        request = await self.prompts.request_for(
            conversation,
            view,
            maker=model.maker,
            images=None,
            input_window=limits.input_window,
            threshold=limits.threshold,
        )
        return MeasuredPrompt(
            conversation=conversation,
            view=view,
            request=replace(request, max_output_tokens=model.output_limit(EstimatedTokens(0), conversation.lineage_id)),
            size=Size(0, 0),
            estimated=EstimatedTokens(0),
            limits=limits,
            model_limits=limits,
            model=model,
        )

    async def after_reply(self, *args: object, **options: object) -> None:
        """Learn nothing."""


def _measure_nothing(agent: Agent) -> None:
    known = agent.context
    agent.context = _NoController(
        store=known.store,
        views=known.views,
        prompts=known.prompts,
        engine=known.engine,
        pending=known.pending,
        listeners=known.listeners,
        clock=known.clock,
    )


def started_turn(db: Connection, rows: Transcript) -> RunningTurn:
    """Return a new turn after a conversation with these rows."""
    chat_id = chats.ensure_chat(db, _KEY, ChatKind.LOCAL, None, _NOW)
    session = ensure_active(db, chat_id, _NOW)
    for row in rows[:-1]:
        append(db, session.id, as_new_message(row), _NOW)
    asked = NewInboxRow(
        platform=_KEY.platform,
        account=_KEY.account,
        event_ref="1",
        chat_id=chat_id,
        kind=InboxKind.MESSAGE,
        mode=InboxMode.QUEUE,
        sender_ref=_SENDER,
        sender_name="Bench",
        message_ref="1",
        payload=InboxPayload(text="How are you?"),
        expects_more=False,
        sent_at=_NOW,
    )
    inbox_id = inbox.insert(db, asked, _NOW)
    assert inbox_id is not None
    return journal.start_turn(db, chat_id, [inbox_id], {}, _NOW)
