"""Files of other gateways, and the notes, skills, persona and schedules that come from them."""

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from agent.memory.notes import MemoryDirectory, Target, added, entries_in, one_line, read_text, replace_text
from agent.tools.schedules.schedule_tool import add
from gateway.moving.conversations import ImportedSchedule, ensure_imported, save_mark
from hermes_state.engines.sqlite.offline import open_foreign
from hermes_state.errors import CommandError, ToolError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar
from hermes_state.tools.schedules import NewSchedule
from hermes_state.values import ChatId

_PIECE = re.compile(r"\n§\n|\n(?=[-*+] )|\n\s*\n|^#.*$", re.MULTILINE)


def read_database(path: Path) -> sqlite3.Connection:
    """Open another program's database for reading. Rows are dictionaries. Raises `CommandError` if that fails."""
    try:
        db = open_foreign(path)
        db.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except (OSError, sqlite3.Error) as error:
        raise CommandError(f"{path} cannot be read: {error}. Name the state directory of the other program.") from error
    return db


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, which is empty without the file. Raises `CommandError` if it is invalid."""
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} cannot be read: {error}. Repair the file, or move it away.") from error


def jobs_in(home: Path) -> list[Any]:
    """Return the schedules in `cron/jobs.json`."""
    jobs = read_json(home / "cron" / "jobs.json").get("jobs")
    return jobs if isinstance(jobs, list) else []


def cron_of(minutes: float) -> str:
    """Return a cron expression for an interval. Raises `ValueError` if it does not divide an hour or a day."""
    if minutes >= 1 and 60 % minutes == 0:
        return "0 * * * *" if minutes == 60 else f"*/{minutes:g} * * * *"
    if minutes % 60 == 0 and 1_440 % minutes == 0:
        return "0 0 * * *" if minutes == 1_440 else f"0 */{minutes / 60:g} * * *"
    raise ValueError(f"it repeats every {minutes:g} minutes, which no cron expression can express")


def import_note(notes: MemoryDirectory, chat_id: ChatId, target: Target, entry: str) -> bool:
    """Add an entry to a chat's notes. Return False if they have it. Raises `ToolError` if there is no room for it."""
    if any(known.text == entry for known in entries_in(notes.read(chat_id, target))):
        return False
    notes.change(chat_id, target, None, lambda part: added(part, entry))
    return True


def note_entries(text: str) -> list[str]:
    """Return the entries of another program's notes, each on one line.

    >>> note_entries("# Home\\n\\n- The server\\n  runs Debian.\\n- It is quiet."), note_entries("a\\nb\\n§\\nc")
    (['The server runs Debian.', 'It is quiet.'], ['a b', 'c'])
    """
    pieces = (one_line(re.sub(r"^\s*[-*+] ", "", piece)) for piece in _PIECE.split(text))
    return [piece for piece in pieces if piece and not piece.endswith((":", ":**"))]  # fields that nobody filled in


def import_skill(folder: Path, target: Path) -> bool:
    """Copy a skill's folder into `target`, completely or not at all. Return False if there is a skill of this name.

    Raises `ToolError` if the folder contains links, which can lead out of it.
    """
    part = target / f".{folder.name}.unfinished"
    if (target / folder.name).exists():
        return False
    if link := next((one for one in (folder, *folder.rglob("*")) if one.is_symlink()), None):
        raise ToolError(f"{link} is a link")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part)
    part.rename(target / folder.name)
    return True


def import_persona(text: str, path: Path) -> bool:
    """Store the persona. Return False if `path` has it already. Raises `ToolError` if `path` has another one."""
    if path.exists():
        if (read_text(path) or "").strip() != text.strip():
            raise ToolError(f"{path} exists and was left alone")
        return False
    replace_text(path, text)
    return True


@locks(EVERYTHING)
def store_schedule(db: Connection, new: NewSchedule, found: ImportedSchedule) -> bool:
    """Store a schedule in its chat, or in the chat of `new` if it names none. Return False if the chat has it.

    Raises `ToolError` if the chat has too many schedules.
    """
    if found.chat is not None:
        new = msgspec.structs.replace(new, chat_id=ensure_imported(db, found.chat, new.created_at))
    same = "chat_id = :chat_id AND spec = :spec AND text = :text"
    values = msgspec.structs.asdict(new)
    if scalar(db, bool, f"SELECT EXISTS (SELECT 1 FROM schedules WHERE {same})", values):
        return False
    add(db, new)
    save_mark(db, found.mark)
    if not found.is_active or found.is_from_a_stranger:
        db.execute(f"UPDATE schedules SET state = 'paused', next_at = NULL WHERE {same}", values)
    return True
