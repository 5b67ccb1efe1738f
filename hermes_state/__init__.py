"""Values shared by all packages, and the durable store.

`values` and `errors` import nothing from the other packages. Most other modules define one kind of row, with the only
functions that write it. The first parameter of these functions is a connection, and each call is one transaction:
`Store.write` runs it on the writer's thread, and `Store.read` runs it on a reader's thread. `search` finds messages;
`admin` is for operators.

>>> import asyncio, tempfile
>>> from pathlib import Path
>>> from hermes_state import chats, sessions
>>> from hermes_state.engines.sqlite.store import SqliteStore
>>> from hermes_state.values import ChatKey, ChatKind, Millis
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
"""
