"""State directory of OpenClaw: SQLite databases of each agent, or the older JSON lines, and the workspace."""

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from gateway.moving.conversations import (
    KINDS,
    Fields,
    ImportedChat,
    ImportedConversation,
    ImportedSchedule,
    Row,
    Source,
    chat_at,
    message,
)
from gateway.moving.files import cron_of, jobs_in, read_database, read_json
from hermes_state.errors import CommandError
from hermes_state.text import well_formed
from hermes_state.values import Origin

_SESSIONS = """SELECT w.session_id AS id, w.session_key AS key, n.entry_json FROM session_windows w
LEFT JOIN session_nodes n ON n.session_key = w.session_key ORDER BY w.created_at, w.session_id"""
_EVENTS = "SELECT seq AS id, event_json, event_zstd FROM transcript_events WHERE session_id = ? ORDER BY seq"
_MAX_BYTES = 64_000_000
_INTERNAL = {"subagent", "cron", "hook", "acp", "heartbeat"}


class OpenClawSource(Source):
    notes_folder, skill_folders = "workspace", ("workspace/skills", "skills")

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
        self.skip(runs, "schedules, sub-agents and webhooks")

    def _sessions(self, agent: Path) -> Iterator[Fields]:
        """Yield the id, key and entry of each session, and its events."""
        database, stored = agent / "agent" / "openclaw-agent.sqlite", set[str]()
        if database.exists():
            db, archived = read_database(database), set[str]()
            with suppress(sqlite3.OperationalError):  # an older version without archives
                archived = {row["session_id"] for row in db.execute("SELECT * FROM session_transcript_cold_archives")}
            for row in db.execute(_SESSIONS).fetchall():
                stored.add(row["id"])
                yield row | {"is_archived": row["id"] in archived, "events": self._stored(db, row["id"])}
        entries = read_json(agent / "sessions" / "sessions.json")
        files = dict(self.each("session", [{"id": key, "entry": one} for key, one in entries.items()], _file_of))
        for file in sorted((agent / "sessions").glob("*.jsonl*")):
            name = file.name.removesuffix(".jsonl")
            is_copy = ".checkpoint." in name or ".trajectory." in name or ".jsonl" in name.partition(".jsonl.reset.")[0]
            if name not in stored and not is_copy:
                key = files.get(name, "")
                yield {"id": name, "key": key, "entry": entries.get(key, {}), "events": self._lines(file)}

    def _stored(self, db: sqlite3.Connection, session_id: str) -> Iterator[Fields]:
        yield from self.each("message", db.execute(_EVENTS, (session_id,)), _event, f" of conversation {session_id}")

    def _lines(self, file: Path) -> Iterator[Fields]:
        numbered = enumerate(file.read_bytes().splitlines(), 1)
        rows = [{"id": number, "event_json": line} for number, line in numbered]
        yield from self.each("line", rows, _event, f" of {file}")

    def _conversations(self, session: Fields) -> list[ImportedConversation]:
        """Return the conversations of a session. A reset begins a new one."""
        if "entry" not in session:
            session = {**session, "entry": json.loads(session["entry_json"] or "{}")}
        rows, view, found = list[Row](), list[tuple[str, list[Row]]](), list[list[Row]]()
        chat, of = _chat(session), f" of conversation {session['id']}"
        for event in self._branch(session["events"]):
            new, kind = list[Row](), event.get("type")
            if kind == "message":
                new = list(self.each("message", [event], lambda one: _row(one["message"], chat), of))
                rows += new
            elif kind == "compaction":
                summary = list(self.each("summary", [event], lambda one: _summary(one, chat), of))
                known = [name for name, _ in view]
                if summary:  # without one, the view goes on
                    kept = event.get("firstKeptEntryId")
                    view = view[known.index(kept) :] if kept in known else []
                    rows += [*summary, *chain.from_iterable(given for _, given in view)]
            elif kind == "reset":
                found.append(rows)
                rows, view = [], []
            view.append((event["id"], new))
        if session.get("is_archived") and not rows:
            raise ValueError("OpenClaw has moved its messages to a compressed archive")
        title = session["entry"].get("label") or session["entry"].get("displayName")
        names = ((f"openclaw:{session['id']}:{number}", rows) for number, rows in enumerate([*found, rows]))
        return [ImportedConversation(name, chat, title, is_open=True, rows=rows) for name, rows in names if rows]

    def schedules(self) -> Iterator[ImportedSchedule]:
        database = self.home / "state" / "openclaw.sqlite"
        if not database.exists():
            return self.each("schedule", jobs_in(self.home), _schedule)
        query = "SELECT job_id AS id, job_json FROM cron_jobs ORDER BY sort_order, job_id"
        return self.each(
            "schedule", read_database(database).execute(query), lambda row: _schedule(json.loads(row["job_json"]))
        )

    def _branch(self, events: Iterable[Fields]) -> list[Fields]:
        """Return the events of the branch in use, oldest first. The events of the first versions have no parents.

        If lines are broken, the branch goes on with the line above them.
        """
        faults = len(self.faults)
        path = [event for event in events if event.get("type") != "session"]
        if not any("parentId" in event for event in path):
            return [{"id": number, **event} for number, event in enumerate(path)]
        path, at = [event for event in path if "id" in event], None
        known, above = {event["id"]: event for event in path}, dict[Any, Any]()
        if len(self.faults) > faults:
            above = {event["id"]: before["id"] for before, event in pairwise(path)}
        ids = set(known)
        for event in path:
            at = event["targetId"] if event["type"] == "leaf" else event["id"]
        path = []
        while (event := known.pop(at, {})) != {}:  # removed, so that a cycle ends
            path.append(event)
            at = event.get("parentId")
            if at is not None and at not in ids:
                at = above.get(event["id"])
        return path[::-1]


