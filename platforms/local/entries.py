"""Entries of a chat on the page, from the store or from recent events."""

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from hermes_state.compressions import CompressionPoint
from hermes_state.values import Button, Millis, SentFile, ToolCall

BEGINNING = Millis(0)

_COMMAND = re.compile(r"/[A-Za-z][A-Za-z0-9_-]{0,31}(\s|$)")


class EntryKind(StrEnum):
    PERSON = "person"
    ANSWER = "answer"
    PREVIEW = "preview"
    """Unfinished answer."""
    ASIDE = "aside"
    """Text that the model wrote before its tool calls."""
    TOOL = "tool"
    REASONING = "reasoning"
    """Reasoning of the model before its tool calls."""
    REPLY = "reply"
    """Reply of the gateway to a command."""
    NOTICE = "notice"
    QUESTION = "question"
    """Approval request. It has buttons until it is answered."""
    FAILURE = "failure"
    """Error that ended a turn, which `/retry` runs again."""
    ERROR = "error"
    """Any other error."""
    DIVIDER = "divider"
    """Start of a new conversation."""
    CONDENSED = "condensed"
    """Point at which a compression replaced the older messages for the model."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of the chat. `ref` identifies it on every page, so an entry that arrives twice is shown once."""

    ref: str
    kind: EntryKind
    at: Millis
    text: str = ""
    is_plain: bool = False
    """True if the text is shown unchanged, without Markdown."""
    files: tuple[str, ...] = ()
    """Names of uploaded files that are not stored."""
    stored: tuple[SentFile, ...] = ()
    """Uploaded files that are stored."""
    sent: SentFile | None = None
    """File that the agent sent to the chat."""
    buttons: tuple[Button, ...] = ()
    call: ToolCall | None = None
    state: str = ""
    """State of the tool call: `running`, `done`, `failed`, `stopped` or `unknown`."""
    result: str | None = None
    """Result of the tool call, or None if it has no result."""
    compression: CompressionPoint | None = None
    rating: int = 0
    """Thumb of the person: 1 for up, -1 for down."""
    is_undone: bool = False
    was_interrupted: bool = False
    is_waiting: bool = False
    """True for a message that was sent during an answer and is shown below that answer until its own turn starts."""
    not_before: Millis = BEGINNING
    """Earliest time for sorting. Set for a message whose turn started some time after it was sent."""
    rank: int = 0
    """Position among entries with the same time."""

    @property
    def moment(self) -> int:
        """Time for sorting. Waiting entries come after all other entries."""
        return max(self.at, self.not_before) + (4 * 10**12 if self.is_waiting else 0)

    @property
    def look(self) -> str:
        """CSS classes for this kind of entry."""
        match self.kind:
            case EntryKind.PERSON if _COMMAND.match(self.text):
                return "person command"
            case EntryKind.REPLY | EntryKind.QUESTION | EntryKind.ERROR:
                return f"notice {self.kind}"
            case EntryKind.FAILURE:
                return "notice error failure"
            case _:
                return self.kind

    @property
    def order(self) -> int:
        """Sort key on the page. It is unique in a timeline, and small enough for JavaScript to store it exactly."""
        return self.moment * 1_000 + min(self.rank, 999)


def ref_of_file(file: SentFile) -> str:
    """Return the `ref` of the entry that shows the given file."""
    return f"f-{file.attachment_id}"


def taken_up(at: Millis) -> Millis:
    """Return the sort time of a message whose turn started at `at`. It comes right after the entries shown by then."""
    return Millis(at + 1)


def merge(stored: Sequence[Entry], known_refs: frozenset[str], recent: Sequence[Entry], since: Millis) -> list[Entry]:
    """Merge stored and recent entries into one timeline.

    Leaves out recent entries that are already stored, in this batch of rows or an earlier one (`known_refs`). Entries
    older than `since` belong to an earlier batch and are left out too. If a recent answer has a notice at its end, the
    stored answer is shown with this notice.
    """
    fresh = [entry for entry in recent if entry.ref not in known_refs and entry.at >= since]
    shown = {entry.ref: entry.text for entry in recent if entry.kind is EntryKind.ANSWER}
    whole = [
        replace(entry, text=shown[entry.ref])
        if entry.kind is EntryKind.ANSWER and shown.get(entry.ref, "").startswith(f"{entry.text}\n\n")
        else entry
        for entry in stored
    ]
    merged: list[Entry] = []
    for entry in sorted([*whole, *fresh], key=lambda entry: entry.moment):
        is_tie = bool(merged) and merged[-1].moment == entry.moment
        merged.append(replace(entry, rank=merged[-1].rank + 1 if is_tie else 0))
    return merged
