"""Fixtures: a real store, a fake model server in this process, and a chat for turns."""

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any

import pytest

from agent.model.base import ChatModel, Endpoint
from agent.model.client import RetryPolicy
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry
from agent.turn import Answer
from hermes_state import chats, inbox, journal
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.journal import ModelAnswer, PreparedMessage
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_messages, load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    Image,
    InboxId,
    Message,
    MessageBody,
    Millis,
    Tokens,
    Transcript,
    UserRef,
)
from tests.agents import SingleModelAgent, TurnSettings
from tests.clients import FAST_RETRY, client_of
from tests.fakes import fake_llm
from tests.fakes.labkit import Server

SENT_AT = Millis(1_767_225_600_000)  # 2026-01-01 00:00 UTC


class FixedClock:
    """Clock that starts at `SENT_AT` and advances one second per reading."""

    def __init__(self) -> None:
        self._looks = itertools.count(1)

    def now(self) -> Millis:
        return Millis(SENT_AT + 1_000 * next(self._looks))


class Sink:
    """Sink that records every preview."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, text: str) -> None:
        self.shown.append(text)


@dataclass
class Chat:
    """Chat with its database."""

    store: Store
    key: ChatKey = field(default_factory=lambda: ChatKey(platform="telegram", account="telegram", chat_ref="42"))
    kind: ChatKind = ChatKind.DIRECT
    clock: FixedClock = field(default_factory=FixedClock)
    _events: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def id(self) -> ChatId:
        return await self.store.write(chats.ensure_chat, self.key, self.kind, None, SENT_AT)

    async def receive(self, text: str, *, mode: InboxMode = InboxMode.QUEUE, sent_at: Millis = SENT_AT) -> InboxId:
        """Store an inbound message."""
        return await self.store.write(self._receive, next(self._events), text, mode, sent_at)

    def _receive(
        self, db: Connection, number: int, text: str, mode: InboxMode = InboxMode.QUEUE, sent_at: Millis = SENT_AT
    ) -> InboxId:
        row = NewInboxRow(
            platform=self.key.platform,
            account=self.key.account,
            event_ref=f"1:{self.key.chat_ref}:{number}",
            chat_id=chats.ensure_chat(db, self.key, self.kind, None, SENT_AT),
            kind=InboxKind.MESSAGE,
            mode=mode,
            sender_ref=UserRef("telegram:42"),
            sender_name="Ann",
            message_ref=str(number),
            payload=InboxPayload(text=text),
            expects_more=False,
            sent_at=sent_at,
        )
        return inbox.insert(db, row, SENT_AT)

    async def start(self, *texts: str) -> RunningTurn:
        """Start a turn with messages that arrive now."""
        arrived = [(next(self._events), text) for text in texts]
        return await self.store.write(self._start, arrived, self.clock.now())

    def _start(self, db: Connection, arrived: Sequence[tuple[int, str]], now: Millis) -> RunningTurn:
        ids = [self._receive(db, number, text) for number, text in arrived]
        return journal.start_turn(db, chats.ensure_chat(db, self.key, self.kind, None, SENT_AT), ids, {}, now)

    async def start_with_images(self, text: str, *images: Image) -> RunningTurn:
        """Start a turn with one message, whose images are in the store."""
        received = await self.receive(text)
        prepared = {received: PreparedMessage(body=MessageBody(images=images))}
        return await self.store.write(journal.start_turn, await self.id(), [received], prepared, self.clock.now())

    async def finish(self, turn: RunningTurn, answer: Answer) -> None:
        await self.store.write(_finish, turn, answer, self.clock.now())

    async def talk(self, exchanges: Sequence[tuple[str, Answer]]) -> RunningTurn:
        """Store finished turns, each given as a message and its answer. Return the last turn."""
        timed = [(next(self._events), text, self.clock.now(), answer, self.clock.now()) for text, answer in exchanges]
        return await self.store.write(self._talk, timed)

    def _talk(self, db: Connection, timed: Sequence[tuple[int, str, Millis, Answer, Millis]]) -> RunningTurn:
        for number, text, started, answer, finished in timed:
            turn = self._start(db, [(number, text)], started)
            _finish(db, turn, answer, finished)
        return turn

    async def said(self, turn: RunningTurn) -> Transcript:
        """Return all original rows of the conversation."""
        return await self.store.read(load_messages, turn.lineage_id, 1_000)

    async def view(self, turn: RunningTurn) -> Sequence[Message]:
        return (await self.store.read(load_view, turn.lineage_id)).transcript

    async def ledger(self) -> list[tuple[str, str]]:
        """Return purpose and outcome of every recorded model call."""
        query = "SELECT purpose, outcome FROM model_calls ORDER BY id"
        return await self.store.read(lambda db: db.execute(query).fetchall())


def _finish(db: Connection, turn: RunningTurn, answer: Answer, now: Millis) -> None:
    final = ModelAnswer(text=answer.text, call=answer.call, reported_prompt_tokens=answer.reported_prompt_tokens)
    journal.finish_turn(db, turn, final, now)


def agent_for(
    chat: Chat,
    model: ChatModel,
    tools: Iterable[Tool] | None = None,
    *,
    configured: TurnSettings | None = None,
    policy: RetryPolicy = FAST_RETRY,
    **options: Any,
) -> SingleModelAgent:
    """Return an agent of a chat. By default, it has the recall tools. `options` are passed to `SingleModelAgent`."""
    return SingleModelAgent(
        store=chat.store,
        client=client_of(model, chat.store, chat.clock, policy),
        tools=ToolRegistry(recall_tools() if tools is None else tools),
        settings=configured or settings(),
        clock=chat.clock,
        **options,
    )


def settings(**changes: object) -> TurnSettings:
    values = {"context_length": Tokens(131_072), "max_output_tokens": Tokens(8_192)} | changes
    return TurnSettings(**values)  # type: ignore[arg-type]  # tests name the fields they change


@pytest.fixture
async def chat(store: Store) -> Chat:
    return Chat(store)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    running = await Server(fake_llm.make_app()).start()
    yield running
    await running.stop()


@pytest.fixture
def llm(server: Server) -> fake_llm.LLM:
    """State of the fake model server."""
    return server.app[fake_llm.LLM_KEY]


@asynccontextmanager
async def dialled(server: Server, name: str, *, read_seconds: float = 20.0) -> AsyncIterator[ChatModel]:
    """A model of the fake server."""
    made = ChatCompletionsModel(
        Endpoint(
            model=name, api_key="lab-key", base_url=f"{server.url}/v1", connect_seconds=20.0, read_seconds=read_seconds
        )
    )
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def model(server: Server) -> AsyncIterator[ChatModel]:
    async with dialled(server, "lab-128k") as made:
        yield made


@pytest.fixture
async def small(server: Server) -> AsyncIterator[ChatModel]:
    async with dialled(server, "lab-8k") as made:
        yield made


@pytest.fixture
async def medium(server: Server) -> AsyncIterator[ChatModel]:
    async with dialled(server, "lab-32k") as made:
        yield made


@pytest.fixture
def agent(chat: Chat, model: ChatModel) -> SingleModelAgent:
    """Agent on the fake model server with the recall tools."""
    return agent_for(chat, model)
