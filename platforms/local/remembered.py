"""What pages were shown and no transcript has: commands, the replies to them, errors. Kept over a restart.

A chat service keeps such messages for its bots; this page has nobody else to do so. They are noted when the adapter
stops, so a daemon that was killed has those of its last orderly stop.
"""

from collections.abc import Mapping, Sequence
from sqlite3 import Connection

import msgspec

from hermes_state.store.meta import load_note, save_note
from platforms.local.entries import Entry
from platforms.local.history import chat_key, load_known_refs

_NOTE = "local.remembered"

_Noted = dict[str, list[Entry]]
"""By the chat's name."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Noted).decode


def note_entries(db: Connection, entries: Mapping[str, Sequence[Entry]]) -> None:
    """Keep what the store does not have anyway of each chat's `entries`, instead of what was kept before."""
    kept: _Noted = {}
    for name, said in entries.items():
        known = load_known_refs(db, chat_key(name), [entry.ref for entry in said])
        if fresh := [entry for entry in said if entry.ref not in known]:
            kept[name] = fresh
    save_note(db, _NOTE, _encode(kept).decode())


def load_entries(db: Connection) -> Mapping[str, Sequence[Entry]]:
    """What was kept, by the name of the chat; nothing where another version wrote what this one cannot read."""
    note = load_note(db, _NOTE)
    try:
        return _decode(note) if note is not None else {}
    except msgspec.MsgspecError:
        return {}
