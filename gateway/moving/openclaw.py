"""State directory of OpenClaw: SQLite databases of each agent, or the older JSON lines, and the workspace."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from agent.memory.notes import Target
from gateway.moving.conversations import (
    KINDS,
    Fields,
    ImportedChat,
    ImportedConversation,
    ImportedSchedule,
    Row,
    Unreadable,
    call,
    chat_of,
    message,
)
from gateway.moving.files import cron_of, read_database, read_json, skills_in, text_of
from hermes_state.errors import CommandError
from hermes_state.text import counted
from hermes_state.values import ChatKind, Origin

_SESSIONS = """SELECT w.session_id, w.session_key, w.created_at, w.display_name, n.entry_json FROM session_windows w
LEFT JOIN session_nodes n ON n.session_key = w.session_key ORDER BY w.created_at, w.session_id"""
_INTERNAL = {"subagent", "cron", "hook", "acp", "heartbeat"}
_Session: TypeAlias = tuple[str, str, Fields, Iterable[Fields]]
"""Id, key and entry of a session, and its events."""


class OpenClawSource:
    def __init__(self, home: Path) -> None:
        self.home, self.faults = home, list[str]()
        self._agents = sorted(one for one in (home / "agents").glob("*") if one.is_dir())
        if not self._agents:
            raise CommandError(f"{home} has no folder `agents`. Name the state directory of OpenClaw.")
        self.workspace = home / "workspace"

    def conversations(self) -> Iterator[ImportedConversation]:
        runs = 0
        for session_id, key, entry, events in (one for agent in self._agents for one in self._sessions(agent)):
            if not _INTERNAL.isdisjoint(key.split(":")):
                runs += 1
                continue
            try:
                chat, title = _chat(session_id, key, entry), entry.get("label") or entry.get("displayName")
                for number, rows in enumerate(self._windows(session_id, events, chat)):
                    yield ImportedConversation(
                        source_id=f"openclaw:{session_id}:{number}", chat=chat, title=title, is_open=True, rows=rows
                    )
            except (Unreadable, sqlite3.Error, KeyError, TypeError, ValueError) as error:
                self.faults.append(f"conversation {session_id}: {error!r}")
        if runs:
            self.faults.append(f"{counted(runs, 'run')} of schedules, sub-agents and webhooks: not a conversation")

    def _sessions(self, agent: Path) -> Iterator[_Session]:
        database, seen = agent / "agent" / "openclaw-agent.sqlite", set[str]()
        if database.exists():
            db = read_database(database)
            for row in db.execute(_SESSIONS).fetchall():
                seen.add(row["session_id"])
                entry = {"displayName": row["display_name"], **json.loads(row["entry_json"] or "{}")}
                yield row["session_id"], row["session_key"], entry, self._stored(db, row["session_id"])
        entries = read_json(agent / "sessions" / "sessions.json", {})
        keys = {
            Path(one.get("sessionFile") or f"{one.get('sessionId')}.jsonl").stem: (key, one)
            for key, one in entries.items()
        }
        for file in sorted((agent / "sessions").glob("*.jsonl")):
            if file.stem not in seen:
                key, entry = keys.get(file.stem, ("", {}))
                yield file.stem, key, entry, self._lines(file)

    def _stored(self, db: sqlite3.Connection, session_id: str) -> Iterator[Fields]:
        for row in db.execute("SELECT * FROM transcript_events WHERE session_id = ? ORDER BY seq", (session_id,)):
            text = row["event_json"]
            if text is None:
                text = _decompressed(row["event_zstd"])
            yield from self._event(text, f"message {row['seq']} of conversation {session_id}")

    def _lines(self, file: Path) -> Iterator[Fields]:
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            yield from self._event(line, f"{file} line {number}")

    def _event(self, text: str | bytes, name: str) -> Iterator[Fields]:
        try:
            yield json.loads(text)
        except ValueError as error:
            self.faults.append(f"{name}: {error}")

    def _windows(self, session_id: str, events: Iterable[Fields], chat: ImportedChat) -> Iterator[list[Row]]:
        """Yield the rows of each conversation in a session. A reset begins a new one."""
        rows, positions = list[Row](), dict[str, int]()
        for event in _branch(events):
            kind = event.get("type")
            try:
                if kind == "message" and event["message"].get("role") in ("user", "assistant", "toolResult"):
                    positions[event["id"]] = len(rows)
                    rows.append(_row(event["message"], chat))
                elif kind == "compaction":
                    kept = rows[positions.get(event.get("firstKeptEntryId", ""), len(rows)) :]
                    summary = {"origin": Origin.SUMMARY, "sender_ref": None, "sender_name": None}
                    rows += [message("user", event["summary"], _millis(event["timestamp"]), chat, **summary), *kept]
                elif kind == "reset" and rows:
                    yield rows
                    rows, positions = [], {}
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                self.faults.append(f"message {event.get('id')} of conversation {session_id}: {error}")
        if rows:
            yield rows

    def schedules(self) -> Iterator[ImportedSchedule]:
        database, jobs = (
            self.home / "state" / "openclaw.sqlite",
            read_json(self.home / "cron" / "jobs.json", {}).get("jobs", []),
        )
        if database.exists():
            jobs = [
                json.loads(row["job_json"]) for row in read_database(database).execute("SELECT job_json FROM cron_jobs")
            ]
        for job in jobs:
            try:
                yield _schedule(job)
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                self.faults.append(f"schedule {job.get('name')!r}: {error}")

    def notes(self) -> Mapping[Target, str]:
        return {"memory": text_of(self.workspace / "MEMORY.md"), "user": text_of(self.workspace / "USER.md")}

    def skills(self) -> Iterator[Path]:
        return chain(skills_in(self.workspace / "skills"), skills_in(self.home / "skills"))

    @property
    def persona(self) -> str:
        return text_of(self.workspace / "SOUL.md")


def _branch(events: Iterable[Fields]) -> list[Fields]:
    """Return the events of the branch in use, oldest first. The events of the first versions have no ids."""
    known, path, at = dict[str, Fields](), list[Fields](), None
    for event in events:
        path.append(event)
        if isinstance(event.get("id"), str) and event.get("type") != "session":
            known[event["id"]] = event
            at = event.get("targetId") if event["type"] == "leaf" else event["id"]
    if not known:
        return path
    path = []
    while (event := known.pop(str(at), {})) != {}:  # removed, so that a cycle ends
        path.append(event)
        at = event.get("parentId")
    return path[::-1]


def _row(said: Fields, chat: ImportedChat) -> Row:
    parts = said["content"] if isinstance(said["content"], list) else []
    calls = [call(part["id"], part["name"], part["arguments"]) for part in parts if part.get("type") == "toolCall"]
    if said["role"] == "toolResult":
        names = {"tool_call_id": str(said["toolCallId"]), "tool_name": said.get("toolName")}
        return message("tool", said["content"], _millis(said["timestamp"]), chat, **names)
    return message(said["role"], said["content"], _millis(said["timestamp"]), chat, calls=calls)


def _millis(at: Any) -> Any:
    return datetime.fromisoformat(at).timestamp() * 1_000 if isinstance(at, str) else at


def _chat(session_id: str, key: str, entry: Fields) -> ImportedChat:
    """Return the chat in the session's key, such as `agent:main:telegram:group:-100:topic:7`, or in its delivery."""
    words = key.split(":")[2:]
    at = next((index for index, word in enumerate(words) if word in KINDS and 0 < index < len(words) - 1), None)
    title = entry.get("subject") or entry.get("displayName")
    if at is not None:
        platform, kind, place = words[0], KINDS[words[at]], words[at + 1]
        thread = words[at + 3] if words[at + 2 : at + 3] in (["topic"], ["thread"]) and len(words) > at + 3 else ""
    else:
        way = entry.get("deliveryContext") or entry.get("delivery") or {}
        platform, kind, thread = str(way.get("channel") or entry.get("lastChannel") or ""), ChatKind.DIRECT, ""
        place = str(way.get("to") or entry.get("lastTo") or "").rpartition(":")[2]
        kind = ChatKind.GROUP if place.startswith("-") else kind
    if platform == "discord" and kind is ChatKind.DIRECT:
        place = ""  # the id of the person, not of the channel
    return chat_of(platform, place, kind, thread=thread, title=title, person=(None, None), other=key or session_id)


