import sqlite3
from collections.abc import Callable

import msgspec
import pytest

from hermes_state import inbox, journal, outbox
from hermes_state.inbox import InboxKind, InboxMode
from hermes_state.journal import InboxMoved, ModelAnswer, PreparedMessage
from hermes_state.outbox import OutboxKind, OutboxState, RenderedReply, Reply, take_account
from hermes_state.sessions import choose_effort, choose_model, load_active, load_tip
from hermes_state.store.sql import Connection, scalar
from hermes_state.tool_runs import ToolResult, ToolRunState, load_tool_runs
from hermes_state.tools.subagents import open_subagent
from hermes_state.transcripts import load_messages, load_view
from hermes_state.turns import (
    RunningTurn,
    TurnMoved,
    find_open_turn,
    find_turn,
    let_go,
    load_previews,
    note_preview,
    pause_turn,
    remove_preview,
    require_running,
    store_preview,
    take_up,
)
from hermes_state.values import (
    AttachmentId,
    ChatKind,
    Document,
    LineageId,
    Message,
    MessageBody,
    MessageRole,
    Millis,
    Origin,
    OutboundPart,
    Quote,
    ToolCall,
    TurnId,
)
from tests.databases import REJECTED
from tests.hermes_state.rows import (
    ANN,
    BOB,
    CALL,
    LONG_CALL_ID,
    START,
    answer_call,
    call_tools,
    exchange,
    finish,
    make_chat,
    receive,
    received,
    replies,
    seen,
    start,
    states,
)


