"""States of a small database, and the functions that may write to them concurrently.

Each function comes with the product's locks for it: its own declaration, or that of the transaction that the gateway or
the agent passes to the store.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

from msgspec.structs import replace

from gateway.access.pairing import approve_pairing, offer_pairing, revoke_pairing
from gateway.access.permissions import AccessControl
from gateway.commands.people import _approve
from gateway.commands.runner import _carry_out
from gateway.inbound.admission import AcceptedEvent, admit, apply_deletion, apply_edit
from gateway.turns.lanes import _start_turn
from gateway.turns.refusals import refuse
from gateway.turns.titles import _keep
from gateway.turns.voice import _keep as _keep_transcript
from hermes_state import inbox, journal, outbox, ratings, sessions, talk, tool_runs
from hermes_state.admin import pairings
from hermes_state.admin.pairings import UserRole
from hermes_state.chats import ensure_chat, load_chat, move_chat
from hermes_state.compressions import SplitPlan, plan_undo, split, undo_compression
from hermes_state.inbox import InboxKind, InboxMode, InboxState
from hermes_state.journal import ModelAnswer
from hermes_state.models import ledger
from hermes_state.outbox import AccountClaim, Reply, take_account
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, WriteRequest
from hermes_state.tool_runs import ToolResult, ToolRunState
from hermes_state.tools import approvals, subagents
from hermes_state.tools.approvals import AnswererRole, ApprovalRequest, ApprovalState
from hermes_state.transcripts import hide, load_view
from hermes_state.turns import TurnClaim, note_preview, take_up
from hermes_state.values import (
    AttachmentKind,
    ChatId,
    ChatKey,
    ChatKind,
    Cursor,
    DeletionEvent,
    EditEvent,
    InboundMessage,
    IncomingAttachment,
    Millis,
    OutboundPart,
    ReactionEvent,
    Sender,
    ToolCall,
)
from tests.gateway.helpers import config_of, live_config
from tests.hermes_state.engines.postgres.interleaving import write
from tests.hermes_state.rows import (
    ANN,
    BOB,
    CALL,
    START,
    call_tools,
    exchange,
    key_of,
    make_chat,
    receive,
    split_plan,
    start,
)

Writer: TypeAlias = Callable[[Any, Millis], WriteRequest]
"""Creates a call for a state at a given time."""

State: TypeAlias = SimpleNamespace
"""The rows of a scene that its functions need."""

ANSWER = ModelAnswer(text="done", call=CALL, reported_prompt_tokens=90)
STEP = ModelAnswer(
    text="looking", call=CALL, reported_prompt_tokens=80, calls=(ToolCall(id="c3", name="look", arguments="{}"),)
)
PART = OutboundPart(text="done", plain="done")
CLAIM = AccountClaim(account="telegram", epoch=1)
RECORDING = IncomingAttachment(kind=AttachmentKind.VOICE, file_ref="f", name="voice.ogg")
ADA = Sender(platform="telegram", id="1", name="Ada")
CHAT = key_of()
GROUP = key_of("77")
LATER = Millis(START + 3_600_000)
NO_STORE: Any = None
HEARING = AccessControl(NO_STORE, live_config(config_of(groups={"context": "on"})))
"""Access control that stores the talk of every group, and reads no pairings."""


@locks(turn="claim.id")
def join_steers(db: Connection, claim: TurnClaim, now: Millis) -> int:
    """Join steers like `tool_calls._end_round`, without results that occupy space."""
    return journal.join_steers(db, claim, now)


@locks(chat="chat_id", calls="apply")
def command(db: Connection, chat_id: ChatId, apply: Callable[..., object], now: Millis) -> object:
    """Run a command's change. Its row is not stored, because that would make the chat busy."""
    return apply(db, now=now)


def in_chat(fn: Callable[..., object], *args: object, **kwargs: object) -> Callable[..., object]:
    """Return `fn` as the change of a command."""
    return lambda db, now: fn(db, *args, **kwargs, now=now)


