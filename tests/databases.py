"""Empty databases: the migrations run once in a test process, and every test gets a copy of what they made."""

import asyncio
import tempfile
from functools import cache
from pathlib import Path

from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.store.writer import Store


async def open_store(path: Path) -> Store:
    """Open the database at `path`, an empty one of the newest schema where there is none.

    No commit waits for the disk: nothing that a test kills takes the system's memory of its files with it.
    """
    await asyncio.to_thread(_ensure_database, path)
    return await SqliteStore.open(path, synchronous="NORMAL")


def _ensure_database(path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(_empty_database())


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        asyncio.run(_migrate(path))
        return path.read_bytes()


async def _migrate(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
