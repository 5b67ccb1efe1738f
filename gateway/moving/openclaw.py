"""State directory of OpenClaw: SQLite databases of each agent, or the older JSON lines, and the workspace."""

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from agent.memory.notes import Target
from gateway.moving.conversations import (
    KINDS,
    Fields,
    ImportedChat,
    ImportedConversation,
    ImportedSchedule,
    Row,
    Source,
    chat_of,
    message,
)
from gateway.moving.files import cron_of, read_database, read_json, skills_in
from hermes_state.errors import CommandError
from hermes_state.text import counted, well_formed
from hermes_state.values import ChatKind, Origin

_SESSIONS = """SELECT w.session_id AS id, w.session_key AS key, n.entry_json FROM session_windows w
LEFT JOIN session_nodes n ON n.session_key = w.session_key ORDER BY w.created_at, w.session_id"""
_EVENTS = "SELECT seq AS id, event_json, event_zstd FROM transcript_events WHERE session_id = ? ORDER BY seq"
_INTERNAL = {"subagent", "cron", "hook", "acp", "heartbeat"}


class OpenClawSource(Source):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._agents = sorted(one for one in (home / "agents").glob("*") if one.is_dir())
        if not self._agents:
            raise CommandError(f"{home} has no folder `agents`. Name the state directory of OpenClaw.")
        self.persona = self.text("workspace", "SOUL.md")

    def conversations(self) -> Iterator[ImportedConversation]:
        runs = 0
        sessions = list(chain.from_iterable(map(self._sessions, self._agents)))
        self.total = len(sessions)
        for session in sessions:
            if _INTERNAL.isdisjoint(session["key"].split(":")):
                yield from chain.from_iterable(self.each("conversation", [session], self._conversations))
            else:
                runs += 1
        if runs:
            self.faults.append(f"{counted(runs, 'run')} of schedules, sub-agents and webhooks: not a conversation")

    def _sessions(self, agent: Path) -> Iterator[Fields]:
        """Yield the id, key and entry of each session, and its events."""
        database, stored = agent / "agent" / "openclaw-agent.sqlite", set[str]()
        if database.exists():
            db, archived = read_database(database), set[str]()
            with suppress(sqlite3.OperationalError):  # an older version without archives
                archived = {row["session_id"] for row in db.execute("SELECT * FROM session_transcript_cold_archives")}
            for row in db.execute(_SESSIONS).fetchall():
                stored.add(row["id"])
                entry = json.loads(row["entry_json"] or "{}")
                found = {"entry": entry, "is_archived": row["id"] in archived}
                yield row | found | {"events": self._stored(db, row["id"])}
        entries = read_json(agent / "sessions" / "sessions.json", {})
        files = dict(self.each("session", [{"id": key, "entry": one} for key, one in entries.items()], _file_of))
        for file in sorted((agent / "sessions").glob("*.jsonl")):
            if file.stem not in stored:
                key = files.get(file.stem, "")
                yield {"id": file.stem, "key": key, "entry": entries.get(key, {}), "events": self._lines(file)}

    def _stored(self, db: sqlite3.Connection, session_id: str) -> Iterator[Fields]:
        yield from self.each("message", db.execute(_EVENTS, (session_id,)), _event, f" of conversation {session_id}")

    def _lines(self, file: Path) -> Iterator[Fields]:
        numbered = enumerate(file.read_bytes().splitlines(), 1)
        rows = [{"id": number, "event_json": line} for number, line in numbered]
        yield from self.each("line", rows, _event, f" of {file}")

    def _conversations(self, session: Fields) -> list[ImportedConversation]:
        """Return the conversations of a session. A reset begins a new one."""
        rows, view, found = list[Row](), list[tuple[str, Row]](), list[list[Row]]()
        chat, of = _chat(session), f" of conversation {session['id']}"
        for event in _branch(session["events"]):
            if event["type"] == "message":
                new = list(self.each("message", [event], lambda one: _row(one["message"], chat), of))
                rows += new
                view += [(event["id"], row) for row in new]
            elif event["type"] == "compaction":
                first = next((at for at, (name, _) in enumerate(view) if name == event.get("firstKeptEntryId")), None)
                view = [] if first is None else view[first:]
                rows += [*self.each("summary", [event], lambda one: _summary(one, chat), of), *(row for _, row in view)]
            elif event["type"] == "reset":
                found.append(rows)
                rows, view = [], []
        if session.get("is_archived") and not rows:
            raise ValueError("OpenClaw has moved its messages to a compressed archive")
        title = session["entry"].get("label") or session["entry"].get("displayName")
        names = ((f"openclaw:{session['id']}:{number}", rows) for number, rows in enumerate([*found, rows]))
        return [ImportedConversation(name, chat, title, is_open=True, rows=rows) for name, rows in names if rows]

    def schedules(self) -> Iterator[ImportedSchedule]:
        database = self.home / "state" / "openclaw.sqlite"
        jobs = read_json(self.home / "cron" / "jobs.json", {}).get("jobs", [])
        if database.exists():
            rows = read_database(database).execute("SELECT job_json FROM cron_jobs ORDER BY sort_order, job_id")
            jobs = [json.loads(row["job_json"]) for row in rows]
        return self.each("schedule", jobs, _schedule)

    def notes(self) -> Mapping[Target, str]:
        return {"memory": self.text("workspace", "MEMORY.md"), "user": self.text("workspace", "USER.md")}

    def skills(self) -> Iterator[Path]:
        return chain(skills_in(self.home / "workspace" / "skills"), skills_in(self.home / "skills"))


