"""A month of chat through the real `Agent` and `Store` with a virtual clock: nothing sleeps, and waits are counted."""

import asyncio
import random
import selectors
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar

from agent.context.job import Compressed
from agent.context.limits import ContextSettings
from agent.context.model_handle import SummaryRoute
from agent.handoff import END_MARKER
from agent.memory.notes import MemoryDirectory
from agent.memory_flush import MemoryWriter
from agent.model.base import FinishReason, ModelReply, ModelRequest
from agent.model.wire import WireStyle, chat_messages
from agent.tools.memory import MEMORY
from agent.tools.offers import OfferRegistry
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolContext, ToolRegistry
from bench.policies import Meter, StandIn, StandInKind, Turn, piece_of, tokens
from hermes_state import journal
from hermes_state.engines.sqlite.connections import StoreConnection
from hermes_state.journal import PreparedMessage
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import CanonicalUsage, ChatKey, Document, MessageBody, Millis, Tokens, ToolCall, ToolEffect
from tests.agent.conftest import Chat, FixedClock
from tests.agents import SingleModelAgent, SingleModelContext, TurnSettings
from tests.clients import client_of

T = TypeVar("T")
ANSWER_SECONDS, AUXILIARY_SECONDS = 1.0, (20.0, 40.0)
"""Seconds that a model call takes: one for a turn, and the range for any other call (a summary or memory notes)."""