def _decompressed(data: bytes) -> bytes:
    try:
        from compression.zstd import decompress  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from zstandard import ZstdDecompressor  # a dependency of discord.py on older versions

        return ZstdDecompressor().decompressobj().decompress(data)
    return bytes(decompress(data))


def _schedule(job: Fields) -> ImportedSchedule:
    when, payload, way, chat = job["schedule"], job["payload"], job.get("delivery") or {}, None
    platform, place = str(way.get("channel") or ""), str(way.get("to") or "").rpartition(":")[2]
    if place and platform in ("telegram", "discord"):
        kind = ChatKind.GROUP if place.startswith("-") else ChatKind.DIRECT
        chat = chat_of(platform, place, kind, thread="", title=None, person=(None, None), other="")
    at = when.get("at") or when.get("atMs")
    at = datetime.fromtimestamp(at / 1_000, UTC).isoformat() if isinstance(at, int | float) else at
    spec = {"cron": when.get("expr"), "at": at}.get(when["kind"]) or cron_of(when["everyMs"] / 60_000)
    return ImportedSchedule(
        name=job.get("name") or job["id"],
        chat=chat,
        spec=spec,
        zone=when.get("tz") or "",
        text=payload.get("message") or payload["text"],
        is_active=bool(job.get("enabled", True)),
    )
