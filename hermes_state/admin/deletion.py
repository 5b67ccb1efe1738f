"""Delete chats, conversations and the data of people on request.

A request is stored first, and carried out as soon as no answer is being written or sent. Messages and replies that have
been waiting for over a minute are deleted as well, because their account may no longer be configured. A chat is hidden
immediately, and its rows are removed in slices in the background. After a restart, the next run continues with the
remaining rows. The row of the chat stays without any text, so that usage figures are kept and the chat's id is never
used again. A conversation moves to a hidden chat of its own, so its rows are removed in the same way. Words of a person
in chats with other people are blanked, because the answers to them stay.

On SQLite, the text is also erased from the file: freed pages are overwritten (`secure_delete`), the parts of the search
index are merged, and the write-ahead log is emptied. See docs/decisions/0028.
"""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import asdict

from hermes_state import outbox
from hermes_state.admin import browsers
from hermes_state.admin.retention import checkpoint, merge_index
from hermes_state.chats import load_chat
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError
from hermes_state.outbox import Reply
from hermes_state.search.full_text import search
from hermes_state.sessions import load_active, load_tip
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, insertion, load_note, save_note, scalar, scalar_or_none, scalars, select
from hermes_state.store.writer import Store
from hermes_state.text import counted
from hermes_state.turns import OPEN_TURNS
from hermes_state.values import LOCAL_OWNER, ChatId, ChatKey, LineageId, MessageId, Millis, SessionId, UserRef
from hermes_state.web_chats import existing, load_listed

SLICE_ROWS, SAMPLE_WORDS = 200, 10
MAX_WAIT_MS, DAY_MS = 60_000, 86_400_000
BLANK = "[removed on request]"
"""Text that replaces a person's words in chats with other people."""
_ASIDE = "conversations of"  # start of the name of a hidden chat for deleted conversations
_TABLES = (
    *("platform_messages", "live_buttons", "talk", "ratings", "outbox", "inbox"),
    *("schedules", "attachments", "tool_grants", "turns", "sessions"),
)


class DeletionTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat, a conversation or a person to delete. Exactly one field is set."""

    chat_id: ChatId | None = None
    lineage_id: LineageId | None = None
    person: UserRef | None = None

    @property
    def note(self) -> str:
        """Key of the note that stores the request."""
        return _REQUEST + msgspec.json.encode(self).decode()


class DeletionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the data that deleting a target would remove."""

    chats: int
    messages: int
    files: int
    schedules: int
    spoken: int
    """Number of a person's messages in chats with other people."""
    oldest_at: Millis | None


# Purpose: find the chats that belong to one person alone. The platform is compared because a button of the console can
# act in the direct chat of another person.
_OWN_CHATS = """
SELECT c.id FROM chats c WHERE c.platform = :platform AND c.deleted_at IS NULL AND (
  (c.user_ref = :id AND (c.user_ref <> '' OR c.kind = 'local')) OR (c.kind = 'direct' AND (c.chat_ref = :id
    OR c.id IN (SELECT chat_id FROM turns WHERE started_by = :person UNION
      SELECT chat_id FROM inbox WHERE sender_ref = :person))))
ORDER BY c.id
"""
# Purpose: find a chat with its threads and the chats of its people. On `local`, they belong to other people.
_NAMED_CHATS = """
SELECT c.id FROM chats n JOIN chats c ON c.id = n.id OR (c.platform = n.platform AND c.account = n.account
  AND c.chat_ref = n.chat_ref AND n.platform <> 'local' AND n.user_ref = '' AND n.thread_ref IN ('', c.thread_ref))
WHERE n.id = ? AND n.deleted_at IS NULL AND c.deleted_at IS NULL ORDER BY c.id
"""
_FAMILY = """
WITH RECURSIVE family(id) AS (
  SELECT lineage_id FROM sessions WHERE lineage_id = ? UNION
  SELECT s.lineage_id FROM family f JOIN sessions p ON p.lineage_id = f.id
  JOIN sessions s ON s.parent_session_id = p.id AND s.kind = 'subagent')
SELECT id FROM family ORDER BY id
"""