def say(text: str, ref: str, *, sender: Sender = ADA, key: ChatKey = CHAT, **options: Any) -> AcceptedEvent:
    """An accepted message."""
    message = InboundMessage(
        event_ref=f"9:{ref}",
        chat=replace(key, user_ref=""),
        chat_kind=ChatKind.GROUP if key.user_ref else ChatKind.DIRECT,
        sender=sender,
        text=text,
        message_ref=ref,
        sent_at=START,
        is_addressed=True,
    )
    seen = Cursor(platform="telegram", account="telegram", channel_ref="42", seen_ref="77")
    defaults = {"kind": InboxKind.MESSAGE, "mode": InboxMode.QUEUE, "max_waiting": 3, "cursor": seen}
    return AcceptedEvent(message=message, key=key, text=text, **(defaults | options))


def edit(ref: str, sender: Sender = ADA) -> EditEvent:
    return EditEvent(
        event_ref=f"9:edit:{ref}", chat=CHAT, sender=sender, text="changed", message_ref=ref, sent_at=START
    )


def deletion(ref: str, key: ChatKey = CHAT) -> DeletionEvent:
    return DeletionEvent(event_ref=f"9:gone:{ref}", chat=key, message_ref=ref, sent_at=START)


def thumb(value: int, *, is_removed: bool = False) -> ReactionEvent:
    return ReactionEvent(
        event_ref="9:r",
        chat=CHAT,
        sender=ADA,
        message_ref="a",
        sent_at=START,
        value=value,
        is_removed=is_removed,
    )


def plan_of(db: Connection, chat_id: ChatId) -> SplitPlan:
    """Plan a compression of the chat's whole view."""
    active = sessions.load_active(db, chat_id)
    assert active is not None
    return split_plan(db, active.lineage_id, head=1)


def conversations(db: Connection) -> tuple[ChatId, str]:
    """Create a chat with two conversations. Return the key of the earlier one."""
    chat_id = make_chat(db)
    exchange(db, chat_id, "one", "two")
    earlier = sessions.load_active(db, chat_id)
    assert earlier is not None
    sessions.reset(db, chat_id, Millis(START + 1_000))
    exchange(db, chat_id, "three", "four")
    return chat_id, earlier.key


def stop_all(db: Connection, chat_id: ChatId, turn: TurnClaim, before: inbox.InboxId, now: Millis) -> str:
    """Run the change of `/stop all`."""
    outbox.stop_delivery(db, chat_id, None, before, now)
    stopped = journal.stop_turn(db, turn, "so far", "stopped", now, notice="Stopped.")
    return f"{stopped} {inbox.drop_waiting(db, chat_id, None, now)}"


def busy(db: Connection) -> State:
    """A turn with running tools, a waiting steer, message and command, and an unsent reply."""
    chat_id, earlier = conversations(db)
    take_account(db, CLAIM.account)
    turn = start(db, chat_id, "what now?")
    asked = call_tools(db, turn, "c1", "c2")
    journal.start_tools(db, turn, asked.id, asked.body.calls[:1], START)
    receive(db, chat_id, "hurry", mode=InboxMode.STEER, sender=BOB, ref="hurry")
    return State(
        chat_id=chat_id,
        earlier=earlier,
        turn=turn,
        asked=asked,
        waiting=inbox.load(db, receive(db, chat_id, "later", ref="later")),
        stop=inbox.load(db, receive(db, chat_id, "/stop all", kind=InboxKind.COMMAND, ref="stop")),
        owed=outbox.load_open(db, chat_id)[-1],
        plan=plan_of(db, chat_id),
        chat=load_chat(db, chat_id),
    )


def _result(s: State) -> ToolResult:
    return ToolResult(
        call_message_id=s.asked.id,
        call=s.asked.body.calls[0],
        text="found",
        state=ToolRunState.DONE,
        preview=lambda message_id: "short",
    )


