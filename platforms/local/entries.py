"""Entries of a chat as a page shows them, whether they come from the store or have just happened."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes_state.values import Button, Millis, ToolCall


class EntryKind(StrEnum):
    PERSON = "person"
    ANSWER = "answer"
    PREVIEW = "preview"
    """An answer that is still being written."""
    ASIDE = "aside"
    """Text of the model beside its tool calls."""
    TOOL = "tool"
    NOTICE = "notice"
    DIVIDER = "divider"
    """Beginning of a new conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Entry of the chat. `ref` names it on every page: what arrives twice is shown once."""

    ref: str
    kind: EntryKind
    at: Millis
    text: str = ""
    is_plain: bool = False
    """Shown as written, not as Markdown."""
    files: tuple[str, ...] = ()
    buttons: tuple[Button, ...] = ()
    call: ToolCall | None = None
    result: str | None = None
    """Result of the tool call; None while it runs."""
    is_undone: bool = False
    was_interrupted: bool = False


def merge(stored: Sequence[Entry], known_refs: frozenset[str], recent: Sequence[Entry], since: Millis) -> list[Entry]:
    """Merge stored and remembered entries into one timeline.

    `known_refs` are those of the remembered entries that the store has, on this page or an earlier one. Remembered
    entries older than `since` belong to an earlier page. An answer keeps the notices that were shown below it and are
    no part of the transcript.
    """
    fresh = [entry for entry in recent if entry.ref not in known_refs and entry.at >= since]
    shown = {entry.ref: entry.text for entry in recent if entry.kind is EntryKind.ANSWER}
    whole = [
        replace(entry, text=shown[entry.ref])
        if entry.kind is EntryKind.ANSWER and shown.get(entry.ref, "").startswith(f"{entry.text}\n\n")
        else entry
        for entry in stored
    ]
    return sorted([*whole, *fresh], key=lambda entry: entry.at)
