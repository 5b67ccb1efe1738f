"""Conversations that fill their window, and the stored results of their compressions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from agent.context.job import BeforeSplit, Compressed, CompressionOutcome, ContextEvent, Listener, OnWait
from agent.context.limits import ContextSettings
from agent.context.model_handle import SummaryRoute
from agent.context.pending import CompressionRegistry
from agent.context.state import ContextState, state_of
from agent.model.base import ChatModel
from agent.prompt import DEFAULT_PERSONA
from agent.tools.registry import Tool, ToolContext
from agent.turn import Answer
from gateway.config.context_settings import NoticeConfig
from gateway.outbound.notices import NoticeWriter
from hermes_state import sessions
from hermes_state.models.ledger import ModelCall
from hermes_state.transcripts import load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatKey, ConversationRef, LineageId, Millis, Origin, Tokens, ToolEffect, Transcript
from tests.agent.conftest import SENT_AT, Chat, FixedClock, Sink, agent_for, settings
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM
from tests.summaries import summary_saying

CONTEXT = 8_192
"""Window of `lab-8k`. Reserve 2,048 tokens, threshold 4,096 tokens, hygiene 5,530, without room 5,653, full 6,144."""
WORDS = "The quick brown fox jumps over the lazy dog and runs through the forest. " * 5
UNPAID = ModelCall(purpose="turn", route="none", model="none", outcome="ok", usage=None, took_ms=0)


class SetClock(FixedClock):
    """A clock that only moves on request."""

    def __init__(self) -> None:
        super().__init__()
        self.at = SENT_AT

    def now(self) -> Millis:
        return self.at

    def pass_seconds(self, seconds: float) -> None:
        self.at = Millis(self.at + int(seconds * 1_000))


class Listening:
    """Remembers the events of views."""

    def __init__(self) -> None:
        self.events: list[ContextEvent] = []

    def __call__(self, db: object, conversation: ConversationRef, event: ContextEvent, now: object) -> None:
        self.events.append(event)

    @property
    def compressions(self) -> list[Compressed]:
        return [event for event in self.events if isinstance(event, Compressed)]


def agent_of(
    chat: Chat,
    model: ChatModel,
    *,
    context: ContextSettings | None = None,
    context_length: int = CONTEXT,
    routes: Sequence[SummaryRoute] | None = None,
    listeners: Sequence[Listener] = (),
    tools: Sequence[Tool] = (),
    persona: str = DEFAULT_PERSONA,
    attachments: Path | None = None,
    pending: CompressionRegistry | None = None,
    on_wait: OnWait | None = None,
    before_split: Sequence[BeforeSplit] = (),
    is_background: bool = False,
) -> SingleModelAgent:
    """An agent with a small window and a tool with long results. Its chats get the notices of the gateway.

    It sees images if `attachments` is given. A due compression finishes before the next call, unless it
    `is_background`.
    """
    notices = NoticeWriter(store=chat.store, settings=NoticeConfig, deliver=lambda _: None, clock=chat.clock)
    return agent_for(
        chat,
        model,
        [DUMP, *tools],
        configured=settings(
            context_length=Tokens(context_length),
            max_output_tokens=Tokens(context_length // 4),
            context=replace(context or ContextSettings(), mode="background" if is_background else "blocking"),
            persona=persona,
            sees_images=attachments is not None,
            attachments=attachments,
        ),
        summary_routes=routes,
        listeners=[notices.write, *listeners],
        pending=pending,
        on_wait=on_wait,
        before_split=before_split,
    )


async def _dump(arguments: dict[str, Any], context: ToolContext) -> str:
    return WORDS * 10


DUMP = Tool(
    name="dump",
    description="Returns much.",
    parameters={"type": "object", "properties": {}},
    effect=ToolEffect.READ_ONLY,
    run=_dump,
    is_persisted=False,  # the window must fill up
)


def chat_at(chat: Chat, ref: object) -> Chat:
    """Another chat in the same database, with a stopped clock."""
    key = ChatKey(platform="telegram", account="telegram", chat_ref=str(ref))
    return Chat(chat.store, key=key, clock=SetClock())


def clock_of(chat: Chat) -> SetClock:
    assert isinstance(chat.clock, SetClock)
    return chat.clock


async def fill(chat: Chat, agent: SingleModelAgent, tokens: int, *, words: str = WORDS) -> ConversationRef:
    """Add turns without a model until the next prompt has about this many tokens."""
    number, filled, step = 0, 0, tokens
    while True:
        # Add as many turns at once as surely fit: each is about as large as the last.
        count = max(1, (tokens - filled) // (step + 10) - 1)
        exchanges = [_exchange(one, words) for one in range(number, number + count)]
        number += count
        conversation = (await chat.talk(exchanges)).conversation
        prompt = (await agent.context.status(conversation)).prompt
        if prompt >= tokens:
            return conversation
        filled, step = prompt, (prompt - filled) // count


def _exchange(number: int, words: str) -> tuple[str, Answer]:
    answer = Answer(text=f"Answer {number}. {words}", call=UNPAID, reported_prompt_tokens=None)
    return f"Question {number}: TICKET-{number} {words}", answer


async def fill_and_ask(chat: Chat, agent: SingleModelAgent, tokens: int, question: str = "and now?") -> RunningTurn:
    """Fill a conversation, and start a turn in it."""
    await fill(chat, agent, tokens)
    return await chat.start(question)


async def answer(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await chat.finish(turn, await agent.run(turn, Sink()))


async def say(chat: Chat, agent: SingleModelAgent, text: str) -> RunningTurn:
    turn = await chat.start(text)
    await answer(chat, agent, turn)
    return turn


async def compress(
    chat: Chat, agent: SingleModelAgent, conversation: ConversationRef, *, keep_turns: int | None = None
) -> CompressionOutcome:
    """Compress by hand, like the command."""
    prepared = await agent.context.prepare_by_hand(conversation, keep_turns=keep_turns)
    return await chat.store.write(agent.context.settle, prepared, chat.clock.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A conversation as the database stores it."""

    depth: int
    said: int
    """Original rows of all sessions."""
    compressions: list[tuple[str, str, str | None]]
    """Layer, outcome, and the summary's kind or the reason."""
    summary_calls: list[str]
    """Outcomes in the ledger, without cancelled calls."""
    told: list[str]
    """Messages to the chat that are not answers."""
    view: Transcript
    state: ContextState

    @property
    def kinds(self) -> list[str | None]:
        """Kinds of the summaries of all splits."""
        return [kind for _, outcome, kind in self.compressions if outcome == "compressed"]


