"""`hermes-gateway cluster status`: the nodes that share a database, asked of the database itself."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

import msgspec
import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, show, table
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.times import format_time
from hermes_state.engines.opening import open_resting
from hermes_state.engines.postgres.nodes import ClusterStatus, NodeStatus, load_cluster
from hermes_state.text import counted

cluster = typer.Typer(no_args_is_help=True, help="Look at the nodes that share a database.", rich_markup_mode=None)

_ALONE = (
    "The database is a file, which one gateway has alone. Several nodes need PostgreSQL: set store.url, and see "
    "docs/reference/cluster.md."
)
_EMPTY = ClusterStatus(nodes=[], unserved=[], waiting=0, oldest_waiting_seconds=None, load=None)


@cluster.command()
def status(as_json: Json = False) -> None:
    """Show which nodes there are, what each has of the work, and what waits. It needs no running gateway."""
    if (found := _load()) is None:
        show({"is_shared": False}, [_ALONE], as_json=as_json)
    else:
        show({"is_shared": True, **asdict(found)}, _lines(found), as_json=as_json)


def _load() -> ClusterStatus | None:
    path, url = configured_database()
    if url is None:  # a gateway that runs may have it from a credential
        with suppress(DaemonNotRunningError):
            found = ask(find_state(process_environment()).control_socket, "cluster.status")
            return msgspec.convert(found, ClusterStatus | None)
        return None
    with open_resting(path, url) as db:
        return _EMPTY if db is None else load_cluster(db)


def _lines(found: ClusterStatus) -> Iterator[str]:
    if not found.nodes:
        yield "No gateway has had a seat at this database yet."
        return
    yield from table(
        ("NODE", "ROLE", "VERSION", "SINCE", "STATE", "SEATS LOST", "CHATS", "SERVES"), map(_row, found.nodes)
    )
    for node in found.nodes:
        if node.chats:
            yield f"At work on {node.label}: {', '.join(node.chats)}."
    if found.unserved:
        yield f"Nobody serves: {', '.join(found.unserved)}."
    if found.oldest_waiting_seconds is not None:
        waiting = counted(found.waiting, "message")
        yield f"No turn has taken up {waiting}, of which the oldest came {found.oldest_waiting_seconds:.1f} s ago."
    if (load := found.load) is not None:
        yield (
            f"Gateways have {counted(load.connections, 'connection')}, {load.busy} in a transaction (the longest for "
            f"{load.longest_seconds:.1f} s), {load.lock_waits} waiting for a lock; the server has "
            f"{load.server_connections} of {load.max_connections}."
        )
        if load.hint_queue_percent >= 1:
            yield f"The server's queue of hints is {load.hint_queue_percent:.0f} % full: a node does not read its own."


def _row(node: NodeStatus) -> tuple[str, ...]:
    duties = [*node.accounts, *(["housekeeping"] if node.is_keeper else [])]
    about = (node.label, node.role, node.version, format_time(node.started_at))
    state, numbers = "alive" if node.is_alive else "gone", (str(node.seats_lost), str(len(node.chats)))
    return (*about, state, *numbers, ", ".join(duties) or "-")