def load_chats(db: Connection, target: DeletionTarget) -> list[ChatId]:
    """Load the chats that a target covers completely."""
    if target.person is None:
        return scalars(db, ChatId, _NAMED_CHATS, (target.chat_id,))
    platform, _, name = target.person.partition(":")
    values = {"platform": platform, "id": "" if target.person == LOCAL_OWNER else name, "person": target.person}
    return scalars(db, ChatId, _OWN_CHATS, values)


def _load_reach(db: Connection, target: DeletionTarget) -> tuple[str, str]:
    """Return the ids of a target's chats, and of its conversation and sub-agents, as lists for SQL conditions."""
    family = scalars(db, LineageId, _FAMILY, (target.lineage_id,))
    chats, lineages = (", ".join(map(str, ids)) or "0" for ids in (load_chats(db, target), family))  # no row has id 0
    return chats, lineages


def load_extent(db: Connection, target: DeletionTarget) -> DeletionReport:
    (chats, lineages), is_person = _load_reach(db, target), target.person is not None
    own = f"s.chat_id IN ({chats}) OR s.lineage_id IN ({lineages})"
    spoken = "FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.sender_ref = :person"
    oldest = f"min(m.created_at) {spoken}" if is_person else f"min(started_at) FROM sessions s WHERE {own}"
    query = f"""SELECT (SELECT count(*) FROM chats WHERE id IN ({chats})) AS chats, (SELECT {oldest}) AS oldest_at,
      (SELECT coalesce(sum(s.message_count), 0) FROM sessions s WHERE {own}) AS messages,
      (SELECT count(*) FROM attachments WHERE chat_id IN ({chats}) OR message_id IN
        (SELECT id FROM messages WHERE lineage_id IN ({lineages}))) AS files,
      (SELECT count(*) FROM schedules WHERE chat_id IN ({chats}) OR creator_ref = :person) AS schedules,
      {f"(SELECT count(*) {spoken} AND s.chat_id NOT IN ({chats}))" if is_person else "0"} AS spoken"""
    return select(db, DeletionReport, query, {"person": target.person})[0]


def is_busy(db: Connection, target: DeletionTarget, now: Millis | None = None) -> bool:
    """Return True if a turn of the target is open or, if `now` is given, a message or a reply is waiting.

    What has waited for over a minute at `now` does not count.
    """
    chats, lineages = _load_reach(db, target)
    turns = f"""SELECT EXISTS (SELECT 1 FROM turns WHERE id IN ({OPEN_TURNS})
      AND (chat_id IN ({chats}) OR lineage_id IN ({lineages}) OR started_by = :person))"""
    waiting = f"""OR EXISTS (SELECT 1 FROM inbox WHERE kind <> 'notice'
        AND (state = 'claimed' OR (state = 'new' AND received_at >= :since))
        AND (chat_id IN ({chats}) OR sender_ref = :person))
      OR EXISTS (SELECT 1 FROM outbox o WHERE {outbox.OPEN} AND (state = 'sending'
        OR (state = 'pending' AND created_at >= :since)) AND (chat_id IN ({chats}) OR
         EXISTS (SELECT 1 FROM turns t WHERE t.id = o.turn_id AND t.lineage_id IN ({lineages}))))"""
    values = {"person": target.person, "since": (now or 0) - MAX_WAIT_MS}
    return scalar(db, bool, turns if now is None else f"{turns} {waiting}", values)


# ---- requests

_REQUEST, _ERASURE = "forget.", "erasure"


@locks("notes")
def request(db: Connection, target: DeletionTarget, archived: MessageId | None = None) -> None:
    """Store a request, which survives a restart. `begin` carries it out.

    `archived` is the newest message of an archived conversation. If somebody continues it, the request is dropped.
    """
    if archived is None or load_note(db, target.note) is None:
        save_note(db, target.note, "" if archived is None else str(archived))


def load_requests(db: Connection) -> list[DeletionTarget]:
    keys = scalars(db, str, "SELECT key FROM meta WHERE substr(key, 1, 8) = ? ORDER BY key", (_REQUEST + "{",))
    return [msgspec.json.decode(key.removeprefix(_REQUEST), type=DeletionTarget) for key in keys]


