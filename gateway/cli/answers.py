"""Answers for the command line: the daemon's, or those of the database itself while no daemon has it open."""

from collections.abc import Callable, Mapping
from sqlite3 import Connection
from typing import Any

from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.admin.overview import open_resting


def ask_or_read(
    request: str,
    args: Mapping[str, Any],
    read: Callable[[Connection | None], Any],
    *,
    timeout_seconds: float = 10.0,
) -> Any:
    """The daemon's answer (any JSON value), or that of `read`, which gets None where there is no database yet.

    Raises what `ask` and `open_resting` raise.
    """
    state = find_state(process_environment())
    try:
        return ask(state.control_socket, request, args, timeout_seconds=timeout_seconds)
    except DaemonNotRunningError:
        with open_resting(state.database) as db:
            return read(db)
