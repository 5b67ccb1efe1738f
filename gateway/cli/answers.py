"""Helpers that get a command's result from the running daemon, or from the database if no daemon is running."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.config import find_store_url, load_config, process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.engines.opening import open_offline, open_store
from hermes_state.errors import CommandError, ConfigError
from hermes_state.redaction import Redactor
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.values import Millis, SystemClock

T = TypeVar("T")


def configured_redactor() -> Redactor:
    """Return a redactor for the configured secrets. With an invalid configuration, it uses only general patterns."""
    try:
        return Redactor(load_config(process_environment()).secrets())
    except ConfigError:
        return Redactor()  # the command works even with an invalid configuration


def configured_database() -> tuple[Path, str | None]:
    """Return the path of the SQLite file, and the configured database address or None.

    This works even if other settings are invalid. Raises `ConfigError` if it is unclear which database is configured.
    """
    environ = process_environment()
    return find_state(environ).database, find_store_url(environ)


def ask_or_read(
    request: str,
    args: Mapping[str, Any],
    answer: type[T],
    read: Callable[[Connection, str, Mapping[str, Any]], object],
    *,
    empty: T | None = None,
    timeout_seconds: float = 30.0,
) -> T:
    """Return the daemon's response, the result of `read` if no daemon runs, or `empty` if there is no database.

    `read` returns JSON values: mappings, lists, text and numbers.

    Raises the errors of `ask` and `open_offline`, and `CommandError` if the daemon's response has an unexpected form,
    or if there is neither a database nor a value for `empty`.
    """
    state = find_state(process_environment())
    try:
        found = ask(state.control_socket, request, args, timeout_seconds=timeout_seconds)
    except DaemonNotRunningError:
        with open_offline(*configured_database()) as db:
            if db is None and empty is None:
                raise CommandError("There is no database yet. The first start of the gateway creates it.") from None
            found = empty if db is None else read(db, request, args)
    try:
        return msgspec.convert(found, answer)
    except msgspec.ValidationError as error:
        raise CommandError(
            "The running gateway is a different version from this command. Restart the gateway."
        ) from error


def ask_or_write(request: str, args: Mapping[str, Any], write: Callable[[Connection, Millis], Any]) -> Any:
    """Return the daemon's response. If no daemon runs, call `write` with the database and the current time.

    Raises the errors of `ask` and `open_store`, and `DaemonNotRunningError` if no database exists yet.
    """
    state = find_state(process_environment())
    try:
        return ask(state.control_socket, request, args)
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is None and not path.exists():
            raise
    return asyncio.run(_at_rest(path, url, write))


async def _at_rest(path: Path, url: str | None, write: Callable[[Connection, Millis], Any]) -> Any:
    async with open_store(path, url) as store:
        return await store.write(locks(EVERYTHING)(write), SystemClock().now())
