"""State directory of hermes-agent (versions with `state.db`), or of one of its profiles."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

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
from hermes_state.text import counted, well_formed
from hermes_state.values import ChatKind, Origin

_JSON_PREFIX = "\0json:"


class HermesSource(Source):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._db = read_database(home / "state.db")
        text = self.text("SOUL.md")
        is_own = "You are Hermes Agent, " in text[:100] or text.startswith("# Hermes Agent Persona")
        self.persona = "" if is_own else text

    def conversations(self) -> Iterator[ImportedConversation]:
        rows = self._db.execute("SELECT * FROM sessions ORDER BY started_at, id").fetchall()
        sessions, roots, runs = {row["id"]: row for row in rows}, list[Fields](), 0
        self._continued = dict[str, Fields]()
        for one in rows:
            parent = one["parent_session_id"] if one["parent_session_id"] in sessions else None
            end = sessions[parent]["end_reason"] if parent else None
            is_branch = end in ("branched", "compression") or "_branched_from" in (one["model_config"] or "")
            if parent and end == "compression" and parent not in self._continued:
                self._continued[parent] = one
            elif one["source"] in ("cron", "subagent") or (parent and not is_branch):
                runs += 1
            else:
                roots.append(one)
        if runs:
            self.faults.append(f"{counted(runs, 'run')} of schedules and sub-agents: not a conversation")
        self.total = len(roots)
        yield from self.each("conversation", roots, self._conversation)

    def _conversation(self, first: Fields) -> ImportedConversation | None:
        chain, chat, rows = [first], _chat(first), list[Row]()
        while (following := self._continued.get(chain[-1]["id"])) is not None:
            chain.append(following)
        for one in chain:
            found = self._db.execute("SELECT * FROM messages WHERE session_id = ? ORDER BY id", (one["id"],))
            rows += self.each("message", found, lambda row: _row(row, chat), f" of conversation {one['id']}")
        title = next((one["title"] for one in reversed(chain) if one["title"]), None)
        is_open = chain[-1]["ended_at"] is None or chat.kind is ChatKind.LOCAL
        return ImportedConversation(f"hermes:{first['id']}", chat, title, is_open, rows) if rows else None

    def schedules(self) -> Iterator[ImportedSchedule]:
        jobs = read_json(self.home / "cron" / "jobs.json", {}).get("jobs", ())
        return self.each("schedule", jobs, _schedule)

    def notes(self) -> Mapping[Target, str]:
        return {"memory": self.text("memories", "MEMORY.md"), "user": self.text("memories", "USER.md")}

    def skills(self) -> Iterator[Path]:
        bundled = {line.partition(":")[0] for line in self.text("skills", ".bundled_manifest").splitlines()}
        return (folder for folder in skills_in(self.home / "skills") if folder.name not in bundled)


def _chat(one: Fields) -> ImportedChat:
    origin, thread = json.loads(one.get("origin_json") or "{}"), str(one.get("thread_id") or "")
    kind = KINDS.get(one.get("chat_type") or "", ChatKind.CHANNEL)
    # A thread is shared, so not everything in it is from the person who began.
    person = (None, None) if thread and kind.is_shared else (one.get("user_id"), origin.get("user_name"))
    title, place = origin.get("chat_name") or one.get("display_name"), str(one.get("chat_id") or "")
    return chat_of(one["source"], place, kind, thread=thread, title=title, person=person, other=one["id"])


def _row(row: Fields, chat: ImportedChat) -> Row | None:
    is_undone = not row.get("active", 1) and not row.get("compacted", 0)
    if row["role"] not in ("user", "assistant", "tool") or is_undone:
        return None
    content, given = row["content"], dict[str, object]()
    if isinstance(content, str) and content.startswith(_JSON_PREFIX):
        content = json.loads(content.removeprefix(_JSON_PREFIX))
    if row["role"] == "tool":
        given = {"tool_call_id": row["tool_call_id"], "tool_name": row["tool_name"]}
    elif row["role"] == "user" and row.get("observed"):
        given = {"origin": Origin.TALK}
    made = [(one["id"], one["function"]) for one in json.loads(row["tool_calls"] or "[]")]
    calls = [(call_id, function["name"], function["arguments"]) for call_id, function in made]
    return message(row["role"], content, float(row["timestamp"]) * 1_000, chat, calls, **given)


def _schedule(job: Fields) -> ImportedSchedule:
    when, origin, target = job["schedule"], job.get("origin") or {}, (job.get("deliver") or "").split(",")[0]
    if job.get("script") or job.get("no_agent"):
        raise ValueError("it runs a script, which the gateway does not do")
    if target == "origin":
        target = ":".join(str(origin.get(part) or "") for part in ("platform", "chat_id", "thread_id"))
    platform, place, thread = (*target.split(":"), "", "")[:3]
    person = origin.get("user_id"), origin.get("user_name")
    chat = chat_of(platform, place, thread=thread, person=person) if place else None
    spec = {"cron": when.get("expr"), "once": when.get("run_at")}.get(when["kind"]) or cron_of(when["minutes"])
    return ImportedSchedule(job["name"], chat, spec, "", well_formed(job["prompt"]), bool(job.get("enabled", True)))
