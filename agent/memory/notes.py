"""Notes: the text of `MEMORY.md` and `USER.md`, and changes of single entries in it.

An entry is an item of a Markdown list. Whatever else a person has written into the file by hand stays as it is. Where
several people write in a chat, `USER.md` has a part for each of them, below a heading that ends with a stable id.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hermes_state.errors import ToolError
from hermes_state.text import counted, shortened
from hermes_state.values import UserRef

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
