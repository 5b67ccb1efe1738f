"""Entries of a chat on the page, from the store or from recent events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes_state.values import Button, Millis, SentFile, ToolCall

BEGINNING = Millis(0)


class EntryKind(StrEnum):
    PERSON = "person"
    ANSWER = "answer"
    PREVIEW = "preview"
    """Unfinished answer."""
    ASIDE = "aside"
    """Text of the model before its tool calls."""
    TOOL = "tool"
    NOTICE = "notice"
    """Text of the gateway: the reply to a command, a notice, an error."""
    DIVIDER = "divider"
    """Start of a new conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Entry of the chat. `ref` identifies it on every page, so an entry that arrives twice is shown once."""

    ref: str
    kind: EntryKind
    at: Millis
    text: str = ""
    is_plain: bool = False
    """True if it is shown as written, not as Markdown."""
    files: tuple[str, ...] = ()
    sent: SentFile | None = None
    """File that the agent sent to the chat."""
    buttons: tuple[Button, ...] = ()
    call: ToolCall | None = None
    state: str = ""
    """State of the tool call: `running`, `done`, `failed`, `stopped` or `unknown`."""
    result: str | None = None
    """Result of the tool call, if any."""
    is_undone: bool = False
    was_interrupted: bool = False
    is_waiting: bool = False
    """True if it was sent during an answer and is shown below all entries of that answer."""
    not_before: Millis = BEGINNING
    """Earliest position, for a message whose turn started after it was sent."""

    @property
    def order(self) -> int:
        """Position on the page. Waiting entries follow all entries that have a time."""
        return max(self.at, self.not_before) + (10**14 if self.is_waiting else 0)


def ref_of_file(file: SentFile) -> str:
    """Return the reference of an entry that shows a file."""
    return f"f-{file.attachment_id}"


def taken_up(at: Millis) -> Millis:
    """Return the position of a message whose turn started `at` this time, after the entries shown then."""
    return Millis(at + 1)


def merge(stored: Sequence[Entry], known_refs: frozenset[str], recent: Sequence[Entry], since: Millis) -> list[Entry]:
    """Merge stored and recent entries into one timeline.

    The store has the recent entries in `known_refs`, on this page or an earlier one. Recent entries older than `since`
    belong to an earlier page. An answer keeps the notices that were shown below it.
    """
    fresh = [entry for entry in recent if entry.ref not in known_refs and entry.at >= since]
    shown = {entry.ref: entry.text for entry in recent if entry.kind is EntryKind.ANSWER}
    whole = [
        replace(entry, text=shown[entry.ref])
        if entry.kind is EntryKind.ANSWER and shown.get(entry.ref, "").startswith(f"{entry.text}\n\n")
        else entry
        for entry in stored
    ]
    return sorted([*whole, *fresh], key=lambda entry: entry.order)