def test_a_turn_binds_its_rows_and_stores_one_human_row_each(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    ids = [receive(db, chat, "one", ref="777"), receive(db, chat, "two")]
    turn = journal.start_turn(db, chat, ids, {}, START)
    said = load_messages(db, turn.lineage_id, 10)
    assert [(row.text, row.role, row.origin, row.sender_ref) for row in said] == [
        ("one", MessageRole.USER, Origin.HUMAN, ANN),
        ("two", MessageRole.USER, Origin.HUMAN, ANN),
    ]
    assert all(row.turn_id == turn.id for row in said)
    assert states(db, chat) == ["claimed", "claimed"]
    assert ("777", said[0].id) in db.execute("SELECT ref, message_id FROM platform_messages").fetchall()
    with pytest.raises(REJECTED):
        start(db, chat, "a second open turn")


def test_a_row_starts_one_turn_only(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "once")
    finish(db, journal.start_turn(db, chat, [row], {}, START), "done")
    with pytest.raises(InboxMoved):
        journal.start_turn(db, chat, [row], {}, START)


def test_a_message_to_an_idle_chat_is_stored_with_its_turn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    assert journal.start_at_once(db, received(chat, "one"), START) is None, "it opens no conversation"
    exchange(db, chat, "one", "a1")
    row = received(chat, "two")
    started = journal.start_at_once(db, row, START)
    assert started is not None
    inbox_id, turn = started
    assert (turn.first_inbox_id, turn.question_ref) == (inbox_id, row.message_ref)
    assert load_messages(db, turn.lineage_id, 10)[-1].text == "two"
    assert states(db, chat) == ["done", "claimed"]
    assert journal.start_at_once(db, received(chat, "three"), START) is None, "the chat is busy"
    finish(db, turn, "a2")
    assert journal.start_at_once(db, row, START) is None, "it was stored before"
    assert states(db, chat) == ["done", "done"]
    assert scalar(db, int, "SELECT count(*) FROM turns") == 2


def test_a_withdrawn_row_prevents_the_turn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    kept, gone = receive(db, chat, "kept"), receive(db, chat, "gone", ref="x")
    assert inbox.withdraw(db, chat, "x", START) == 1
    with pytest.raises(InboxMoved):
        journal.start_turn(db, chat, [kept, gone], {}, START)
    assert states(db, chat) == ["new", "withdrawn"]
    assert find_open_turn(db, chat) is None
    assert load_active(db, chat) is None


def test_the_turn_starter_is_the_asker_not_an_earlier_editor(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    notice = receive(db, chat, "(changed)", kind=InboxKind.NOTICE, sender=BOB)
    asked = receive(db, chat, "question", sender=ANN)
    turn = journal.start_turn(db, chat, [notice, asked], {}, START)
    assert turn.started_by == ANN
    assert [row.origin for row in load_messages(db, turn.lineage_id, 5)] == [Origin.NOTICE, Origin.HUMAN]


def test_prepared_attachments_are_stored_with_the_row(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "look at this")
    db.execute("INSERT INTO attachments VALUES (5, ?, NULL, 'a', 'a', 'a', NULL, 1, 0)", (chat,))
    body = MessageBody(documents=(Document(name="a.txt", text="words"),))
    prepared = {row: PreparedMessage(body=body, attachment_ids=(AttachmentId(5),))}
    turn = journal.start_turn(db, chat, [row], prepared, START)
    [message] = load_messages(db, turn.lineage_id, 5)
    assert message.body == body
    assert db.execute("SELECT message_id FROM attachments").fetchone() == (message.id,)


def test_a_quote_of_the_newest_answer_is_not_repeated(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "q", "older")
    turn = start(db, chat, "q2")
    newest = finish(db, turn, "newest")
    older = db.execute("SELECT min(id) FROM messages WHERE role = 'assistant'").fetchone()[0]
    db.execute("INSERT INTO platform_messages VALUES (?, 'old', ?, 0), (?, 'new', ?, 0)", (chat, older, chat, newest))
    quotes = [Quote(message_ref=ref, author="bot", text="…", is_from_bot=True) for ref in ("old", "new", "unknown")]
    ids = [receive(db, chat, f"reply {number}", quote=quote) for number, quote in enumerate(quotes)]
    turn = journal.start_turn(db, chat, ids, {}, START)
    rows = load_messages(db, turn.lineage_id, 3)
    assert [row.body.quote for row in rows] == [quotes[0], None, quotes[2]]


def test_a_steer_joins_after_the_last_result(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    turn = start(db, chat, "go")
    asked = call_tools(db, turn, "a")
    receive(db, chat, "also this", mode=InboxMode.STEER, ref="r-steer", ticket="t-steer", at=START + 1)
    receive(db, chat, "later", at=START + 2)
    answer_call(db, turn, asked, "a")
    assert journal.join_steers(db, turn, START) == 1
    assert seen(db, turn.lineage_id) == ["go", "", "found", "also this"]
    assert states(db, chat) == ["claimed", "claimed", "new"]
    note_preview(db, turn, "p9")
    finish(db, turn, "done")
    assert states(db, chat) == ["done", "done", "new"]
    [row] = outbox.load_open(db, chat)
    assert (row.reply_to, row.ticket, row.replaces) == ("r-steer", "t-steer", "p9"), "of the steer"


def test_a_late_steer_waits_for_the_next_turn(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    first = start(db, chat, "ann asks", at=START)
    queued = receive(db, chat, "bob asks", sender=BOB, at=START + 1)
    receive(db, chat, "ann steers", mode=InboxMode.STEER, at=START + 2)
    finish(db, first, "answer for ann")
    second = journal.start_turn(db, chat, [queued], {}, Millis(START + 3))
    asked = call_tools(db, second, "a")
    answer_call(db, second, asked, "a")
    assert journal.join_steers(db, second, Millis(START + 4)) == 0
    assert [row.payload.text for row in inbox.load_waiting(db, chat)] == ["ann steers"]


def test_the_answer_of_a_deleted_conversation_is_refused(db: sqlite3.Connection) -> None:
    turn = start(db, make_chat(db), "go")
    deleted = msgspec.structs.replace(turn, id=TurnId(99), lineage_id=LineageId(99))
    with pytest.raises(TurnMoved):
        finish(db, deleted, "late")


def test_rows_of_an_open_turn_start_no_other_turn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    asked = receive(db, chat, "go")
    journal.start_turn(db, chat, [asked], {}, START)
    with pytest.raises(journal.InboxMoved):
        journal.start_turn(db, chat, [asked], {}, START)


STEPS: dict[str, Callable[[sqlite3.Connection, RunningTurn, Message], object]] = {
    "append calls": lambda db, turn, asked: call_tools(db, turn, "c"),
    "start tools": lambda db, turn, asked: journal.start_tools(db, turn, asked.id, asked.body.calls, START),
    "finish a tool": lambda db, turn, asked: answer_call(db, turn, asked, "a"),
    "join steers": lambda db, turn, asked: journal.join_steers(db, turn, START),
    "pause": lambda db, turn, asked: pause_turn(db, turn),
    "open a sub-agent": lambda db, turn, asked: open_subagent(db, turn, asked.id, "a", "count", START),
    "finish": lambda db, turn, asked: finish(db, turn, "late"),
    "take up": lambda db, turn, asked: take_up(db, turn, True),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("is_taken_up", [False, True], ids=["closed", "taken up"])
def test_a_step_of_a_closed_or_taken_up_turn_is_refused(
    db: sqlite3.Connection, step: Callable[[sqlite3.Connection, RunningTurn, Message], object], is_taken_up: bool
) -> None:
    turn = start(db, make_chat(db, kind=ChatKind.GROUP), "go")
    asked = call_tools(db, turn, "a", "b")
    receive(db, turn.chat_id, "also this", mode=InboxMode.STEER)
    if is_taken_up:
        taken = take_up(db, turn, True)
        assert (turn.epoch, taken.epoch) == (1, 2)
    else:
        assert journal.stop_turn(db, turn, "", "stopped", START, notice="(stopped)")
    before = stored(db)
    db.execute("BEGIN")
    with pytest.raises(TurnMoved):
        step(db, turn, asked)
    db.execute("ROLLBACK")  # like the writer
    assert not journal.stop_turn(db, turn, "so far", "stopped", START, notice="(stopped)")
    assert not journal.fail_turn(db, turn, "ModelTimeout", "It took too long.", START)
    assert stored(db) == before
    if is_taken_up:
        note_preview(db, turn, "p1")
        assert stored(db) == before
        assert require_running(db, taken) == taken
        answer_call(db, taken, asked, "a")
        assert journal.join_steers(db, taken, START) == 1


def stored(db: sqlite3.Connection) -> list[list[tuple[object, ...]]]:
    """Return all rows that the steps of a turn write."""
    tables = ("turns", "inbox", "messages", "tool_runs", "model_calls", "outbox", "sessions")
    return [db.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() for table in tables]


@pytest.mark.parametrize("call_id", ["a", LONG_CALL_ID])
def test_beginning_a_call_twice_keeps_its_first_row(db: sqlite3.Connection, call_id: str) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "go")
    asked = call_tools(db, turn, call_id, "b")
    journal.start_tools(db, turn, asked.id, asked.body.calls[:1], START)
    answer_call(db, turn, asked, call_id)
    journal.start_tools(db, turn, asked.id, asked.body.calls, START)
    assert load_tool_runs(db, asked.id) == {call_id: ToolRunState.DONE, "b": ToolRunState.STARTED}


def test_reported_tokens_cover_the_rows_before_the_answer_and_the_last_report_stays(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "one", "two")
    finish(db, turn, "answer", tokens=321)
    turn = start(db, chat, "q2")
    journal.finish_turn(db, turn, ModelAnswer(text="a2", call=CALL, reported_prompt_tokens=None), START)
    session = load_tip(db, turn.lineage_id)
    assert (session.reported_prompt_tokens, session.reported_at_seq) == (321, 2)


def test_every_call_is_in_the_ledger_and_in_the_totals(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "go")
    asked = call_tools(db, turn, "a")
    answer_call(db, turn, asked, "a")
    finish(db, turn, "done")
    session = load_tip(db, turn.lineage_id)
    ledger = db.execute("SELECT lineage_id, session_id, turn_id, input_tokens FROM model_calls").fetchall()
    assert ledger == [(turn.lineage_id, session.id, turn.id, 10)] * 2
    totals = "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens FROM sessions"
    assert db.execute(totals).fetchone() == (20, 10, 6, 4, 2)


@pytest.mark.parametrize("kind", [ChatKind.DIRECT, ChatKind.GROUP])
def test_finishing_stores_the_answer_settles_the_inbox_and_enqueues_the_reply(
    db: sqlite3.Connection, kind: ChatKind
) -> None:
    chat = make_chat(db, kind=kind)
    ids = [receive(db, chat, "one"), receive(db, chat, "two", ref="r2", ticket="t1")]
    turn = journal.start_turn(db, chat, ids, {}, START)
    note_preview(db, turn, "p9")
    message_id = finish(db, turn, "the answer")
    assert states(db, chat) == ["done", "done"]
    assert db.execute("SELECT DISTINCT payload FROM inbox").fetchall() == [("",)]
    query = "SELECT kind, dedupe_key, message_id, turn_id, replaces, ticket, reply_to FROM outbox"
    reply_to = "r2" if kind is ChatKind.GROUP else None
    sent = [("final", f"turn:{turn.id}", message_id, turn.id, "p9", "t1", reply_to)]
    assert db.execute(query).fetchall() == sent
    assert not journal.stop_turn(db, turn, "partial", "stopped", START, notice="(stopped)")
    assert not journal.fail_turn(db, turn, "error", "Sorry.", START)
    assert db.execute(query).fetchall() == sent
    assert find_open_turn(db, chat) is None


def test_stopping_keeps_the_partial_answer_and_answers_open_calls(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "go")
    asked = call_tools(db, turn, "a", "b", "c", text="let me see")
    journal.start_tools(db, turn, asked.id, asked.body.calls[:2], START)
    answer_call(db, turn, asked, "a")
    assert journal.stop_turn(db, turn, "so far I found", "stopped with /stop", START, notice="(stopped)")
    view = load_view(db, turn.lineage_id).transcript
    assert [(row.role, row.tool_call_id, row.text) for row in view[2:]] == [
        (MessageRole.TOOL, "a", "found"),
        (MessageRole.TOOL, "b", "stopped with /stop"),
        (MessageRole.TOOL, "c", "stopped with /stop"),
        (MessageRole.ASSISTANT, None, "so far I found"),
    ]
    assert view[-1].body.was_interrupted
    runs = load_tool_runs(db, asked.id)
    assert runs == {"a": ToolRunState.DONE, "b": ToolRunState.STOPPED, "c": ToolRunState.STOPPED}
    assert states(db, chat) == ["done"]
    [(kind, payload)] = replies(db, chat)
    assert kind == "final"
    assert "so far I found" in payload


@pytest.mark.parametrize(
    ("is_stored", "preview", "kept"),
    [
        *((True, "so far I", "so far I"), (True, "Let me", None), (True, "Let me look.\n", None), (True, None, None)),
        *((False, "so far I", "so far I"), (False, "Let me look. ", None)),
    ],
)
def test_a_stopped_turn_keeps_its_last_preview_unless_it_repeats_the_last_step(
    db: sqlite3.Connection, is_stored: bool, preview: str | None, kept: str | None
) -> None:
    """Another node stores the preview, and the turn's own node knows it."""
    turn = start(db, make_chat(db), "go")
    call_tools(db, turn, "a", text="Let me look.")
    note_preview(db, turn, "p1")
    if is_stored and preview is not None:
        db.execute("INSERT INTO previews (turn_id, text, shown_at) VALUES (?, ?, ?)", (turn.id, preview, START))
    assert journal.stop_turn(db, turn, None if is_stored else preview or "", "stopped", START, notice="(stopped)")
    assert seen(db, turn.lineage_id) == ["go", "Let me look.", "stopped", *filter(None, [kept])]
    newest = load_view(db, turn.lineage_id).transcript[-1]
    assert newest.body.was_interrupted == (kept is not None)
    assert [kind for kind, _ in replies(db, turn.chat_id)] == ["final" if kept else "status"]


def test_failing_leaves_a_valid_transcript_and_one_sentence(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "go")
    asked = call_tools(db, turn, "a")
    journal.start_tools(db, turn, asked.id, asked.body.calls, START)
    assert journal.fail_turn(db, turn, "ModelTimeout", "It took too long.", START)
    view = load_view(db, turn.lineage_id).transcript
    assert [row.role for row in view] == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL]
    assert load_tool_runs(db, asked.id) == {"a": ToolRunState.UNKNOWN}
    assert [(kind, "took too long" in payload) for kind, payload in replies(db, chat)] == [("error", True)]
    assert db.execute("SELECT state, error FROM turns").fetchone() == ("failed", "ModelTimeout")


def test_a_preview_noted_after_the_stop_is_still_replaced(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "go")
    journal.stop_turn(db, turn, "partial", "stopped", START, notice="(stopped)")
    note_preview(db, turn, "p1")
    assert db.execute("SELECT replaces FROM outbox").fetchall() == [("p1",)]


@pytest.mark.parametrize("left", ["before", "after", "never"])
def test_taking_up_a_turn_left_in_order_is_not_a_restart(db: sqlite3.Connection, left: str) -> None:
    """In either order: a disconnected owner may report it only after the turn has a new owner."""
    turn = take_up(db, start(db, make_chat(db), "go"), False)
    assert turn.restarts == 0
    if left == "before":
        let_go(db, [turn.id])
    taken = take_up(db, turn, True)
    if left == "after":
        let_go(db, [turn.id])
    found = require_running(db, taken)
    assert found == find_open_turn(db, turn.chat_id)
    assert found.restarts == (left == "never")
    finish(db, taken, "done")
    let_go(db, [turn.id])
    assert db.execute("SELECT state, restarts FROM turns").fetchall() == [("finished", int(left == "never"))]


def test_a_retry_binds_its_command_and_settles_it_with_the_answer(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "q", "a")
    command = receive(db, chat, "/retry", kind=InboxKind.COMMAND)
    turn = journal.start_retry(db, command, chat, ANN, START)
    with pytest.raises(REJECTED):
        journal.start_retry(db, command, chat, ANN, START)
    finish(db, turn, "better")
    assert states(db, chat) == ["done", "done"]
    with pytest.raises(InboxMoved):
        journal.start_retry(db, command, chat, ANN, START)


def test_a_refused_call_gets_its_own_run(db: sqlite3.Connection) -> None:
    turn = start(db, make_chat(db), "go")
    asked = call_tools(db, turn, "a")
    call = ToolCall(id="a", name="nothing", arguments="{}")
    refused = ToolResult(call_message_id=asked.id, call=call, text="no such tool", state=ToolRunState.FAILED)
    row = journal.finish_tool(db, turn, refused, START)
    assert (row.role, row.tool_call_id, row.text) == (MessageRole.TOOL, "a", "no such tool")
    assert load_tool_runs(db, asked.id) == {"a": ToolRunState.FAILED}


@pytest.mark.parametrize("kind", [ChatKind.DIRECT, ChatKind.GROUP])
def test_a_started_turn_is_found(db: sqlite3.Connection, kind: ChatKind) -> None:
    chat = make_chat(db, kind=kind)
    exchange(db, chat, "before", "yes")
    session = load_active(db, chat)
    assert session is not None
    choose_model(db, session.id, "other")
    choose_effort(db, session.id, "high")
    notice = receive(db, chat, "edited", kind=InboxKind.NOTICE, sender=BOB)
    ids = [notice, receive(db, chat, "one"), receive(db, chat, "two", ticket="t2")]
    turn = journal.start_turn(db, chat, ids, {}, START)
    assert find_turn(db, turn.id) == turn
    assert (turn.ticket, turn.chosen_model, turn.reasoning_effort) == ("t2", "other", "high")


@pytest.mark.parametrize("is_first", [True, False], ids=["at once", "after an earlier reply"])
def test_an_answer_sent_at_once_waits_only_for_earlier_replies(db: sqlite3.Connection, is_first: bool) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "q")
    answer = ModelAnswer(text="a", call=CALL, reported_prompt_tokens=None)
    parts = [OutboundPart(text=text, plain=text) for text in ("a1", "a2")]
    rendered = RenderedReply(parts=parts, ownership=take_account(db, "telegram")[0])
    if not is_first:
        outbox.enqueue(db, Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown="first", dedupe_key="k"), START)
        assert journal.finish_turn(db, turn, answer, START, rendered)[1] is None
        assert [row.state for row in outbox.load_open(db, chat)] == [OutboxState.PENDING] * 2
        return
    _, first = journal.finish_turn(db, turn, answer, START, rendered)
    assert first is not None
    assert (first.rendered, first.attempts, first.first_tried_at) == (parts[0], 1, START)
    stored = [(row.state, row.rendered, row.attempts) for row in outbox.load_open(db, chat)]
    assert stored == [(OutboxState.SENDING, parts[0], 1), (OutboxState.PENDING, parts[1], 0)]
    assert outbox.mark_sent(db, first.id, "p1", START), "the second part is owed"


def texts(db: Connection, turn: RunningTurn) -> list[str]:
    return [one.text for one in load_previews(db, [turn.id], {})]


def test_a_preview_comes_with_its_turn_unless_known(db: Connection) -> None:
    turn = start(db, make_chat(db), "q")
    assert texts(db, turn) == []
    store_preview(db, turn, "", START)
    store_preview(db, turn, "so far", START)
    [stored] = load_previews(db, [turn.id, TurnId(turn.id + 1)], {turn.id: turn.epoch - 1})
    assert (stored.text, stored.moved) == ("so far", turn)
    [stored] = load_previews(db, [turn.id], {turn.id: turn.epoch})
    assert stored.moved is None


def test_a_former_owner_stores_no_preview(db: Connection) -> None:
    old = start(db, make_chat(db), "q")
    store_preview(db, old, "of the old", START)
    new = take_up(db, old)
    assert texts(db, new) == [], "nobody says yet that it is worked on"
    store_preview(db, old, "of the old", START)
    assert texts(db, new) == []
    store_preview(db, new, "of the new", START)
    assert texts(db, new) == ["of the new"]


@pytest.mark.parametrize(
    "end",
    [
        lambda db, turn: pause_turn(db, turn),
        lambda db, turn: journal.stop_turn(db, turn, "so far", "stopped", START, notice="(stopped)"),
        lambda db, turn: journal.fail_turn(db, turn, "ModelTimeout", "It failed.", START),
        lambda db, turn: finish(db, turn, "a"),
    ],
    ids=["pause", "stop", "fail", "finish"],
)
def test_a_turn_that_does_not_run_stores_no_preview(
    db: Connection, end: Callable[[Connection, RunningTurn], object], request: pytest.FixtureRequest
) -> None:
    turn = start(db, make_chat(db), "q")
    store_preview(db, turn, "so far", START)
    end(db, turn)
    assert texts(db, turn) == []
    store_preview(db, turn, "too late", START)
    if "finish" in request.node.name:
        remove_preview(db, turn.id)  # later, because the finishing transaction is short
    assert db.execute("SELECT * FROM previews").fetchall() == []