BUSY: Mapping[str, Writer] = {
    "append_calls": lambda s, now: write(journal.append_calls, s.turn, STEP, now),
    "start_tools": lambda s, now: write(journal.start_tools, s.turn, s.asked.id, s.asked.body.calls, now),
    "finish_tool": lambda s, now: write(journal.finish_tool, s.turn, _result(s), now),
    "join_steers": lambda s, now: write(join_steers, s.turn, now),
    "note_preview": lambda s, now: write(note_preview, s.turn, "shown"),
    "take_up": lambda s, now: write(take_up, s.turn, True),
    "finish_turn": lambda s, now: write(journal.finish_turn, s.turn, ANSWER, now, [PART]),
    "stop_turn": lambda s, now: write(journal.stop_turn, s.turn, "so far", "stopped", now, notice="Stopped."),
    "fail_turn": lambda s, now: write(journal.fail_turn, s.turn, "ModelTimeout", "It failed.", now),
    "open_subagent": lambda s, now: write(subagents.open_subagent, s.turn, s.asked.id, "c2", "look", now),
    "record": lambda s, now: write(ledger.record, s.turn.id, s.turn.lineage_id, CALL, now),
    "start_turn": lambda s, now: write(_start_turn, s.chat_id, [s.waiting.id], {}, now, HEARING),
    "admit": lambda s, now: write(admit, say("more", "more", queued_notice="I have it."), now),
    "admit/steer": lambda s, now: write(admit, say("also", "also", busy_mode="steer", steered_notice="Joins."), now),
    "apply_edit": lambda s, now: write(apply_edit, edit("later"), CHAT, None, now),
    "apply_edit/notice": lambda s, now: write(
        apply_edit, edit("hurry", Sender(platform="telegram", id="2", name="Bob")), key_of(), None, now
    ),
    "apply_deletion": lambda s, now: write(apply_deletion, deletion("later"), None, now),
    "refuse": lambda s, now: write(refuse, [s.waiting], InboxState.DEAD, "No.", f"no:{s.waiting.id}", now),
    "settle": lambda s, now: write(inbox.settle, s.waiting.id, InboxState.DONE, now),
    "queue_steers": lambda s, now: write(inbox.queue_steers, lambda ref: ref != BOB),
    "save_transcript": lambda s, now: write(_keep_transcript, s.waiting, RECORDING, "spoken", CALL, now),
    "stop_all": lambda s, now: write(
        _carry_out, s.stop, s.chat, in_chat(stop_all, s.chat_id, s.turn, s.stop.id), now, False
    ),
    "reset": lambda s, now: write(command, s.chat_id, in_chat(sessions.reset, s.chat_id), now),
    "resume": lambda s, now: write(command, s.chat_id, in_chat(sessions.resume, s.chat_id, s.earlier), now),
    "split": lambda s, now: write(command, s.chat_id, in_chat(split, s.plan), now),
    "set_context_state": lambda s, now: write(sessions.set_context_state, s.plan.parent.id, f"{{{now}}}"),
    "keep_offer": lambda s, now: write(tool_runs.keep_offer, s.plan.parent.id, [f"look{now}"]),
    "give_title": lambda s, now: write(_keep, s.turn.lineage_id, f"Title {now}", CALL, now),
    "ensure_chat": lambda s, now: write(ensure_chat, CHAT, ChatKind.DIRECT, f"Chat {now}", now),
    "move_chat": lambda s, now: write(move_chat, "telegram", "telegram", "42", "-42", now),
    "begin_send": lambda s, now: write(outbox.begin_send, s.owed.id, [PART, PART], CLAIM, now),
    "mark_sent": lambda s, now: write(outbox.mark_sent, s.owed.id, "r77", now),
    "drop_voice": lambda s, now: write(outbox.drop_voice, s.owed, "no server", "No voice.", now),
    "mark_retry": lambda s, now: write(outbox.mark_retry, s.owed, True, "cut off", CLAIM, LATER),
    "mark_dead": lambda s, now: write(outbox.mark_dead, s.owed, "gone", CLAIM, now),
    "take_account": lambda s, now: write(take_account, "telegram"),
    "enqueue": lambda s, now: write(
        outbox.enqueue, Reply(chat_id=s.chat_id, markdown="hi", dedupe_key=f"turn:{s.turn.id}"), now
    ),
}