def _file_of(session: Fields) -> tuple[str, str]:
    """Return the name of the file of a session in `sessions.json`, and the session's key."""
    entry = session["entry"]
    return Path(entry.get("sessionFile") or f"{entry['sessionId']}.jsonl").stem, session["id"]


def _event(row: Fields) -> Fields:
    event: Fields = json.loads(row["event_json"] or _decompressed(row["event_zstd"]))
    return event


def _decompressed(data: bytes) -> bytes:
    """Decompress a long message of a newer version. Raises `ValueError` if it is damaged."""
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor, ZstdError

        decompressor = ZstdDecompressor()
    else:
        from zstandard import ZstdDecompressor, ZstdError  # a dependency of discord.py

        decompressor = ZstdDecompressor().decompressobj()
    try:
        return decompressor.decompress(data)
    except ZstdError as error:
        raise ValueError(str(error)) from error


def _branch(events: Iterable[Fields]) -> list[Fields]:
    """Return the events of the branch in use, oldest first. The events of the first versions have no parents."""
    path = [event for event in events if event.get("type") != "session"]
    known, at = {event.get("id"): event for event in path}, None
    if not any("parentId" in event for event in path):
        return [{"id": number, **event} for number, event in enumerate(path)]
    for event in path:
        at = event["targetId"] if event["type"] == "leaf" else event["id"]
    path = []
    while (event := known.pop(at, {})) != {}:  # removed, so that a cycle ends
        path.append(event)
        at = event.get("parentId")
    return path[::-1]


def _row(said: Fields, chat: ImportedChat) -> Row | None:
    if said["role"] not in ("user", "assistant", "toolResult"):
        return None
    parts = said["content"] if isinstance(said["content"], list) else []
    calls = [(part["id"], part["name"], part["arguments"]) for part in parts if part.get("type") == "toolCall"]
    role, given = said["role"], dict[str, object]()
    if role == "toolResult":
        role, given = "tool", {"tool_call_id": said["toolCallId"], "tool_name": said.get("toolName")}
    return message(role, said["content"], _millis(said["timestamp"]), chat, calls, **given)


def _summary(event: Fields, chat: ImportedChat) -> Row | None:
    at = _millis(event["timestamp"])
    return message("user", event["summary"], at, chat, origin=Origin.SUMMARY, sender_ref=None, sender_name=None)


def _millis(at: Any) -> Any:
    return datetime.fromisoformat(at).timestamp() * 1_000 if isinstance(at, str) else at


def _chat(session: Fields) -> ImportedChat:
    """Return the chat in the session's key, such as `agent:main:telegram:group:-100:topic:7`, or in its delivery."""
    entry, words = session["entry"], session["key"].split(":")[2:]
    title, other = entry.get("subject") or entry.get("displayName"), session["key"] or session["id"]
    for index, word in enumerate(words[:-1]):
        if index > 0 and word in KINDS:
            platform, place, rest = words[0], words[index + 1], words[index + 2 :]
            if platform == "discord" and KINDS[word] is ChatKind.DIRECT:
                place = ""  # the id of the person, not of the channel
            thread = rest[1] if rest[:1] in (["topic"], ["thread"]) and len(rest) > 1 else ""
            return chat_of(platform, place, KINDS[word], thread=thread, title=title, other=other)
    way = entry.get("deliveryContext") or entry.get("delivery") or {}
    platform, place = way.get("channel") or entry.get("lastChannel"), way.get("to") or entry.get("lastTo")
    return chat_of(str(platform or ""), str(place or "").rpartition(":")[2], other=other)


def _schedule(job: Fields) -> ImportedSchedule:
    when, payload, way = job["schedule"], job["payload"], job.get("delivery") or {}
    place = str(way.get("to") or "").rpartition(":")[2]
    chat = chat_of(way["channel"], place) if place and way.get("channel") in ("telegram", "discord") else None
    at = when.get("at") or when.get("atMs")
    at = datetime.fromtimestamp(at / 1_000, UTC).isoformat() if isinstance(at, int | float) else at
    spec = {"cron": when.get("expr"), "at": at}.get(when["kind"]) or cron_of(when["everyMs"] / 60_000)
    text = well_formed(payload.get("message") or payload["text"])
    return ImportedSchedule(job["name"], chat, spec, when.get("tz") or "", text, bool(job.get("enabled", True)))
