"""State directory of hermes-agent (versions with `state.db`), or of one of its profiles."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
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
    Unreadable,
    call,
    chat_of,
    message,
)
from gateway.moving.files import cron_of, read_database, read_json, skills_in, text_of
from hermes_state.text import counted
from hermes_state.values import ChatKind, Origin

_JSON_PREFIX = "\0json:"
_INTERNAL = ("cron", "subagent")


class HermesSource:
    def __init__(self, home: Path) -> None:
        self.home, self.faults = home, list[str]()
        self._db = read_database(home / "state.db")

    def conversations(self) -> Iterator[ImportedConversation]:
        rows = self._db.execute("SELECT * FROM sessions ORDER BY started_at, id").fetchall()
        sessions, continued, runs = {row["id"]: row for row in rows}, dict[str, Fields](), 0
        roots = list[Fields]()
        for one in rows:
            parent = sessions.get(one["parent_session_id"])
            if parent is not None and parent["end_reason"] == "compression" and parent["id"] not in continued:
                continued[parent["id"]] = one
            elif one["source"] in _INTERNAL or (parent is not None and not _is_branch(one, parent)):
                runs += 1
            else:
                roots.append(one)
        if runs:
            self.faults.append(f"{counted(runs, 'run')} of schedules and sub-agents: not a conversation")
        for root in roots:
            chain = [root]
            while (following := continued.get(chain[-1]["id"])) is not None:
                chain.append(following)
            try:
                if (found := self._conversation(chain)).rows:
                    yield found
            except (Unreadable, sqlite3.Error, TypeError, ValueError) as error:
                self.faults.append(f"conversation {chain[0]['id']}: {error}")

    def _conversation(self, chain: list[Fields]) -> ImportedConversation:
        first, last = chain[0], chain[-1]
        chat = _chat(first)
        return ImportedConversation(
            source_id=f"hermes:{first['id']}",
            chat=chat,
            title=next((one["title"] for one in reversed(chain) if one["title"]), None),
            is_open=last["ended_at"] is None or chat.kind is ChatKind.LOCAL,
            rows=[row for one in chain for row in self._rows(one["id"], chat)],
        )

    def _rows(self, session_id: str, chat: ImportedChat) -> Iterator[Row]:
        for row in self._db.execute("SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session_id,)):
            is_undone = not row.get("active", 1) and not row.get("compacted", 0)
            if row["role"] not in ("user", "assistant", "tool") or is_undone:
                continue
            try:
                yield _row(row, chat)
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                self.faults.append(f"message {row['id']} of conversation {session_id}: {error}")

    def schedules(self) -> Iterator[ImportedSchedule]:
        for job in read_json(self.home / "cron" / "jobs.json", {}).get("jobs", ()):
            try:
                yield _schedule(job)
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                self.faults.append(f"schedule {job.get('name')!r}: {error}")

    def notes(self) -> Mapping[Target, str]:
        folder = self.home / "memories"
        return {"memory": text_of(folder / "MEMORY.md"), "user": text_of(folder / "USER.md")}

    def skills(self) -> Iterator[Path]:
        bundled = {line.partition(":")[0] for line in text_of(self.home / "skills" / ".bundled_manifest").splitlines()}
        return (folder for folder in skills_in(self.home / "skills") if folder.name not in bundled)

    @property
    def persona(self) -> str:
        text = text_of(self.home / "SOUL.md")
        return "" if "You are Hermes Agent, " in text[:100] or text.startswith("# Hermes Agent Persona") else text


def _is_branch(one: Fields, parent: Fields) -> bool:
    return parent["end_reason"] in ("branched", "compression") or "_branched_from" in (one["model_config"] or "")


def _chat(one: Fields) -> ImportedChat:
    origin, thread = json.loads(one.get("origin_json") or "{}"), str(one.get("thread_id") or "")
    kind = KINDS.get(one.get("chat_type") or "", ChatKind.CHANNEL)
    person = (None, None) if thread and kind.is_shared else (one.get("user_id"), origin.get("user_name"))
    return chat_of(
        one["source"],
        str(one.get("chat_id") or ""),
        kind,
        thread=thread,
        title=origin.get("chat_name") or one.get("display_name"),
        person=person,  # a thread is shared, so not everything there is from the person who began
        other=one["id"],
    )


def _millis(seconds: Any) -> Any:
    return round(float(seconds) * 1_000)


def _row(row: Fields, chat: ImportedChat) -> Row:
    content, given = row["content"], dict[str, Any]()
    if isinstance(content, str) and content.startswith(_JSON_PREFIX):
        content = json.loads(content.removeprefix(_JSON_PREFIX))
    if row["role"] == "tool":
        given = {"tool_call_id": row["tool_call_id"], "tool_name": row["tool_name"]}
        if not row["tool_call_id"]:
            raise Unreadable("a tool's result does not name its call")
    elif row["role"] == "user" and row.get("observed"):
        given = {"origin": Origin.TALK}
    if row["tool_calls"]:
        calls = [
            (one["id"], one["function"]["name"], one["function"]["arguments"]) for one in json.loads(row["tool_calls"])
        ]
        given["calls"] = [call(*one) for one in calls]
    return message(row["role"], content, _millis(row["timestamp"]), chat, **given)


def _schedule(job: Fields) -> ImportedSchedule:
    when, chat = job["schedule"], None
    if job.get("script") or job.get("no_agent"):
        raise Unreadable("it runs a script, which the gateway does not do")
    origin, deliver = job.get("origin") or {}, (job.get("deliver") or "").split(",")[0]
    if deliver == "origin" and origin:
        deliver = ":".join(str(origin.get(part) or "") for part in ("platform", "chat_id", "thread_id"))
    platform, place, thread = (*deliver.split(":"), "", "")[:3]
    if place:
        kind = ChatKind.GROUP if place.startswith("-") else ChatKind.DIRECT
        person = origin.get("user_id"), origin.get("user_name")
        chat = chat_of(platform, place, kind, thread=thread, title=origin.get("chat_name"), person=person, other="")
    spec = {"cron": when.get("expr"), "once": when.get("run_at")}.get(when["kind"]) or cron_of(when["minutes"])
    name, is_active = job.get("name") or job["id"], bool(job.get("enabled", True))
    return ImportedSchedule(name=name, chat=chat, spec=spec, zone="", text=job["prompt"], is_active=is_active)
