"""State directory of hermes-agent (versions with `state.db`), or of one of its profiles."""

import json
from collections.abc import Iterator
from pathlib import Path

from gateway.moving.conversations import (
    KINDS,
    Fields,
    ImportedChat,
    ImportedConversation,
    ImportedSchedule,
    Row,
    Source,
    chat_at,
    chat_of,
    message,
)
from gateway.moving.files import cron_of, jobs_in, read_database
from hermes_state.text import well_formed
from hermes_state.values import ChatKind, Origin

_JSON_PREFIX = "\0json:"


class HermesSource(Source):
    notes_folder, skill_folders = "memories", ("skills",)

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
        self.skip(runs, "schedules and sub-agents")
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
        return self.each("schedule", jobs_in(self.home), _schedule)

    def skills(self) -> Iterator[Path]:
        bundled = {line.partition(":")[0] for line in self.text("skills", ".bundled_manifest").splitlines()}
        return (folder for folder in super().skills() if folder.name not in bundled)


def _chat(one: Fields) -> ImportedChat:
    origin, thread = json.loads(one.get("origin_json") or "{}"), str(one.get("thread_id") or "")
    kind = KINDS.get(one.get("chat_type") or "", ChatKind.CHANNEL)
    user = one.get("user_id")
    # In a shared session, not everything is from the person who began.
    is_shared = kind.is_shared and not (one.get("session_key") or "").endswith(f":{user}")
    person = (None, None) if is_shared else (user, origin.get("user_name"))
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
    when, origin, target = job["schedule"], job.get("origin") or {}, job.get("deliver") or ""
    if job.get("script") or job.get("no_agent"):
        raise ValueError("it runs a script, which the gateway does not do")
    if "," in target or target == "all":
        raise ValueError("it is sent to several chats; add a schedule in each of them")
    if when["kind"] != "once" and (job.get("repeat") or {}).get("times"):
        raise ValueError("it ends after some runs, which the gateway does not do")
    if target == "origin":
        target = ":".join(str(origin.get(part) or "") for part in ("platform", "chat_id", "thread_id"))
    platform, _, place = target.rstrip(":").partition(":")
    person = (origin.get("user_id"), origin.get("user_name")) if job["deliver"] == "origin" else (None, None)
    chat = chat_at(platform, place, person=person) if place else None
    spec = {"cron": when.get("expr"), "once": when.get("run_at")}.get(when["kind"]) or cron_of(when["minutes"])
    return ImportedSchedule(job["name"], chat, spec, "", well_formed(job["prompt"]), bool(job.get("enabled", True)))