@locks("notes")
def end_request(db: Connection, target: DeletionTarget) -> None:
    db.execute("DELETE FROM meta WHERE key = ?", (target.note,))


def load_archived(db: Connection, target: DeletionTarget) -> dict[str, ChatId]:
    """Return the keys under which a conversation can be in the archive, unless the request comes from archiving it."""
    query = "SELECT key, chat_id FROM sessions WHERE lineage_id = ?"
    return {} if load_note(db, target.note) else dict(db.execute(query, (target.lineage_id,)).fetchall())


@locks(EVERYTHING)
def begin(db: Connection, target: DeletionTarget, now: Millis) -> list[LineageId] | None:
    """Carry out a request: hide the target's chats or conversation. Return the conversations that were in use.

    Return None, and change nothing, if the target is busy. The request of a person stays until `remove_deleted` ends
    it, because messages in chats with other people are still to be blanked. It then names the newest message, so that
    a repetition keeps what the person writes later.
    """
    newest = load_note(db, target.note)
    if newest and target.person is not None:
        return []
    if newest and target.lineage_id is not None and load_newest(db, target.lineage_id) != int(newest):
        end_request(db, target)
        return []
    if is_busy(db, target, now):
        return None
    order_erasure(db, Millis(now + DAY_MS if newest else now), keeps=bool(newest))
    chats, family = load_chats(db, target), scalars(db, LineageId, _FAMILY, (target.lineage_id,))
    ours = f"chat_id IN ({', '.join(map(str, chats)) or '0'})"
    db.execute(f"DELETE FROM outbox WHERE state = 'pending' AND {ours}")
    db.execute(f"DELETE FROM inbox WHERE state = 'new' AND ({ours} OR sender_ref = ?)", (target.person,))
    if target.person is not None:
        _remove_person(db, target.person)
        save_note(db, target.note, scalar(db, str, "SELECT coalesce(max(id), 0) FROM messages"))
    else:
        end_request(db, target)
    ended = [_hide(db, chat_id, now) for chat_id in chats]
    if family:
        _set_aside(db, family, now)
    return [lineage_id for lineage_id in (*ended, *family) if lineage_id is not None]


def load_newest(db: Connection, lineage_id: LineageId) -> MessageId | None:
    """Return the newest message of an ended conversation (0 if it has none), or None if it was resumed or removed."""
    query = """SELECT CASE WHEN count(*) > 0 AND count(*) = count(ended_at) THEN
      (SELECT coalesce(max(id), 0) FROM messages WHERE lineage_id = ?) END FROM sessions WHERE lineage_id = ?"""
    return scalar_or_none(db, MessageId, query, (lineage_id, lineage_id))


@locks("notes")
def order_erasure(db: Connection, at: Millis, *, keeps: bool = False) -> None:
    """Note when the deleted words must be erased from the database's file. `keeps`: unless this is noted already."""
    if not (keeps and load_note(db, _ERASURE)):
        save_note(db, _ERASURE, str(at))


@locks("notes", chat="key")
def hide(db: Connection, key: ChatKey, now: Millis) -> LineageId | None:
    """Hide a chat, free its name, and end its schedules. Return its conversation, if any.

    Raises `CommandError` if the chat is busy.
    """
    if (ended := begin(db, DeletionTarget(chat_id=existing(db, key).id), now)) is None:
        raise CommandError(
            "A message in this chat is being answered. Stop the answer or wait for it, then delete the chat."
        )
    return ended[0] if ended else None


def _hide(db: Connection, chat_id: ChatId, now: Millis) -> LineageId | None:
    active = load_active(db, chat_id)
    query = """UPDATE chats SET deleted_at = ?, unreachable_since = ?, chat_ref = ?, title = NULL, settings = '{}',
      pinned_at = NULL, archived_at = NULL, active_session_id = NULL WHERE id = ?"""
    db.execute(query, (now, now, f"deleted {chat_id}", chat_id))
    db.execute("DELETE FROM schedules WHERE chat_id = ?", (chat_id,))  # otherwise they would start hidden turns
    return None if active is None else active.lineage_id


