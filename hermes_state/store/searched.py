"""Text and scope under which a message row is searched; SQL knows them as `fts_row` and `fts_scope`.

The text is what was written, quoted and read from documents, and calls of tools with their arguments as they are meant.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.text import well_formed
from hermes_state.values import MessageBody

RECALL_TOOLS: Final = ("history_search", "history_open")
"""Tools whose calls name words that are looked for, and whose results repeat rows."""

REPEATS: Final = "recall"  # token in the scope of such a result

# One that never ends is taken to the end: looked for from each quote in it, it would take the square of its length.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_decode_string = json.JSONDecoder(strict=False).decode
_decode_body = msgspec.json.Decoder(MessageBody).decode


def fts_row(text: str | None, body: str | None) -> str:
    """Text of a row, from its columns."""
    if body is not None:
        with suppress(msgspec.MsgspecError):  # damage; whoever reads the row itself is told
            return searched_text(text, _decode_body(body))
    return text or ""


def fts_scope(chat_id: int, lineage_id: int, role: str, tool_name: str | None) -> str:
    """Scope of a row, from its columns."""
    return f"c{chat_id} l{lineage_id} r{role}" + (f" {REPEATS}" if tool_name in RECALL_TOOLS else "")


def searched_text(text: str | None, body: MessageBody | None, redact: Callable[[str], str] = str) -> str:
    """Text of a row, at most `INDEXED_CHARACTERS`, without what `redact` finds in it or in a call as it was written."""
    fields = [text or ""]
    if body is not None:
        fields += [body.quote.text] if body.quote is not None else []
        fields += [f"{document.name}\n{document.text}" for document in body.documents]
        calls = ((call.name, redact(call.arguments[:INDEXED_CHARACTERS])) for call in body.calls)
        fields += [f"{name} {unescaped(arguments)}" for name, arguments in calls if name not in RECALL_TOOLS]
    return redact("\n".join(filter(None, fields))[:INDEXED_CHARACTERS])


def unescaped(arguments: str) -> str:
    """Arguments of a call, JSON or nearly so, with the strings in them as they are meant."""
    return well_formed(_STRING.sub(_meant, arguments)) if "\\" in arguments else arguments


def _meant(found: re.Match[str]) -> str:
    try:
        return f'"{_decode_string(found[0])}"' if "\\" in found[0] else found[0]
    except ValueError:
        return found[0]