def quiet(db: Connection) -> State:
    """A conversation that was compressed once, without waiting messages, after another conversation.

    No turn has seen the talk in its chat.
    """
    chat_id, earlier = conversations(db)
    split(db, plan_of(db, chat_id), START)
    exchange(db, chat_id, "five", "six")
    talk.keep(db, chat_id, say("lunch?", "talk").message, "lunch?", has_access=True)
    plan = plan_of(db, chat_id)
    answer = load_view(db, plan.parent.lineage_id).transcript[-1].id
    ratings.rate(db, chat_id, answer, thumb(1), None)
    return State(
        chat_id=chat_id,
        earlier=earlier,
        lineage_id=plan.parent.lineage_id,
        waiting=[],
        newest=load_view(db, plan.parent.lineage_id).transcript[-1].id,
        plan=plan,
        undo=plan_undo(db, plan.parent.lineage_id),
    )


def idle(db: Connection) -> State:
    """The same with two waiting messages."""
    rested = quiet(db)
    ids = [receive(db, rested.chat_id, text, ref=text) for text in ("first", "second")]
    rows = [inbox.load(db, inbox_id) for inbox_id in ids]
    return State(**{**vars(rested), "waiting": rows})


RESTING: Mapping[str, Writer] = {
    "admit/start": lambda s, now: write(admit, say("hello", "hello", may_start=True, shows_talk=True), now),
    "admit/talk": lambda s, now: write(admit, say("at noon", "noon", is_talk=True, queued_notice="I read."), now),
    "apply_edit/talk": lambda s, now: write(talk.apply_edit, edit("talk"), None),
    "rate": lambda s, now: write(ratings.rate, s.chat_id, s.newest, thumb(-1), None),
    "rate/removed": lambda s, now: write(ratings.rate, s.chat_id, s.newest, thumb(1, is_removed=True), None),
    "apply_deletion/talk": lambda s, now: write(apply_deletion, deletion("talk"), None, now),
    "reset": lambda s, now: write(command, s.chat_id, in_chat(sessions.reset, s.chat_id), now),
    "resume": lambda s, now: write(command, s.chat_id, in_chat(sessions.resume, s.chat_id, s.earlier), now),
    "split": lambda s, now: write(command, s.chat_id, in_chat(split, s.plan), now),
    "undo_compression": lambda s, now: write(command, s.chat_id, in_chat(undo_compression, s.undo), now),
    "hide": lambda s, now: write(command, s.chat_id, in_chat(hide, s.plan.parent.id, [s.newest], "undo"), now),
    "give_title": lambda s, now: write(_keep, s.lineage_id, f"Title {now}", CALL, now),
    "set_system_prompt": lambda s, now: write(sessions.set_system_prompt, s.plan.parent.id, f"Be kind. {now}"),
    "start_session": lambda s, now: write(sessions.start_session, s.chat_id, now),
}
QUIET = RESTING | {"expire_idle": lambda s, now: write(sessions.expire_idle, LATER, 10, now)}
IDLE = RESTING | {
    "start_turn": lambda s, now: write(_start_turn, s.chat_id, [row.id for row in s.waiting], {}, now, HEARING),
    "start_turn/one": lambda s, now: write(_start_turn, s.chat_id, [s.waiting[0].id], {}, now, HEARING),
    "apply_edit": lambda s, now: write(apply_edit, edit("first"), CHAT, None, now),
    "apply_deletion": lambda s, now: write(apply_deletion, deletion("first"), None, now),
    "save_transcript": lambda s, now: write(_keep_transcript, s.waiting[0], RECORDING, "spoken", CALL, now),
    "settle": lambda s, now: write(inbox.settle, s.waiting[1].id, InboxState.DROPPED, now),
    "drop_waiting": lambda s, now: write(command, s.chat_id, in_chat(inbox.drop_waiting, s.chat_id, ANN), now),
}


