"""Running and waiting turns, their owners, and previews of their answers. `journal` stores the steps of turns.

A preview is stored in the database only if another node shows it to people. Each turn has at most one preview, which is
removed when the turn gets a new owner, is paused or ends.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hermes_state import inbox, outbox
from hermes_state.errors import StateError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, columns, scalar, scalar_or_none, select, select_one
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    ConversationRef,
    InboxId,
    LineageId,
    MessageId,
    Millis,
    ReasoningEffort,
    TurnId,
    UserRef,
)


class TurnMoved(StateError):
    """The turn has ended or is paused, or another process owns it."""


class TurnClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Ownership of a turn in one epoch. Writes with an older epoch are refused."""

    id: TurnId
    epoch: int  # fencing token; each new owner increases it


class ParentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has called a sub-agent."""

    id: TurnId
    lineage_id: LineageId


class RunningTurn(TurnClaim, frozen=True, kw_only=True):
    chat_id: ChatId
    lineage_id: LineageId
    started_by: UserRef
    chat: ChatKey
    chat_kind: ChatKind
    restarts: int
    preview_ref: str | None
    started_at: Millis
    first_inbox_id: InboxId = InboxId(0)  # oldest message that this turn answers
    question_ref: str | None = None  # platform's id of the last message that this turn answers
    ticket: str | None = None  # slash-command ticket of that message
    is_scheduled: bool = False
    is_waiting: bool = False
    """True while the turn is paused for a decision. The chat stays busy."""
    agent: str = ""  # agent of the conversation; '': the agent that the top level of the configuration describes
    chosen_model: str | None = None  # None: the configured model
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort chosen for the conversation. None means the configured effort."""
    parent: ParentTurn | None = None  # set for a sub-agent's turn only

    @property
    def conversation(self) -> ConversationRef:
        return ConversationRef(
            chat_id=self.chat_id,
            lineage_id=self.lineage_id,
            chat=self.chat,
            chat_kind=self.chat_kind,
            turn_id=self.id,
            paid_by=None if self.parent is None else (self.parent.lineage_id, self.parent.id),
        )


TICKET = "CASE q.payload WHEN '' THEN NULL ELSE json_extract(q.payload, '$.ticket') END"
_TURN = f"""
SELECT t.id, t.epoch, t.chat_id, t.lineage_id, t.started_by, {columns(ChatKey, "c", "chat")}, c.kind AS chat_kind,
  t.restarts, t.preview_ref, t.started_at, t.state = 'waiting' AS is_waiting, s.agent, s.chosen_model,
  s.reasoning_effort,
  (SELECT coalesce(min(i.id), 0) FROM inbox i WHERE i.turn_id = t.id) AS first_inbox_id,
  nullif(q.message_ref, '') AS question_ref, {TICKET} AS ticket, {columns(ParentTurn, "p", "parent")},
  EXISTS (SELECT 1 FROM inbox i WHERE i.turn_id = t.id AND i.{inbox.IS_SCHEDULED}) AS is_scheduled
FROM turns t JOIN chats c ON c.id = t.chat_id LEFT JOIN turns p ON p.id = t.parent_turn_id
LEFT JOIN sessions s ON s.lineage_id = t.lineage_id
  AND s.depth = (SELECT max(n.depth) FROM sessions n WHERE n.lineage_id = t.lineage_id)
LEFT JOIN inbox q ON q.id = (SELECT max(i.id) FROM inbox i WHERE i.turn_id = t.id AND i.kind <> 'notice')
"""

# Purpose: start a turn in an idle chat with an open conversation. The placeholders are the starter and a condition.
START = """
INSERT INTO turns (chat_id, lineage_id, state, started_by, started_at)
SELECT c.id, s.lineage_id, 'running', {}, :now FROM chats c JOIN sessions s ON s.id = c.active_session_id
WHERE c.id = :chat_id AND s.ended_at IS NULL {}
  AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.chat_id = c.id AND t.parent_turn_id IS NULL
    AND t.state IN ('running','waiting'))
RETURNING id, lineage_id, EXISTS (SELECT 1 FROM ratings r WHERE r.chat_id = turns.chat_id AND r.was_told = 0)
"""