class VirtualLoop(asyncio.SelectorEventLoop, FixedClock):
    """Event loop that moves its time to the next timer when no task and no thread is running."""

    def __init__(self) -> None:
        self.running, self.seconds, loop = 0, 0.0, self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                ready = super().select(0)
                if ready or timeout == 0:
                    return ready
                if loop.running or timeout is None:
                    return super().select(5.0)
                loop.seconds += timeout
                return []

        super().__init__(Selector())

    def time(self) -> float:
        return self.seconds

    def now(self) -> Millis:
        return Millis(1_767_225_600_000 + int(self.seconds * 1_000))

    def run_in_executor(  # type: ignore[override]  # typed by its arguments there
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return self.counted(super().run_in_executor(executor, func, *args))

    def counted(self, job: asyncio.Future[T]) -> asyncio.Future[T]:
        """Stop the clock until a thread's job has ended."""

        def end(_: object) -> None:
            self.running -= 1

        self.running += 1
        job.add_done_callback(end)
        return job


def virtual(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, run on a virtual clock."""
    methods = {name: getattr(StoreConnection, name) for name in ("run", "close")}  # these wait for a thread
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)

        def counted(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
            async def call(*args: Any, **options: Any) -> Any:
                return await loop.counted(asyncio.ensure_future(method(*args, **options)))

            return call

        for name, method in methods.items():
            setattr(StoreConnection, name, counted(method))
        try:
            return runner.run(work)
        finally:
            for name, method in methods.items():
                setattr(StoreConnection, name, method)


@dataclass(slots=True, kw_only=True)
class Record:
    """Figures of one month that the agent played."""

    meter: Meter
    stand_in: StandIn
    compressions: list[Compressed] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds that each turn waited for a summary."""
    behind: list[bool] = field(default_factory=list)
    """For each call: True if the newest request is in the prompt only once, after the handoff's end marker."""
    pieces: Sequence[str] = ()
    """Messages of the last prompt, as text."""
    rules: str = ""
    """Lines listed as standing rules in the last prompt."""
    listed: set[str] = field(default_factory=set)
    """Lines that any prompt has listed as standing rules."""
    flushes: int = 0
    """Number of calls that took memory notes."""
    invented: int = 0
    """Maximum number of invented identifiers in one prompt."""
    said: list[tuple[str, str]] = field(default_factory=list)
    """Rule sentences that people have said, each with its kind."""
    turn: RunningTurn | None = None

    def look(self, pieces: Sequence[str], said: str | None) -> None:
        """Record a prompt and check it. `said`: the newest request, or None."""
        self.pieces = pieces
        before, marker, behind = "\n".join(pieces).rpartition(END_MARKER)
        if marker:
            if said is not None:
                self.behind.append(behind.count(said) == 1 and said not in before)
            self.invented = max(self.invented, sum(name in before for name in self.stand_in.invented))
            self.rules = before.partition("\n## Standing rules\n")[2].partition("\n## ")[0]
            self.listed |= set(self.rules.splitlines())

    def kept_rules(self) -> int:
        """Return the number of rules that the last prompt contains word for word."""
        whole = "\n".join(self.pieces)
        return sum(text in whole for kind, text in self.said if kind == "rule")

    def listed_of(self, kind: str) -> tuple[int, int]:
        """Return how many sentences of a kind are listed as rules, and how many there are.

        The last prompt counts for rules, including revoked ones. For sentences that are not rules, any prompt counts.
        """
        lines = self.rules if kind in ("rule", "taken back") else "\n".join(self.listed)
        found = [text in lines for one, text in self.said if one == kind]
        return sum(found), len(found)


class MonthModel:
    """Model that plays back the month's answers and writes summaries with a `StandIn`."""

    route = "bench"

    def __init__(self, name: str, record: Record) -> None:
        self.name, self._record = name, record
        self._chance = random.Random(11)
        self.script: Turn = {}
        self.number = self.step = 0

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Return the turn's next reply, or a summary."""
        record = self._record
        if [tool.name for tool in request.tools] == [MEMORY]:
            record.flushes += 1
            await asyncio.sleep(self._chance.uniform(*AUXILIARY_SECONDS))
            return ModelReply(text="nothing", finish=FinishReason.STOP, usage=CanonicalUsage(input=1, output=1))
        if not request.tools:
            prompt = request.transcript[-1].text or ""
            text = record.stand_in.write(prompt)
            read, written = record.meter.summary(f"{request.system}\n{prompt}", text)
            await asyncio.sleep(self._chance.uniform(*AUXILIARY_SECONDS))
            return ModelReply(text=text, finish=FinishReason.STOP, usage=CanonicalUsage(input=read, output=written))
        system = "\n".join([request.system, *(f"{tool.description} {tool.parameters}" for tool in request.tools)])
        pieces = [piece_of(dict(message)) for message in chat_messages(system, request.transcript, request.style)]
        record.look(pieces, self.script["said"])
        if self.step == 0:
            record.meter.look(self.number, pieces)
        functions = [(call["id"], call["function"]) for call in self.script["calls"] if self.step == 0]
        calls = tuple(ToolCall(id=one, name=call["name"], arguments=call["arguments"]) for one, call in functions)
        text = "" if calls else self.script["answer"]
        reply = {"role": "assistant", "content": text, "tool_calls": self.script["calls"] if calls else ()}
        written = tokens(piece_of(reply))
        whole, cached = record.meter.call(pieces, written)
        self.step += 1
        await asyncio.sleep(ANSWER_SECONDS)
        usage = CanonicalUsage(input=whole - cached, cache_read=cached, output=written)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return ModelReply(text=text, calls=calls, finish=finish, usage=usage)

    async def fetch_limits(self) -> None:
        return None

    async def close(self) -> None:
        """Do nothing, because there are no connections."""

    async def run_tool(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """Return the result that the script has for a tool call."""
        numbers = [call["number"] for call in self.script["calls"]]
        return str(self.script["results"][numbers.index(arguments["step"])])


class AgentMonth:
    """A chat in a store, with an agent and its model."""

    def __init__(
        self,
        store: Store,
        window: int,
        turns: int,
        ref: str,
        kind: StandInKind,
        settings: ContextSettings,
        tools: Sequence[Tool] = (),
    ) -> None:
        """`tools`: tools in the prompts, besides `run`, which the month calls. By default, the history tools."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._store, self._loop = store, loop
        self._chat = Chat(store, key=ChatKey(platform="telegram", account="telegram", chat_ref=ref), clock=loop)
        self.record = Record(meter=Meter(turns), stand_in=StandIn(kind))
        self.model = MonthModel(f"month-{ref}", self.record)
        properties = {"step": {"type": "integer"}, "note": {"type": "string"}}
        run = Tool(
            name="run",
            description="Runs a step and returns what it prints.",
            parameters={"type": "object", "properties": properties},
            effect=ToolEffect.READ_ONLY,
            run=self.model.run_tool,
        )
        registry = ToolRegistry([*(tools or recall_tools()), run])
        notes = MemoryDirectory(path=Path(tempfile.gettempdir()) / "hermes-bench-no-notes")  # never exists
        writer = MemoryWriter(notes=notes, redact=lambda text: text, clock=loop)
        self.agent = SingleModelAgent(
            store=store,
            client=client_of(self.model, store, loop),
            tools=registry,
            offers=OfferRegistry(registry, store),
            settings=TurnSettings(
                context_length=Tokens(window), max_output_tokens=Tokens(window // 4), context=settings
            ),
            clock=loop,
            listeners=[self._listen],
            before_split=[writer.flush],
        )
        self.agent.model = replace(self.agent.model, flush_route=SummaryRoute(client=self.agent.client))
        self.agent.context = SingleModelContext(self.agent.agent, self.agent.model)

    def _listen(self, db: Connection, conversation: object, event: object, now: object) -> None:
        if isinstance(event, Compressed):
            self.record.compressions.append(event)

    async def play(self, month: Sequence[Turn], gap: float) -> AsyncIterator[int]:
        """Run the month with a message every `gap` seconds. Yield the number of each turn that has ended."""
        model, record = self.model, self.record
        for number, script in enumerate(month):
            await asyncio.sleep(max(0.0, number * gap - self._loop.time()))
            model.script, model.number, model.step = script, number, 0
            record.meter.say(script["facts"])
            record.said += script["sentences"]
            began = self._loop.time()
            turn = record.turn = await self.start(script)
            answer = await self.agent.agent.run(turn, lambda text: None, self.agent.model, await self.agent.check(turn))
            record.waits.append(self._loop.time() - began - model.step * ANSWER_SECONDS)
            await self._chat.finish(turn, answer)
            yield number

    async def compress(self, topic: str | None = None, keep_turns: int | None = None) -> None:
        """Run `/compress {topic}`, and record the resulting view in the form that a model sees."""
        turn = self.record.turn
        assert turn is not None
        result = await self.agent.context.prepare_by_hand(turn.conversation, focus=topic, keep_turns=keep_turns)
        await self._store.write(self.agent.context.settle, result, self._loop.now())
        view = await self._store.read(load_view, turn.lineage_id)
        self.record.look([piece_of(dict(one)) for one in chat_messages("", view.transcript, WireStyle())], None)

    async def start(self, script: Turn) -> RunningTurn:
        """Store a person's message and start its turn."""
        received = await self._chat.receive(script["said"], sent_at=self._loop.now())
        documents = (Document(name="note.txt", text=script["document"]),) if script["document"] else ()
        prepared = {received: PreparedMessage(body=MessageBody(documents=documents))}
        now = self._loop.now()
        return await self._store.write(journal.start_turn, await self._chat.id(), [received], prepared, now)
