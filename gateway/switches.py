"""Switches: what a chat has chosen instead of the value in the settings, for example with `/reactions off`."""

from functools import partial
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Millis

StepLevel: TypeAlias = Literal["off", "short", "full"]
Choice = TypeVar("Choice", bound=str)


class Switch(msgspec.Struct, Generic[Choice], frozen=True):
    key: str
    """Start of the key of the note that stores a chat's choice."""
    choices: tuple[Choice, ...]

    def read(self, db: Connection, chat_id: ChatId, default: Choice) -> Choice:
        chosen = load_note(db, f"{self.key}.{chat_id}")
        return next((choice for choice in self.choices if choice == chosen), default)

    async def load(self, store: Store, chat_id: ChatId, default: Choice) -> Choice:
        return await store.read_short(self.read, chat_id, default)

    def choosing(self, chat_id: ChatId, choice: str, text: str) -> "partial[str]":
        """Return the effect of a command that stores a choice and replies with `text`."""
        return partial(_choose, f"{self.key}.{chat_id}", choice, text)


@locks("notes")
def _choose(key: str, choice: str, text: str, db: Connection, now: Millis) -> str:
    save_note(db, key, choice)
    return text


REACTIONS: Switch[Literal["on", "off"]] = Switch("reactions", ("on", "off"))
STEPS: Switch[StepLevel] = Switch("steps.level", get_args(StepLevel))
VOICE: Switch[Literal["off", "same", "always"]] = Switch("voice", ("off", "same", "always"))