# Purpose: find open turns with the index of people's turns and the index of sub-agents.
OPEN_TURNS = " UNION ALL ".join(
    f"SELECT id FROM turns WHERE parent_turn_id IS {whose} AND state IN ('running','waiting')"
    for whose in ("NULL", "NOT NULL")
)


def find_turn(db: Connection, turn_id: TurnId) -> RunningTurn | None:
    return select_one(db, RunningTurn, f"{_TURN} WHERE t.id = ? AND t.state = 'running'", (turn_id,))


def first_message(db: Connection, turn_id: TurnId) -> MessageId | None:
    """Return the first row of a conversation's newest turn, or None if it has none."""
    query = """SELECT m.id FROM turns t JOIN messages m ON m.lineage_id = t.lineage_id AND m.turn_id = t.id
      AND m.id > coalesce((SELECT e.id FROM messages e
        WHERE e.lineage_id = t.lineage_id AND e.turn_id < t.id ORDER BY e.id DESC LIMIT 1), 0)
    WHERE t.id = ? ORDER BY m.id LIMIT 1"""
    return scalar_or_none(db, MessageId, query, (turn_id,))


def find_open_turn(db: Connection, chat_id: ChatId) -> RunningTurn | None:
    """Load the running or waiting turn of a chat. A chat has at most one, apart from sub-agents."""
    where = "t.chat_id = ? AND t.parent_turn_id IS NULL AND t.state IN ('running','waiting')"
    return select_one(db, RunningTurn, f"{_TURN} WHERE {where}", (chat_id,))


def find_unended(db: Connection, turn: TurnClaim) -> RunningTurn | None:
    """Load a claimed turn, or return None if it has ended or its epoch has changed."""
    where = "t.id = ? AND t.epoch = ? AND t.state IN ('running','waiting')"
    return select_one(db, RunningTurn, f"{_TURN} WHERE {where}", (turn.id, turn.epoch))


def find_subagents(db: Connection, turn_id: TurnId) -> list[RunningTurn]:
    query = f"{_TURN} WHERE t.parent_turn_id = ? AND t.state = 'running' ORDER BY t.id"
    return select(db, RunningTurn, query, (turn_id,))


def was_stopped(db: Connection, turn_id: TurnId) -> bool:
    return scalar(db, bool, "SELECT EXISTS (SELECT 1 FROM turns WHERE id = ? AND state = 'stopped')", (turn_id,))


def require_running(db: Connection, turn: TurnClaim) -> RunningTurn:
    """Load a claimed turn. Raises `TurnMoved` if it is not running or its epoch has changed."""
    where = "t.id = ? AND t.epoch = ? AND t.state = 'running'"
    found = select_one(db, RunningTurn, f"{_TURN} WHERE {where}", (turn.id, turn.epoch))
    if found is None:
        raise TurnMoved(f"turn {turn.id} is not running in epoch {turn.epoch}")
    return found


def load_running(db: Connection, turn_id: TurnId) -> RunningTurn:
    """Load a turn, regardless of its epoch. Raises `TurnMoved` if it is not running."""
    found = find_turn(db, turn_id)
    if found is None:
        raise TurnMoved(f"turn {turn_id} is not running")
    return found


