"""Files of other gateways, and the notes, skills, persona and schedules that come from them."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.memory.notes import MemoryDirectory, Target, added, entries_in, one_line, read_text
from agent.memory.skills import SKILL_FILE
from agent.tools.schedules.schedule_tool import add
from gateway.moving.conversations import ImportedSchedule, ensure_imported
from hermes_state.errors import CommandError, ToolError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar
from hermes_state.tools.schedules import NewSchedule
from hermes_state.values import ChatId

_PIECE = re.compile(r"\n§\n|\n(?=[-*+] )|\n\s*\n|^#.*$", re.MULTILINE)


def read_database(path: Path) -> sqlite3.Connection:
    """Open another program's database for reading. Rows are dictionaries. Raises `CommandError` if that fails."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        db.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.Error as error:
        raise CommandError(f"{path} cannot be read: {error}. Name the state directory of the other program.") from error
    return db


def read_json(path: Path, default: Any) -> Any:
    """Return the content of a JSON file, or `default` if it does not exist. Raises `CommandError` if it is invalid."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return default
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}. Repair the file, or move it away.") from error


def skills_in(folder: Path) -> Iterator[Path]:
    """Yield the folders of the skills below `folder`."""
    for file in sorted(folder.glob(f"**/{SKILL_FILE}")):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file.parent


def cron_of(minutes: float) -> str:
    """Return a cron expression for an interval. Raises `ValueError` if it does not divide an hour or a day."""
    if minutes >= 1 and 60 % minutes == 0:
        return "0 * * * *" if minutes == 60 else f"*/{minutes:g} * * * *"
    if minutes % 60 == 0 and 1_440 % minutes == 0:
        return "0 0 * * *" if minutes == 1_440 else f"0 */{minutes / 60:g} * * *"
    raise ValueError(f"it repeats every {minutes:g} minutes, which no cron expression can say")


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
    """Copy a skill's folder into `target`, completely or not at all. Return False if there is a skill of this name."""
    part = target / f".{folder.name}.unfinished"
    if (target / folder.name).exists():
        return False
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
    part = path.with_name(f".{path.name}.unfinished")
    part.write_text(text, "utf-8")
    os.replace(part, path)
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
    if not found.is_active:
        db.execute(f"UPDATE schedules SET state = 'paused', next_at = NULL WHERE {same}", values)
    return True
