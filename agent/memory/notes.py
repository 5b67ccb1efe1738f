"""Notes: the text of `MEMORY.md` and `USER.md`, and changes of single entries in it.

An entry is an item of a Markdown list. Whatever else a person has written into the file by hand stays as it is. Where
several people write in a chat, `USER.md` has a part for each of them, below a heading that ends with a stable id.
"""

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from agent.settings import MemorySettings
from hermes_state.disk import flush
from hermes_state.errors import ToolError
from hermes_state.text import counted, shortened
from hermes_state.values import ChatId, UserRef

Target: TypeAlias = Literal["memory", "user"]

FILE_NAMES: Final[dict[Target, str]] = {"memory": "MEMORY.md", "user": "USER.md"}
MAX_FILE_BYTES = 1_000_000
"""Largest file of notes, skill or persona that is read, in bytes."""
MAX_NAME_CHARACTERS = 60

Person: TypeAlias = tuple[UserRef, str]
"""Stable id and name of somebody who has a part of their own in `USER.md`."""

_ITEM = re.compile(r"[-*+] +(.*)")
_JOINERS = "\u200c\u200d"
"""Format characters that words of some scripts, and emoji, are spelt with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEntry:
    """Entry of a file of notes: its first line's text, and the lines that it takes."""

    text: str
    start: int
    end: int

    @property
    def handle(self) -> str:
        """Short name of the entry, which no change of other entries changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:4]


def entries_in(text: str) -> list[NoteEntry]:
    """The entries of a text; indented lines below an item belong to it.

    >>> [entry.text for entry in entries_in("# Ann\\n- likes tea\\n  with milk\\n- lives in Porto")]
    ['likes tea', 'lives in Porto']
    """
    lines, found = text.split("\n"), list[NoteEntry]()
    for index, line in enumerate(lines):
        if (item := _ITEM.fullmatch(line)) is None:
            continue
        end = index + 1
        while end < len(lines) and lines[end].startswith((" ", "\t")) and lines[end].strip():
            end += 1
        found.append(NoteEntry(text=item[1].strip(), start=index, end=end))
    return found


def one_line(text: str) -> str:
    """The text of an entry: one line, without characters that control, hide or turn what stands around them."""
    kept = (
        letter for letter in text if letter in _JOINERS or unicodedata.category(letter)[0] != "C" or letter in "\n\t"
    )
    return " ".join("".join(kept).split())


def added(text: str, new: str) -> str:
    """`text` with one more entry at its end; the same text if it has that entry."""
    if any(entry.text == new for entry in entries_in(text)):
        return text
    return f"{text.rstrip()}\n- {new}\n".lstrip("\n")


def replaced(text: str, piece: str, new: str | None) -> str:
    """`text` with another entry, or none, in place of the one that `piece` names: by words of it, or by its handle.

    Raises `ToolError` where none or several are meant.
    """
    entry = _meant(entries_in(text), piece)
    lines = text.split("\n")
    lines[entry.start : entry.end] = [] if new is None else [f"- {new}"]
    return "\n".join(lines)


def _meant(entries: Sequence[NoteEntry], piece: str) -> NoteEntry:
    named = [entry for entry in entries if piece in (entry.text, entry.handle)]
    named = named or [entry for entry in entries if piece and piece in entry.text]
    if len(named) == 1 or (named and len({entry.text for entry in named}) == 1):
        return named[0]
    listed = "\n".join(f"- {entry.text}" for entry in named or entries) or "(nothing)"
    if named:
        raise ToolError(f"{counted(len(named), 'entry')} have these words; name one by more of them:\n{listed}")
    raise ToolError(f"no entry has the words {shortened(piece)!r}; there is:\n{listed}")


# ---- parts of people


def part_of(text: str, person: Person | None) -> tuple[str, str, str]:
    """Text before a person's part, the part below its heading, and the text behind; None: all is the part."""
    if person is None:
        return "", text, ""
    found = re.search(rf"^## [^\n]*\({re.escape(person[0])}\)[ \t]*$\n?", text, re.MULTILINE)
    if found is None:
        return f"{text.rstrip()}\n\n".lstrip("\n"), "", ""
    behind = re.search(r"^## ", text[found.end() :], re.MULTILINE)
    end = len(text) if behind is None else found.end() + behind.start()
    return text[: found.start()], text[found.end() : end], text[end:]


def with_part(before: str, person: Person | None, part: str, behind: str) -> str:
    """The text around a changed part, under a heading with the person's name of now; no heading over nothing."""
    if person is None:
        return part
    ref, name = person
    shown = shortened(re.sub(r"[()#\[\]<>]", "", one_line(name)), MAX_NAME_CHARACTERS).strip() or ref
    made = f"## {shown} ({ref})\n{part.strip()}\n" if part.strip() else ""
    return before + made + ("\n" if made and behind else "") + behind


# ---- files


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
