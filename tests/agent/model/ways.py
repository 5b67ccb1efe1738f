"""Ways to call a model (every protocol, with and without streaming), and a chat that uses one of them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from agent.context.limits import ContextSettings
from agent.model.base import ChatModel, Endpoint
from agent.model.client import RetryPolicy
from agent.model.errors import sentence_for
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.responses import ResponsesModel
from agent.tools.registry import Tool, ToolContext
from hermes_state import journal
from hermes_state.errors import ModelError
from hermes_state.turns import RunningTurn
from hermes_state.values import MessageRole, ToolEffect, TurnId
from tests.agent.conftest import Chat, Sink, agent_for, settings
from tests.clients import FAST_RETRY

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One protocol on the fake server, with or without streaming."""

    protocol: str
    kind: Callable[[Endpoint], ChatModel]
    root: str
    """Path after the server's address."""
    before_text: int
    """Number of events before a streamed text."""
    before_arguments: int
    """Number of events before a streamed tool call."""
    streams: bool = True

    def __str__(self) -> str:
        return f"{self.protocol} {'streamed' if self.streams else 'whole'}"

    @asynccontextmanager
    async def dialled(self, url: str, model: str = "lab-128k", **endpoint: Any) -> AsyncIterator[ChatModel]:
        """Yield a model on the server at `url`. `endpoint`: settings of `Endpoint`."""
        values = {"connect_seconds": 20.0, "read_seconds": 20.0} | endpoint
        base_url = f"{url}{self.root}"
        made = self.kind(Endpoint(model=model, api_key="lab-key", base_url=base_url, streams=self.streams, **values))
        try:
            yield made
        finally:
            await made.close()


CHAT_COMPLETIONS = {"protocol": "chat_completions", "kind": ChatCompletionsModel, "root": "/v1"}
RESPONSES = {"protocol": "responses", "kind": ResponsesModel, "root": "/v1"}
ANTHROPIC = {"protocol": "anthropic", "kind": AnthropicModel, "root": ""}
WAYS = [
    Way(**protocol, before_text=before_text, before_arguments=before_arguments, streams=streams)  # type: ignore[arg-type]
    for protocol, before_text, before_arguments in ((CHAT_COMPLETIONS, 1, 2), (RESPONSES, 4, 3), (ANTHROPIC, 3, 3))
    for streams in (True, False)
]
MIXED_WAYS = [WAYS[place] for place in (0, 1, 3, 2, 4, 5)]
"""Sampled ways: every other one still covers all protocols, with and without streaming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Traces of a turn in the database and in the chat."""

    state: str
    calls: list[tuple[str, str]]
    """Outcome and usage of each model call. Usage is `reported`, `estimated` or `unknown`."""
    rows: list[tuple[str, str | None]]
    """Role and text of each stored row."""
    told: list[tuple[str, str]]
    """Kind and text of each reply to the chat."""

    @property
    def outcomes(self) -> list[str]:
        return [outcome for outcome, _ in self.calls]


class Talk:
    """Chat whose agent uses one model. Runs turns like the gateway."""

    def __init__(self, chat: Chat, model: ChatModel, policy: RetryPolicy = FAST_RETRY, **options: Any) -> None:
        """`options`: settings of the agent."""
        self.chat = chat
        self.noted: list[str] = []
        """Arguments of the calls of the tool `note`."""
        self.agent = agent_for(
            chat,
            model,
            [self._tool()],
            configured=settings(**{"context": ContextSettings(mode="blocking")} | options),
            policy=policy,
        )
        self.shown: list[str] = []

    def _tool(self) -> Tool:
        async def run(arguments: Mapping[str, Any], context: ToolContext) -> str:
            self.noted.append(arguments["text"])
            return "noted"

        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return Tool(name="note", description="Notes.", parameters=parameters, effect=ToolEffect.WRITES, run=run)

    async def say(self, text: str) -> Left:
        """Send a message, and return the traces of its turn, which may also fail."""
        return await self.bring_to_an_end(await self.chat.start(text))

    async def bring_to_an_end(self, turn: RunningTurn) -> Left:
        sink = Sink()
        self.shown = sink.shown
        try:
            answer = await self.agent.run(turn, sink)
        except ModelError as error:
            kind, sentence = type(error).__name__, sentence_for(error)
            await self.chat.store.write(journal.fail_turn, turn, kind, sentence, self.chat.clock.now())
        else:
            await self.chat.finish(turn, answer)
        return await self.left(turn)

    async def left(self, turn: RunningTurn) -> Left:
        return await self.chat.store.read(_left, turn.id)


def _left(db: Connection, turn_id: TurnId) -> Left:
    calls = """SELECT outcome, CASE WHEN estimated THEN 'estimated' WHEN input_tokens IS NULL THEN 'unknown'
        ELSE 'reported' END FROM model_calls WHERE turn_id = ? AND purpose = 'turn' ORDER BY id"""
    rows = "SELECT role, text FROM messages WHERE turn_id = ? AND seq > 0 ORDER BY id"
    told = "SELECT kind, json_extract(payload, '$.markdown') FROM outbox WHERE turn_id = ? ORDER BY id"
    return Left(
        state=db.execute("SELECT state FROM turns WHERE id = ?", (turn_id,)).fetchone()[0],
        calls=db.execute(calls, (turn_id,)).fetchall(),
        rows=db.execute(rows, (turn_id,)).fetchall(),
        told=db.execute(told, (turn_id,)).fetchall(),
    )


ASKED = (MessageRole.USER.value, "go")
"""Row of the first message in the fault tests."""
