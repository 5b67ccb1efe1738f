"""Answers for the command line: the daemon's, or those of the database itself while no daemon has it open."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.config import find_store_url, load_config, process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.engines.opening import open_resting, open_store
from hermes_state.errors import CommandError, ConfigError
from hermes_state.redaction import Redactor
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.values import Millis, SystemClock

T = TypeVar("T")


def configured_redactor() -> Redactor:
    """Takes out the configured secrets; without a configuration that can be read, whatever looks like one."""
    try:
        return Redactor(load_config(process_environment()).secrets())
    except ConfigError:
        return Redactor()  # rows are shown anyway


def configured_database() -> tuple[Path, str | None]:
    """The database as a file and, where one is configured, as an address; other settings may be wrong.

    Raises `ConfigError` where nobody can tell which of the two it is.
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
    """The daemon's answer, or that of `read` to the same request; `empty` where there is no database yet.

    `read` answers as JSON has it: with mappings, lists, text and numbers.

    Raises what `ask` and `open_resting` raise, and `CommandError` for a daemon that answers something else, or where
    there is neither a database nor `empty`.
    """
    state = find_state(process_environment())
    try:
        found = ask(state.control_socket, request, args, timeout_seconds=timeout_seconds)
    except DaemonNotRunningError:
        with open_resting(*configured_database()) as db:
            if db is None and empty is None:
                raise CommandError("There is no database yet; the first start makes it.") from None
            found = empty if db is None else read(db, request, args)
    try:
        return msgspec.convert(found, answer)
    except msgspec.ValidationError as error:
        raise CommandError("the daemon that runs is of another version; restart it") from error


def ask_or_write(request: str, args: Mapping[str, Any], write: Callable[[Connection, Millis], Any]) -> Any:
    """The daemon's answer, or that of `write`, at the time of now, in the database itself while no daemon runs.

    Raises what `ask` and `open_store` raise; `DaemonNotRunningError`, too, where there is no database yet.
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
