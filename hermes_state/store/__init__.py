"""The database: one writer with group commit, a few readers, migrations, lock and backup.

A transaction is one plain function, written with the helpers of `sql`; `Store` runs it. Writers queue: up to 256 of
their functions share one transaction and one commit, and one that raises takes back its own changes only.

>>> import asyncio, tempfile
>>> from pathlib import Path
>>> from hermes_state.engines.sqlite.store import SqliteStore
>>> async def count_tables(path: Path) -> int:
...     store = await SqliteStore.open(path)
...     try:
...         return await store.read(scalar, int, "SELECT count(*) FROM sqlite_schema WHERE name = ?", ("messages",))
...     finally:
...         await store.close()
>>> with tempfile.TemporaryDirectory() as folder:
...     asyncio.run(count_tables(Path(folder) / "state.db"))
1

The classes are imported when they are asked for: whoever only writes SQL starts no database.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hermes_state.store.sql import insert_row, nested, scalar, scalar_or_none, scalars, select, select_one

if TYPE_CHECKING:
    from hermes_state.store.writer import Store, WriterHealth

__all__ = [
    "Store",
    "WriterHealth",
    "insert_row",
    "nested",
    "scalar",
    "scalar_or_none",
    "scalars",
    "select",
    "select_one",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"{__name__}.writer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
