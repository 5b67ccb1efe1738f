"""Storage for button commands. A button can carry only a few dozen bytes, so the database stores longer commands."""

import hashlib

import msgspec

from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import Button, InputKind

_IN_PLACE = "c:"
_TURNS_PAGE = "p"


class ButtonCommandStore(msgspec.Struct, frozen=True, kw_only=True):
    """Store of button commands. A button whose command is too long contains a hash of the command instead."""

    store: Store
    platform: str
    hash_mark: str
    """Two-character prefix of button data that contains a hash. Must not be `c:`, which marks a whole command.

    In the data of a page button, `p` comes before either prefix.
    """
    max_bytes: int
    """Maximum length of button data that the platform accepts, in bytes."""

    async def data_for(self, button: Button) -> str:
        """Return the data for a button. Raises `StoreUnavailable` if its command cannot be stored."""
        mark, command = _TURNS_PAGE if button.turns_page else "", button.command
        data = mark + _IN_PLACE + command
        if len(data.encode()) <= self.max_bytes:
            return data
        digest = hashlib.blake2s(command.encode(), digest_size=16).hexdigest()
        await self.store.write(save_note, f"{self.platform}.button.{digest}", command)
        return mark + self.hash_mark + digest

    @staticmethod
    def kind_of(data: str) -> InputKind:
        return InputKind.PAGE if data.startswith(_TURNS_PAGE) else InputKind.BUTTON

    async def command_of(self, data: str) -> str | None:
        """Return the command of a pressed button, or None if the data is unknown.

        Raises `StoreUnavailable` if the database is not available.
        """
        data = data.removeprefix(_TURNS_PAGE)
        if data.startswith(_IN_PLACE):
            return data.removeprefix(_IN_PLACE)
        if data.startswith(self.hash_mark):
            return await self.store.read(load_note, f"{self.platform}.button.{data.removeprefix(self.hash_mark)}")
        return None
