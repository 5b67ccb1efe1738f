"""The two sides that a command meets: a database without a daemon, and a daemon that answers as a test says."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.databases import open_store

Result = TypeVar("Result")


async def stored(home: Path, fn: Callable[..., Result], *args: Any) -> Result:
    """Run one write on the database of a state directory that no daemon uses."""
    store = await open_store(home / "state.db")
    try:
        return await store.write(fn, *args)
    finally:
        await store.close()


async def make_database(home: Path) -> None:
    """Make an empty database in a state directory."""
    await (await open_store(home / "state.db")).close()


def answering(answer: Any) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Return a handler for the control socket that always gives this answer, or raises this error."""

    async def give(_args: Mapping[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return give
