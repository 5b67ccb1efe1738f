"""Buttons carry 64 bytes. Longer commands are kept by the database, and the button carries their hash."""

import base64
import hashlib

from hermes_state.store.meta import load_note, save_note
from hermes_state.store.writer import Store

DATA_BYTES = 64
"""Most that Telegram takes as `callback_data`."""

_IN_PLACE = "c:"
_BY_HASH = "h:"


class ButtonCommands:
    """The command behind a button, also after a restart."""

    def __init__(self, store: Store, account: str) -> None:
        self._store = store
        self._account = account

    async def data_for(self, command: str) -> str:
        """What the button carries. Raises `StoreUnavailable` when a long command cannot be kept."""
        data = _IN_PLACE + command
        if len(data.encode()) <= DATA_BYTES:
            return data
        digest = base64.urlsafe_b64encode(hashlib.sha256(command.encode()).digest()[:24]).decode()
        await self._store.write(save_note, self._key(digest), command)
        return _BY_HASH + digest

    async def command_of(self, data: str) -> str | None:
        """The command that a pressed button stands for, None if it is not one of ours. Raises `StoreUnavailable`."""
        if data.startswith(_IN_PLACE):
            return data.removeprefix(_IN_PLACE)
        if data.startswith(_BY_HASH):
            return await self._store.read(load_note, self._key(data.removeprefix(_BY_HASH)))
        return None

    def _key(self, digest: str) -> str:
        return f"{self._account}.button.{digest}"