@locks(turn="claim.id")
def take_up(db: Connection, claim: TurnClaim, is_restart: bool = False) -> RunningTurn:
    """Become the owner of a running turn, so that the previous owner can no longer write to it.

    `is_restart` means that this turn may have crashed the process, so the turn's restart count is increased. `let_go`
    undoes this. Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    moved = "epoch = epoch + 1, restarts = restarts + ?"
    query = f"UPDATE turns SET {moved} WHERE id = ? AND epoch = ? AND state = 'running'"
    if db.execute(query, (int(is_restart), claim.id, claim.epoch)).rowcount != 1:
        raise TurnMoved(f"turn {claim.id} is not running in epoch {claim.epoch}")
    remove_preview(db, claim.id)
    return load_running(db, claim.id)


@locks(turn="turn_ids")
def let_go(db: Connection, turn_ids: Sequence[TurnId]) -> None:
    """Record that open turns were released cleanly, so that resuming them does not count as a restart."""
    query = "UPDATE turns SET restarts = restarts - 1 WHERE id = ? AND state IN ('running','waiting')"
    db.executemany(query, [(turn_id,) for turn_id in turn_ids])


def pause_turn(db: Connection, claim: TurnClaim) -> RunningTurn:
    """Pause a turn until people have approved or denied its tool calls. The chat stays busy.

    Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    turn = require_running(db, claim)
    db.execute("UPDATE turns SET state = 'waiting' WHERE id = ?", (turn.id,))
    remove_preview(db, turn.id)
    return turn


def unpause_turn(db: Connection, turn_id: TurnId) -> None:
    """Resume a paused turn, with a new preview below the question. This does not count as a restart."""
    changes = "state = 'running', preview_ref = NULL, restarts = restarts - 1"
    db.execute(f"UPDATE turns SET {changes} WHERE id = ? AND state = 'waiting'", (turn_id,))


class StoredText(msgspec.Struct, frozen=True, kw_only=True):
    turn_id: TurnId
    text: str
    line: str  # what the turn's tools do, for people
    moved: RunningTurn | None  # the turn, if its epoch is new to the caller


@locks(turn="claim.id")
def store_preview(db: Connection, claim: TurnClaim, text: str, now: Millis, line: str = "") -> None:
    """Store the partial answer and the line about the steps of the caller's turn, for the node that shows them."""
    query = """INSERT INTO previews (turn_id, text, line, shown_at)
    SELECT id, CAST(:text AS TEXT), CAST(:line AS TEXT), CAST(:now AS BIGINT) FROM turns
    WHERE id = :turn_id AND epoch = :epoch AND state = 'running'
    ON CONFLICT (turn_id) DO UPDATE SET text = excluded.text, line = excluded.line, shown_at = excluded.shown_at"""
    db.execute(query, {"text": text, "line": line, "now": now, "turn_id": claim.id, "epoch": claim.epoch})


def load_previews(db: Connection, turn_ids: Iterable[TurnId], known: Mapping[TurnId, int]) -> list[StoredText]:
    """Load the previews of running turns. If a turn's epoch differs from the one in `known`, also load the turn."""
    query = """SELECT t.epoch, p.text, p.line FROM previews p JOIN turns t ON t.id = p.turn_id
    WHERE p.turn_id = ? AND t.state = 'running'"""
    found = []
    for turn_id in turn_ids:
        if (row := db.execute(query, (turn_id,)).fetchone()) is not None:
            epoch, text, line = row
            moved = None if known.get(turn_id) == epoch else find_turn(db, turn_id)
            found.append(StoredText(turn_id=turn_id, text=text, line=line, moved=moved))
    return found


def remove_preview(db: Connection, turn_id: TurnId) -> None:
    db.execute("DELETE FROM previews WHERE turn_id = ?", (turn_id,))


@locks(turn="claim.id")
def note_preview(db: Connection, claim: TurnClaim, ref: str) -> None:
    """Store the platform's id of the message that shows the turn's preview, so that a resumed turn can find it.

    If the turn is stopped while its first preview is being sent, its reply still replaces the preview.
    """
    query = "UPDATE turns SET preview_ref = ? WHERE id = ? AND epoch = ?"
    if db.execute(query, (ref, claim.id, claim.epoch)).rowcount == 1:
        outbox.replace_preview(db, claim.id, ref)