def _file_of(session: Fields) -> tuple[str, str]:
    """Return the name of the file of a session in `sessions.json`, and the session's key."""
    entry = session["entry"]
    return Path(entry.get("sessionFile") or f"{entry['sessionId']}.jsonl").stem, session["id"]


def _event(row: Fields) -> Fields:
    event = json.loads(row["event_json"] or _decompressed(row["event_zstd"]))
    if not isinstance(event, dict):
        raise ValueError("it is not a JSON object")
    return event


def _decompressed(data: bytes) -> bytes:
    """Decompress a long message of a newer version. Raises `ValueError` if it is damaged or too long."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        import zstandard as zstd  # a dependency of discord.py
    try:
        text: bytes = zstd.open(BytesIO(data)).read(_MAX_BYTES + 1)
    except (EOFError, zstd.ZstdError) as error:
        raise ValueError(str(error)) from error
    if len(text) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
    return text


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
    if kind := next((at for at, word in enumerate(words[:-1]) if at and word in KINDS), 0):
        return chat_at(words[0], ":".join(words[kind:]), title=title, other=other)
    way = entry.get("deliveryContext") or entry.get("delivery") or {}
    platform, place = way.get("channel") or entry.get("lastChannel"), way.get("to") or entry.get("lastTo")
    return chat_at(str(platform or ""), str(place or ""), other=other)


def _schedule(job: Fields) -> ImportedSchedule:
    when, payload, way = job["schedule"], job["payload"], job.get("delivery") or {}
    place = str(way.get("to") or "")
    chat = chat_at(way.get("channel") or "", place) if place else None
    at = when.get("at") or when.get("atMs")
    at = datetime.fromtimestamp(at / 1_000, UTC).isoformat() if isinstance(at, int | float) else at
    spec = {"cron": when.get("expr"), "at": at}.get(when["kind"]) or cron_of(when["everyMs"] / 60_000)
    text = well_formed(payload.get("message") or payload["text"])
    return ImportedSchedule(job["name"], chat, spec, when.get("tz") or "", text, bool(job.get("enabled", True)))
