"""Values that every package shares, and the durable store.

`values` and `errors` import nothing of ours; every other module holds the rows of one noun and the only functions that
write them: `chats`, `inbox`, `outbox`, `journal`, `sessions`, `compressions`, `transcripts`, `attachments`,
`models.ledger`, `models.profiles`. Such a function takes a connection first and is a whole transaction: `Store.write`
runs it on the writer's thread, `Store.read` on a reader's. `search` finds what was said, `admin` is for operators.

>>> import asyncio, tempfile
>>> from pathlib import Path
>>> from hermes_state.engines.sqlite.store import SqliteStore
>>> from hermes_state import chats, sessions
>>> async def resume_after_restart(path: Path) -> bool:
...     store = await SqliteStore.open(path)
...     try:
...         key = ChatKey(platform="local", account="local", chat_ref="main")
...         chat_id = await store.write(chats.ensure_chat, key, ChatKind.LOCAL, None, Millis(0))
...         started = await store.write(sessions.start_session, chat_id, Millis(0))
...         return await store.read(sessions.load_active, chat_id) == started
...     finally:
...         await store.close()
>>> with tempfile.TemporaryDirectory() as folder:
...     asyncio.run(resume_after_restart(Path(folder) / "state.db"))
True

`Store` is imported when it is asked for: the command line knows values and errors, and starts without a database.
"""

from typing import TYPE_CHECKING

from hermes_state.errors import CommandError, HermesError, LineageMoved, SessionNotFound, StateError, StoreUnavailable
from hermes_state.values import ChatKey, ChatKind, Clock, Message, MessageRole, Millis, Origin, SystemClock, Transcript

if TYPE_CHECKING:
    from hermes_state.store import Store

__all__ = [
    "ChatKey",
    "ChatKind",
    "Clock",
    "CommandError",
    "HermesError",
    "LineageMoved",
    "Message",
    "MessageRole",
    "Millis",
    "Origin",
    "SessionNotFound",
    "StateError",
    "Store",
    "StoreUnavailable",
    "SystemClock",
    "Transcript",
]


def __getattr__(name: str) -> object:
    if name == "Store":
        from hermes_state.store.writer import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
