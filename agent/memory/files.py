"""Files of notes: `MEMORY.md` and `USER.md` of each chat, read whole and replaced whole.

A change is made under a lock of the chat's folder, on what the file holds then: of turns, a flush and a command that
come at one time none loses what another has written. All of it blocks its thread, for a file of some kilobytes.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from agent.memory.notes import Person, entries_in, part_of, with_part
from agent.settings import MemorySettings
from hermes_state.disk import flush
from hermes_state.errors import ToolError
from hermes_state.text import counted
from hermes_state.values import ChatId

Target: TypeAlias = Literal["memory", "user"]

FILE_NAMES: Final[dict[Target, str]] = {"memory": "MEMORY.md", "user": "USER.md"}
MAX_FILE_BYTES = 1_000_000
"""Largest file of notes, skill or persona that is read, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDirectory:
    """Directory of the notes of all chats, in one folder for each chat."""

    path: Path
    settings: MemorySettings = field(default_factory=MemorySettings)
    holds_secret: Callable[[str], bool] = lambda _: False
    """True for a text with a secret of the configuration, which nobody has to remember."""

    def read(self, chat_id: ChatId, target: Target) -> str:
        """The notes of a chat; empty where there are none. Raises `ToolError` for what is no text."""
        return read_text(self._folder(chat_id) / FILE_NAMES[target]) or ""

    def change(self, chat_id: ChatId, target: Target, person: Person | None, change: Callable[[str], str]) -> str:
        """Change the notes, or one person's part of them, and say in one sentence what they hold now.

        Raises `ToolError`, and changes nothing, where they would be too long or cannot be read or written.
        """
        name, limit = FILE_NAMES[target], self.settings.memory_size if target == "memory" else self.settings.user_size
        try:
            with self._locked(chat_id) as folder:
                text = read_text(folder / name) or ""
                before, part, behind = part_of(text, person)
                new = change(part)
                if len(new.strip()) > max(limit, len(part.strip()) - 1):
                    raise ToolError(
                        f"{name} would have {len(new.strip()):,} of {limit:,} characters. Nothing was written. Make "
                        f"room first: replace or remove entries, or join several in one. It holds:\n{part.strip()}"
                    )
                if self.holds_secret(new) and not self.holds_secret(part):
                    raise ToolError("that has a secret of this gateway's configuration in it; it is not written down")
                if (whole := with_part(before, person, new, behind)) != text:
                    _write(folder / name, whole)
        except OSError as error:
            raise ToolError(f"{name} cannot be written: {error.strerror or error}") from error
        return f"{name}: {counted(len(entries_in(new)), 'entry')}, {len(new.strip()):,} of {limit:,} characters."

    def _folder(self, chat_id: ChatId) -> Path:
        return self.path / str(chat_id)

    @contextmanager
    def _locked(self, chat_id: ChatId) -> Iterator[Path]:
        folder = self._folder(chat_id)
        for made in (self.path, folder):
            made.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(descriptor)


def read_text(path: Path, *, flags: int = 0) -> str | None:
    """The text of a file, None where there is none. Raises `ToolError` for what is no text or no ordinary file."""
    try:
        # Without waiting: a pipe in place of the file would hold its reader for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ToolError(f"{path.name} cannot be read: {error.strerror or error}") from error
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise ToolError(f"{path.name} is no file of text, or larger than {MAX_FILE_BYTES:,} bytes")
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\0", "")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path.name} is not in UTF-8 (byte {error.start:,}); save it anew in that encoding") from error


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole: after a crash it holds the old text or the new one."""
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # for this user alone
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):  # the error that brought us here says more
            os.unlink(unfinished)
        raise
    flush(path.parent)