def _set_aside(db: Connection, family: Sequence[LineageId], now: Millis) -> None:
    """Move a conversation and its sub-agents to the hidden chat for deleted conversations of their chat."""
    source = load_chat(db, load_tip(db, family[0]).chat_id)
    values = asdict(source.key) | {"chat_ref": f"{_ASIDE} {source.id}", "thread_ref": "", "user_ref": ""}
    values |= {"kind": source.kind, "created_at": now, "updated_at": now, "deleted_at": now, "unreachable_since": now}
    query = f"""{insertion("chats", values)} ON CONFLICT (platform, account, chat_ref, thread_ref, user_ref)
      DO UPDATE SET deleted_at = excluded.deleted_at, removed_at = NULL RETURNING id"""
    aside = scalar(db, ChatId, query, values)
    ours = f"lineage_id IN ({', '.join(map(str, family))})"
    for turn_id in scalars(db, int, f"SELECT id FROM turns WHERE {ours} ORDER BY id"):
        _remove_events(db, source.id, f"turn:{turn_id}:")
        db.execute("DELETE FROM outbox WHERE dedupe_key IN (?, ?)", (f"turn:{turn_id}", f"turn:{turn_id}:voice"))
    db.execute(f"DELETE FROM tool_grants WHERE {ours}")
    files = f"message_id IN (SELECT id FROM messages WHERE {ours})"
    db.execute(f"DELETE FROM platform_messages WHERE chat_id = ? AND {files}", (source.id,))
    for table, rows in (("attachments", files), ("turns", ours), ("sessions", ours)):
        db.execute(f"UPDATE {table} SET chat_id = ? WHERE {rows}", (aside,))
    active = "active_session_id IN (SELECT id FROM sessions WHERE lineage_id = ?)"
    db.execute(f"UPDATE chats SET active_session_id = NULL WHERE id = ? AND {active}", (source.id, family[0]))
    db.execute("DELETE FROM live_buttons WHERE chat_id = ?", (source.id,))  # they contain the text of an answer


# ---- people


def _remove_person(db: Connection, person: UserRef) -> None:
    """Remove the rows about a person, except for chats and messages."""
    rows = (("schedules", "creator_ref"), ("ratings", "person"), ("talk", "sender_ref"), ("pairings", "user_ref"))
    for table, name in rows:
        db.execute(f"DELETE FROM {table} WHERE {name} = ?", (person,))
    db.execute("UPDATE approvals SET reason = NULL WHERE decided_by = ?", (person,))
    db.execute("UPDATE inbox SET sender_name = '' WHERE sender_ref = ?", (person,))
    browsers.forget(db, person)


def load_spoken(db: Connection, person: UserRef, until: MessageId | None = None) -> list[MessageId]:
    """Load the messages of a person, and the rows that replace them for the model. `until` is the last message."""
    query = """SELECT m.id FROM messages m WHERE m.sender_ref = :person {0} UNION SELECT r.id FROM messages m
      JOIN messages r ON r.replaces_id = m.id WHERE m.sender_ref = :person {0} ORDER BY 1"""
    up_to = "" if until is None else "AND m.id <= :until"
    return scalars(db, MessageId, query.format(up_to), {"person": person, "until": until})


class FileCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A file that only deleted messages name, and the chat whose workspace can have a copy of it."""

    path: str
    size_bytes: int
    chat_id: ChatId


def _load_files(db: Connection, ours: str) -> list[FileCopy]:
    """Return the files of the attachments that the SQL condition `ours` covers, and of no others."""
    source = f"CAST(substr(c.chat_ref, {len(_ASIDE) + 2}) AS INTEGER)"
    is_aside = f"c.deleted_at IS NOT NULL AND substr(c.chat_ref, 1, {len(_ASIDE)}) = '{_ASIDE}'"
    query = f"""SELECT DISTINCT a.path, a.bytes AS size_bytes,
      CASE WHEN {is_aside} THEN {source} ELSE c.id END AS chat_id FROM attachments a JOIN chats c ON c.id = a.chat_id
    WHERE {ours.format("a")} AND NOT EXISTS (SELECT 1 FROM attachments b WHERE b.sha256 = a.sha256
      AND ({ours.format("b")}) IS NOT TRUE) ORDER BY a.path, chat_id"""
    return select(db, FileCopy, query)


@locks(EVERYTHING)
def _remove_files(db: Connection, ours: str, remove: Callable[[list[str]], None]) -> None:
    """Remove files in the transaction that checks again that no other chat has received the same file."""
    remove(sorted({file.path for file in _load_files(db, ours)}))


@locks(EVERYTHING)
def blank(db: Connection, ids: Sequence[MessageId]) -> None:
    """Remove the words and the sender of messages, but not the rows, because answers follow them."""
    listed = ", ".join(map(str, ids))
    chats = f"SELECT s.chat_id FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id IN ({listed})"
    db.execute(f"UPDATE sessions SET system_prompt = NULL WHERE chat_id IN ({chats})")  # it contains notes about people
    db.execute(f"DELETE FROM attachments WHERE message_id IN ({listed})")
    query = "UPDATE messages SET text = ?, body = NULL, sender_ref = NULL, sender_name = NULL, indexed = 0"
    db.execute(f"{query} WHERE id IN ({listed})", (BLANK,))
    if not isinstance(db, sqlite3.Connection):
        db.execute(f"DELETE FROM message_words WHERE message_id IN ({listed})")


# ---- removal


def load_hidden_chats(db: Connection) -> list[ChatId]:
    query = "SELECT id FROM chats WHERE deleted_at IS NOT NULL AND removed_at IS NULL ORDER BY id"
    return scalars(db, ChatId, query)


def load_hidden_rows(db: Connection) -> tuple[list[ChatId], dict[SessionId, LineageId]]:
    """Return the hidden chats, and the conversations of their sessions."""
    query = """SELECT s.id, s.lineage_id FROM sessions s JOIN chats c ON c.id = s.chat_id
    WHERE c.deleted_at IS NOT NULL AND c.removed_at IS NULL"""
    return load_hidden_chats(db), dict(db.execute(query).fetchall())


@locks(chat="chat_id")
def remove_slice(db: Connection, chat_id: ChatId) -> bool:
    """Remove some messages of a chat, or all other rows if no messages are left. Return True if rows may be left."""
    messages = "SELECT m.id FROM sessions s JOIN messages m ON m.session_id = s.id WHERE s.chat_id = ? LIMIT ?"
    if db.execute(f"DELETE FROM messages WHERE id IN ({messages})", (chat_id, SLICE_ROWS)).rowcount:
        return True
    for table in _TABLES[:-2]:
        db.execute(f"DELETE FROM {table} WHERE chat_id = ?", (chat_id,))
    _remove_events(db, chat_id)
    for table in _TABLES[-2:]:  # their references take long to check
        ids = f"SELECT id FROM {table} WHERE chat_id = ? ORDER BY id DESC LIMIT ?"
        if table == "turns":
            db.execute(f"DELETE FROM previews WHERE turn_id IN ({ids})", (chat_id, SLICE_ROWS))
        if db.execute(f"DELETE FROM {table} WHERE id IN ({ids})", (chat_id, SLICE_ROWS)).rowcount:
            return True
    return False


def _remove_events(db: Connection, chat_id: ChatId, cause: str = "") -> None:
    """Remove the events of webhooks about a chat, or about one cause in it (see `HookWriter.write`)."""
    start = f"{outbox.HOOK_PREFIX}{chat_id}:{cause}"
    db.execute("DELETE FROM outbox WHERE dedupe_key >= ? AND dedupe_key < ?", (start, f"{start}~"))


@locks(chat="chat_id")
def finish(db: Connection, chat_id: ChatId, now: Millis) -> ChatId | None:
    """Mark a chat as removed. For a web chat, enqueue a notice in its owner's newest chat, and return that chat."""
    # Another node may have moved a conversation here in the meantime.
    query = """UPDATE chats SET removed_at = ? WHERE id = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE chat_id = ?)
    RETURNING platform, account, user_ref, deleted_at, chat_ref"""
    if (row := db.execute(query, (now, chat_id, chat_id)).fetchone()) is None:
        return None
    platform, account, user_ref, deleted_at, chat_ref = row
    db.execute("UPDATE chats SET user_ref = '' WHERE id = ?", (chat_id,))
    key = ChatKey(platform=platform, account=account, chat_ref="", user_ref=user_ref)
    if platform != "local" or chat_ref.startswith(_ASIDE) or not (others := load_listed(db, key, 1)):
        return None
    seconds = max(1, round((now - deleted_at) / 1_000))
    text = f"The chat that was deleted {counted(seconds, 'second')} ago is now completely removed from the database."
    outbox.enqueue(db, Reply(chat_id=others[0].id, markdown=text, dedupe_key=f"deleted:{chat_id}"), now)
    return others[0].id