async def look(chat: Chat, lineage_id: LineageId) -> Found:
    """Read a conversation, and check that its sessions form a single chain that ends with the chat's session."""
    return await chat.store.read(_found, lineage_id)


def _found(db: Connection, lineage_id: LineageId) -> Found:
    tip = sessions.load_tip(db, lineage_id)
    lines = db.execute(
        "SELECT depth, ended_at IS NULL, end_reason FROM sessions WHERE lineage_id = ? ORDER BY depth", (lineage_id,)
    )
    expected = [(depth, 0, "compression") for depth in range(tip.depth)] + [(tip.depth, 1, None)]
    assert lines.fetchall() == expected, "a single chain of sessions with the last one open"
    active = db.execute("SELECT active_session_id FROM chats WHERE id = ?", (tip.chat_id,)).fetchone()[0]
    assert active == tip.id, "the chat continues at the tip"
    compressions = db.execute(
        """SELECT layer, outcome, coalesce(summary_kind, reason) FROM compressions c
        JOIN sessions s ON s.id = c.parent_id WHERE s.lineage_id = ? ORDER BY c.id""",
        (lineage_id,),
    ).fetchall()
    assert sum(outcome == "compressed" for _, outcome, _ in compressions) == tip.depth, "every split has its event"
    view = load_view(db, lineage_id).transcript
    assert sum(row.origin is Origin.SUMMARY for row in view) == min(tip.depth, 1), "at most one handoff"
    said = "SELECT count(*) FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.lineage_id = ? AND m.seq > 0"
    calls = """SELECT outcome FROM model_calls WHERE purpose = 'summary' AND outcome <> 'cancelled' AND lineage_id = ?
        ORDER BY id"""
    told = "SELECT json_extract(payload, '$.markdown') FROM outbox WHERE chat_id = ? AND kind = 'status' ORDER BY id"
    return Found(
        depth=tip.depth,
        said=db.execute(said, (lineage_id,)).fetchone()[0],
        compressions=compressions,
        summary_calls=[row[0] for row in db.execute(calls, (lineage_id,))],
        told=[row[0] for row in db.execute(told, (tip.chat_id,))],
        view=view,
        state=state_of(tip.context_state),
    )


def summary_of(mark: str) -> str:
    """A summary with a recognisable text."""
    return summary_saying(f"SUMMARY-BY-{mark} has something to say here:")


def asked_for_summaries(llm: LLM) -> int:
    """Number of requested summaries, including failed ones."""
    return sum(not row["body"].get("tools") for row in llm.requests.rows)


def asked_for_turns(llm: LLM) -> list[dict[str, Any]]:
    """Requests for answers. Requests for summaries have no tools."""
    return [row for row in llm.requests.rows if row["body"].get("tools")]