def asking(db: Connection) -> State:
    """A turn of a group with two questions."""
    chat_id = make_chat(db)
    turn = start(db, chat_id, "do it")
    asked = call_tools(db, turn, "c1", "c2")
    questions = [
        ApprovalRequest(
            tool_call_id=call.id,
            tool_name=call.name,
            shape="look",
            answerer=AnswererRole.STARTER,
            markdown="May I?",
            footer=lambda number: f"/approve a{number}",
            buttons=lambda number: (),
        )
        for call in asked.body.calls
    ]
    approvals.ask(db, turn, asked.id, questions, 1, START)
    return State(chat_id=chat_id, turn=turn, pending=approvals.load_pending(db, chat_id))


def decide(db: Connection, chat_id: ChatId, which: int, state: ApprovalState, now: Millis) -> int:
    """Decide like `/approve`, which looks up open questions inside the transaction."""
    meant = [one for one in approvals.load_pending(db, chat_id) if one.id == which]
    for one in meant:
        approvals.decide(db, one, state, ANN, None, now)
    return len(meant)


def _decided(s: State, which: int, state: ApprovalState, now: Millis) -> WriteRequest:
    return write(command, s.chat_id, in_chat(decide, s.chat_id, s.pending[which].id, state), now)


ASKING: Mapping[str, Writer] = {
    "decide/first": lambda s, now: _decided(s, 0, ApprovalState.APPROVED, now),
    "decide/second": lambda s, now: _decided(s, 1, ApprovalState.DENIED, now),
    "expire_pending": lambda s, now: write(approvals.expire_pending, lambda _db, _one: None, Millis(now + LATER)),
    "stop_turn": BUSY["stop_turn"],
    "fail_turn": BUSY["fail_turn"],
    "finish_turn": BUSY["finish_turn"],
    "note_preview": BUSY["note_preview"],
    "admit/interrupt": lambda s, now: write(admit, say("stop that", "a", busy_mode="interrupt"), now),
    "admit/join": lambda s, now: write(admit, say("also", "b", busy_mode="steer", steered_notice="Joins."), now),
}


def nested(db: Connection) -> State:
    """A turn that waits for a sub-agent, which is about to answer."""
    chat_id, _ = conversations(db)
    turn = start(db, chat_id, "find out")
    asked = call_tools(db, turn, "c1", "c2")
    inner = subagents.open_subagent(db, turn, asked.id, "c1", "look", START)
    assert not isinstance(inner, subagents.SubagentReport)
    call_tools(db, inner, "c9")
    return State(chat_id=chat_id, turn=turn, asked=asked, inner=inner, plan=plan_of(db, chat_id))


NESTED: Mapping[str, Writer] = {
    "finish_turn": BUSY["finish_turn"],
    "stop_turn": BUSY["stop_turn"],
    "fail_turn": BUSY["fail_turn"],
    "finish_tool": BUSY["finish_tool"],
    "open_subagent": lambda s, now: write(subagents.open_subagent, s.turn, s.asked.id, "c1", "look", now),
    "split": BUSY["split"],
    "append_calls/inner": lambda s, now: write(journal.append_calls, s.inner, STEP, now),
    "finish_turn/inner": lambda s, now: write(journal.finish_turn, s.inner, ANSWER, now),
    "fail_turn/inner": lambda s, now: write(journal.fail_turn, s.inner, "ModelTimeout", "It failed.", now),
}


def shared(db: Connection) -> State:
    """A group with one chat per person and with talk that nobody has seen, and its new id, which is already known."""
    keys = [replace(GROUP, user_ref="1"), replace(GROUP, user_ref="2"), key_of("-77", user_ref="1")]
    chats = [ensure_chat(db, key, ChatKind.GROUP, None, START) for key in keys]
    exchange(db, chats[0], "one", "two")
    group = ensure_chat(db, GROUP, ChatKind.GROUP, None, START)
    talk.keep(db, group, say("lunch?", "talk", key=GROUP).message, "lunch?", has_access=True)
    take_account(db, CLAIM.account)
    waiting = [receive(db, chat_id, "again", ref=f"w{at}") for at, chat_id in enumerate(chats)]
    return State(chats=chats, waiting=waiting, owed=outbox.load_open(db, chats[0])[0])