async def remove_deleted(
    store: Store,
    remove_files: Callable[[list[str]], None],
    forget_notes: Callable[[ChatId], None],
    now: Callable[[], Millis],
    people: Sequence[UserRef] = (),
    remove_copies: Callable[[Sequence[FileCopy]], None] = lambda _: None,
) -> list[ChatId]:
    """Remove all data of hidden chats, and blank the messages of `people`. Return the chats that got a notice.

    `remove_files` is called with the paths of attachments. A repetition must have no effect.

    Raises `StoreUnavailable` if the database is not available, and `OSError` if a file cannot be removed.
    """

    async def remove(ours: str) -> None:
        # Remove files before their rows. Otherwise a restart in between would leave files that no row names.
        await asyncio.to_thread(remove_copies, await store.read(_load_files, ours))
        await store.write(_remove_files, ours, remove_files)

    hidden = await store.read(load_hidden_chats)
    for chat_id in hidden:
        await remove(f"{{}}.chat_id = {chat_id}")
        await asyncio.to_thread(forget_notes, chat_id)
        while await store.write(remove_slice, chat_id):  # noqa: ASYNC110
            await asyncio.sleep(0)  # let the chats write in between
    for person in people:
        until = await store.read(load_note, DeletionTarget(person=person).note)
        spoken = await store.read(load_spoken, person, MessageId(int(until or 0)))
        for ids in (spoken[at : at + SLICE_ROWS] for at in range(0, len(spoken), SLICE_ROWS)):
            await remove(f"{{}}.message_id IN ({', '.join(map(str, ids))})")
            await store.write(blank, ids)
        await store.write(end_request, DeletionTarget(person=person))
    due = await store.read(load_note, _ERASURE)
    if (hidden or due) and int(due or 0) <= now():
        if isinstance(store, SqliteStore):
            while await store.write(merge_index, merges_all=True):  # noqa: ASYNC110
                await asyncio.sleep(0.03)  # as long as a step takes, so that the chats get half of the writer's time
            await asyncio.to_thread(checkpoint, store.path, empties=True)
        await store.write(_end_erasure, due)
    told = [await store.write(finish, chat_id, now()) for chat_id in hidden]
    return [chat_id for chat_id in told if chat_id is not None]


@locks("notes")
def _end_erasure(db: Connection, due: str | None) -> None:
    db.execute("DELETE FROM meta WHERE key = ? AND value = ?", (_ERASURE, due))


# ---- proof


def load_sample(db: Connection, target: DeletionTarget) -> list[str]:
    """Return long words from the newest messages of a target, to look for them after the deletion."""
    chats, lineages = _load_reach(db, target)
    query = f"""SELECT m.text FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.text <> ''
      AND (s.chat_id IN ({chats}) OR s.lineage_id IN ({lineages}) OR m.sender_ref = :person)
    ORDER BY m.id DESC LIMIT 200"""
    texts = scalars(db, str, query, {"person": target.person})
    words = {max(re.findall(r"\w+", text), key=len, default="") for text in texts}
    return sorted((word for word in words if len(word) >= 8), key=len)[-SAMPLE_WORDS:]


def unspoken(db: Connection, words: Sequence[str]) -> list[str]:
    """Return the words that no remaining message contains."""
    return [word for word in words if not search(db, f'"{word}"', limit=1)]
