"""Commands behind buttons, which carry only a few dozen bytes of data; they work after a restart, too."""

from collections.abc import Callable
from dataclasses import dataclass

from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store

_IN_PLACE = "c:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonCommandStore:
    """A button's command: in the button's data where it fits, else in a stored note that the data names by a hash."""

    store: Store
    note_prefix: str
    """Beginning of the notes' keys, before the hash."""
    hash_mark: str
    """Beginning of data that holds a hash; two characters, not `c:`."""
    fits: Callable[[str], bool]
    """Tells whether the platform takes this as a button's data."""
    digest: Callable[[bytes], str]
    """The hash of a command."""

    async def data_for(self, command: str) -> str:
        """The data of a command's button. Raises `StoreUnavailable` when a long command cannot be kept."""
        data = _IN_PLACE + command
        if self.fits(data):
            return data
        digest = self.digest(command.encode())
        await self.store.write(save_note, self.note_prefix + digest, command)
        return self.hash_mark + digest

    async def command_of(self, data: str) -> str | None:
        """The command of a pressed button, None if it is not one of ours. Raises `StoreUnavailable`."""
        if data.startswith(_IN_PLACE):
            return data.removeprefix(_IN_PLACE)
        if data.startswith(self.hash_mark):
            return await self.store.read(load_note, self.note_prefix + data.removeprefix(self.hash_mark))
        return None