def _started(s: State, which: int, now: Millis) -> WriteRequest:
    return write(_start_turn, s.chats[which], [s.waiting[which]], {}, now, HEARING)


SHARED: Mapping[str, Writer] = {
    "start_turn/one": lambda s, now: _started(s, 0, now),
    "start_turn/other": lambda s, now: _started(s, 1, now),
    "start_turn/moved": lambda s, now: _started(s, 2, now),
    "apply_deletion": lambda s, now: write(apply_deletion, deletion("w0", GROUP), None, now),
    "apply_deletion/other": lambda s, now: write(apply_deletion, deletion("w1", GROUP), None, now),
    "move_chat": lambda s, now: write(move_chat, "telegram", "telegram", "77", "-77", now),
    "admit/old": lambda s, now: write(admit, say("more", "m1", key=replace(GROUP, user_ref="1")), now),
    "admit/new": lambda s, now: write(admit, say("more", "m2", key=key_of("-77", user_ref="1"), may_start=True), now),
    "admit/first": lambda s, now: write(admit, say("hi", "m3", key=key_of("-77", user_ref="3"), may_start=True), now),
    "admit/talk": lambda s, now: write(admit, say("at noon", "noon", key=GROUP, is_talk=True), now),
    "begin_send": BUSY["begin_send"],
    "enqueue": lambda s, now: write(outbox.enqueue, Reply(chat_id=s.chats[0], markdown="hi", dedupe_key="hi"), now),
}


def people(db: Connection) -> State:
    """Two people who wait for approval, one who is paired, and their chat with a steer."""
    chat_id = make_chat(db)
    for at, (name, code) in enumerate([("1", "CODEAAAA"), ("2", "CODEBBBB"), ("3", "CODECCCC")]):
        offer_pairing(db, _stranger(name), code, None, Millis(START + at))
    pairings.approve(db, pairings.hash_code("CODECCCC"), UserRole.USER, "command line", START)
    start(db, chat_id, "what now?")
    receive(db, chat_id, "hurry", mode=InboxMode.STEER, sender=Sender(platform="telegram", id="3", name="3").ref)
    row = inbox.load(db, receive(db, chat_id, "/pair approve", kind=InboxKind.COMMAND))
    return State(chat=load_chat(db, chat_id), row=row)


def _stranger(number: str) -> InboundMessage:
    return say("hello", f"hello{number}", sender=Sender(platform="telegram", id=number, name=number)).message


def _offer(number: str, code: str, now: Millis, **limits: int) -> WriteRequest:
    return write(offer_pairing, _stranger(number), code, None, Millis(now + 600_000), **limits)


PEOPLE: Mapping[str, Writer] = {
    "offer": lambda s, now: _offer("4", "CODEDDDD", now),
    "offer/again": lambda s, now: _offer("4", "CODEEEEE", now),
    "offer/known": lambda s, now: _offer("1", "CODEFFFF", now),
    "offer/full": lambda s, now: _offer("5", "CODEGGGG", now, max_pending=2),
    "approve": lambda s, now: write(approve_pairing, "CODEAAAA", UserRole.USER, "command line", now),
    "approve/chat": lambda s, now: write(
        _carry_out, s.row, s.chat, partial(_approve, "CODEAAAA", UserRole.ADMIN, "somebody"), now, False
    ),
    "revoke": lambda s, now: write(revoke_pairing, ADA.ref, "command line", now),
    "revoke/steer": lambda s, now: write(
        revoke_pairing, Sender(platform="telegram", id="3", name="").ref, "command line", now
    ),
}

SCENES: Mapping[str, tuple[Callable[[Connection], Any], Mapping[str, Writer]]] = {
    "busy": (busy, BUSY),
    "idle": (idle, IDLE),
    "quiet": (quiet, QUIET),
    "asking": (asking, ASKING),
    "nested": (nested, NESTED),
    "shared": (shared, SHARED),
    "people": (people, PEOPLE),
}
