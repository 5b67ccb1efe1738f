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
    """Text that the model wrote before its tool calls."""
    TOOL = "tool"
    NOTICE = "notice"
    """Text that the gateway wrote: the reply to a command, a notice or an error."""
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
    """True if the text is shown unchanged, without Markdown."""
    files: tuple[str, ...] = ()
    sent: SentFile | None = None
    """File that the agent sent to the chat."""
    buttons: tuple[Button, ...] = ()
    call: ToolCall | None = None
    state: str = ""
    """State of the tool call: `running`, `done`, `failed`, `stopped` or `unknown`."""
    result: str | None = None
    """Result of the tool call, or None if it has no result."""
    is_undone: bool = False
    was_interrupted: bool = False
    is_waiting: bool = False
    """True for a message that was sent during an answer and is shown below that answer until its own turn starts."""
    not_before: Millis = BEGINNING
    """Earliest time for sorting. Set for a message whose turn started some time after it was sent."""

    @property
    def order(self) -> int:
        """Sort key on the page. Waiting entries come after all other entries."""
        return max(self.at, self.not_before) + (10**14 if self.is_waiting else 0)


def ref_of_file(file: SentFile) -> str:
    """Return the reference of an entry that shows a file."""
    return f"f-{file.attachment_id}"


def taken_up(at: Millis) -> Millis:
    """Return the sort time of a message whose turn started at `at`: just after the entries that were shown by then."""
    return Millis(at + 1)


def merge(stored: Sequence[Entry], known_refs: frozenset[str], recent: Sequence[Entry], since: Millis) -> list[Entry]:
    """Merge stored and recent entries into one timeline.

    Leaves out recent entries that are stored (`known_refs`), in this batch of rows or an earlier one, and entries older
    than `since`, which belong to an earlier batch. Keeps notices that were added to the end of an answer.
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
