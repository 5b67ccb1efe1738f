"""Notes: the files `MEMORY.md` and `USER.md` of each chat, and changes to single entries.

An entry is an item of a Markdown list. All other text stays unchanged. In a shared chat, `USER.md` has a section for
each person, under a heading that ends with the person's stable id. Each change locks the chat's folder, so turns,
memory flushes and commands do not overwrite each other's entries. All calls block their thread, but only briefly,
because the files are small.
"""

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from agent.settings import MemorySettings
from hermes_state.disk import flush
from hermes_state.errors import ToolError
from hermes_state.text import counted, shortened
from hermes_state.values import ChatId, UserRef

Target: TypeAlias = Literal["memory", "user"]
FILE_NAMES: Final[dict[Target, str]] = {"memory": "MEMORY.md", "user": "USER.md"}
MAX_FILE_BYTES = 1_000_000
"""Maximum size of a note, skill or persona file, in bytes."""
Person: TypeAlias = tuple[UserRef, str]
"""A person with a section in `USER.md`: stable id and name."""


class NoteEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry in a notes file: the text of its first line, and the range of its lines."""

    text: str
    start: int
    end: int

    @property
    def handle(self) -> str:
        """Short id of the entry, derived from its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:4]


def entries_in(text: str) -> list[NoteEntry]:
    """Return the entries in `text`. Indented lines below an item belong to its entry.

    >>> [entry.text for entry in entries_in("# Ann\\n- likes tea\\n  with milk\\n- lives in Porto")]
    ['likes tea', 'lives in Porto']
    """
    lines, found = text.split("\n"), list[NoteEntry]()
    for index, line in enumerate(lines):
        if (item := re.fullmatch(r"[-*+] +(.*)", line)) is None:
            continue
        end = index + 1
        while end < len(lines) and lines[end].startswith((" ", "\t")) and lines[end].strip():
            end += 1
        found.append(NoteEntry(text=item[1].strip(), start=index, end=end))
    return found


def one_line(text: str) -> str:
    """Return an entry's text on one line, without control characters and invisible characters."""
    # Keep the joiners U+200C and U+200D, because some scripts and emoji need them.
    kept = (letter for letter in text if letter in "\n\t\u200c\u200d" or unicodedata.category(letter)[0] != "C")
    return " ".join("".join(kept).split())


def added(text: str, new: str) -> str:
    if any(entry.text == new for entry in entries_in(text)):
        return text
    return f"{text.rstrip()}\n- {new}\n".lstrip("\n")


def replaced(text: str, piece: str, new: str | None) -> str:
    """Replace the entry that contains `piece`, or whose handle is `piece`. If `new` is None, remove the entry.

    Raises `ToolError` if no entry matches, or if several match.
    """
    entries = entries_in(text)
    named = [entry for entry in entries if piece in (entry.text, entry.handle)]
    named = named or [entry for entry in entries if piece and piece in entry.text]
    if len({entry.text for entry in named}) != 1:
        listed = "\n".join(f"- {entry.text}" for entry in named or entries) or "(nothing)"
        if named:
            raise ToolError(
                f"{counted(len(named), 'entry')} contain these words; quote more of the entry that you mean:\n{listed}"
            )
        raise ToolError(f"no entry contains {shortened(piece)!r}; the entries are:\n{listed}")
    lines = text.split("\n")
    lines[named[0].start : named[0].end] = [] if new is None else [f"- {new}"]
    return "\n".join(lines)


def part_of(text: str, person: Person | None) -> tuple[str, str, str]:
    """Split notes into the text before a person's section, its body, and the rest.

    If `person` is None, the whole text is the body.
    """
    if person is None:
        return "", text, ""
    found = re.search(rf"^## [^\n]*\({re.escape(person[0])}\)[ \t]*$\n?", text, re.MULTILINE)
    if found is None:
        return f"{text.rstrip()}\n\n".lstrip("\n"), "", ""
    behind = re.search(r"^## ", text[found.end() :], re.MULTILINE)
    end = len(text) if behind is None else found.end() + behind.start()
    return text[: found.start()], text[found.end() : end], text[end:]


def with_part(before: str, person: Person | None, part: str, behind: str) -> str:
    """Return the notes with a changed section, headed by the person's current name. An empty section is removed."""
    if person is None:
        return part
    ref, name = person
    shown = shortened(re.sub(r"[()#\[\]<>]", "", one_line(name)), 60).strip() or ref
    made = f"## {shown} ({ref})\n{part.strip()}\n" if part.strip() else ""
    return before + made + ("\n" if made and behind else "") + behind


class MemoryDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """Directory of the notes, with a folder for each chat."""

    path: Path
    people: Path | None = None
    """Directory of `USER.md`, if other agents share the notes about people. None: `path`."""
    settings: MemorySettings = msgspec.field(default_factory=MemorySettings)
    holds_secret: Callable[[str], bool] = lambda _: False
    """Returns True if its argument contains a secret from the configuration. Such text must not be stored in notes."""

    def read(self, chat_id: ChatId, target: Target) -> str:
        """Return a chat's notes, or an empty string. Raises `ToolError` if the file cannot be read as text."""
        return read_text(self._folder(target) / str(chat_id) / FILE_NAMES[target]) or ""

    def change(self, chat_id: ChatId, target: Target, person: Person | None, change: Callable[[str], str]) -> str:
        """Change a chat's notes, or one person's section, and return a sentence about the new size.

        Raises `ToolError` and changes nothing if the notes would be too long or contain a secret, or cannot be written.
        """
        name, limit = FILE_NAMES[target], self.settings.memory_size if target == "memory" else self.settings.user_size
        try:
            with self._locked(self._folder(target), chat_id) as folder:
                text = read_text(folder / name) or ""
                before, part, behind = part_of(text, person)
                new = change(part)
                if len(new.strip()) > max(limit, len(part.strip()) - 1):
                    raise ToolError(
                        f"{name} would grow to {len(new.strip()):,} characters (limit: {limit:,}), so nothing was "
                        f"written. First replace, remove or combine entries to make room. Current entries:\n"
                        f"{part.strip()}"
                    )
                if self.holds_secret(new) and not self.holds_secret(part):
                    raise ToolError("the note contains a secret from the gateway's configuration, so it was not stored")
                if (whole := with_part(before, person, new, behind)) != text:
                    replace_text(folder / name, whole)
        except OSError as error:
            raise ToolError(f"{name} cannot be written: {error.strerror or error}") from error
        return f"{name}: {counted(len(entries_in(new)), 'entry')}, {len(new.strip()):,} of {limit:,} characters."

    def _folder(self, target: Target) -> Path:
        return self.people if target == "user" and self.people is not None else self.path

    @contextmanager
    def _locked(self, path: Path, chat_id: ChatId) -> Iterator[Path]:
        folder = path / str(chat_id)
        path.mkdir(mode=0o700, exist_ok=True, parents=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(descriptor)


def read_text(path: Path, *, flags: int = 0) -> str | None:
    """Return the text of a file, or None if it does not exist. Raises `ToolError` if it is not a small text file."""
    try:
        # Open without blocking, because a named pipe with this name would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ToolError(f"{path.name} cannot be read: {error.strerror or error}") from error
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise ToolError(f"{path.name} is not an ordinary file, or is larger than {MAX_FILE_BYTES:,} bytes")
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\0", "")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path.name} is not UTF-8 text (byte {error.start:,}); save it again as UTF-8") from error


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically. After a crash, it contains either the old text or the new text."""
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable only for this user
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):  # after `replace` the file no longer exists, and an earlier error is more useful
            os.unlink(unfinished)
    flush(path.parent)
