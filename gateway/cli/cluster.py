"""`hermes-gateway cluster status`: the nodes that share a database, read from the database itself."""

from collections.abc import Iterator
from contextlib import suppress

import msgspec
import typer
from msgspec.structs import asdict

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, show, table
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.times import format_time
from hermes_state.engines.opening import open_offline
from hermes_state.engines.postgres.nodes import ClusterStatus, NodeStatus, load_cluster

cluster = typer.Typer(no_args_is_help=True, help="Show the nodes of a cluster.", rich_markup_mode=None)

_ALONE = (
    "The database is a file, so only one gateway can use it. To run several nodes, set store.url to a PostgreSQL "
    "database; see docs/reference/cluster.md."
)
_EMPTY = ClusterStatus(nodes=[], unserved=[], waiting=0, oldest_waiting_seconds=None, load=None)


@cluster.command()
def status(as_json: Json = False) -> None:
    """Show the nodes, their work, and the waiting messages. The gateway need not be running."""
    if (found := _load()) is None:
        show({"is_shared": False}, [_ALONE], as_json=as_json)
    else:
        show({"is_shared": True, **asdict(found)}, _lines(found), as_json=as_json)


def _load() -> ClusterStatus | None:
    path, url = configured_database()
    if url is None:  # the database address may be in a systemd credential that only the running gateway can read
        with suppress(DaemonNotRunningError):
            found = ask(find_state(process_environment()).control_socket, "cluster.status")
            return msgspec.convert(found, ClusterStatus | None)
        return None
    with open_offline(path, url) as db:
        return _EMPTY if db is None else load_cluster(db)


def _lines(found: ClusterStatus) -> Iterator[str]:
    if not found.nodes:
        yield "No node has used this database yet."
        return
    yield from table(
        ("NODE", "ROLE", "VERSION", "SINCE", "STATE", "SEATS LOST", "CHATS", "SERVES"), map(_row, found.nodes)
    )
    for node in found.nodes:
        if node.chats:
            yield f"Active chats on {node.label}: {', '.join(node.chats)}."
    if found.unserved:
        yield f"Not served by any node: {', '.join(found.unserved)}."
    if found.oldest_waiting_seconds is not None:
        yield f"Waiting messages: {found.waiting}. The oldest arrived {found.oldest_waiting_seconds:.1f} s ago."
    if (load := found.load) is not None:
        yield (
            f"Gateway connections: {load.connections}, {load.busy} in a transaction (longest "
            f"{load.longest_seconds:.1f} s), {load.lock_waits} waiting for a lock. Server connections: "
            f"{load.server_connections} of {load.max_connections}."
        )
        if load.hint_queue_percent >= 1:
            yield f"The notification queue is {load.hint_queue_percent:.0f} % full because a node is not reading it."


def _row(node: NodeStatus) -> tuple[str, ...]:
    duties = [*node.accounts, *(["housekeeping"] if node.is_keeper else [])]
    about = (node.label, node.role, node.version, format_time(node.started_at))
    state, numbers = "alive" if node.is_alive else "gone", (str(node.seats_lost), str(len(node.chats)))
    return (*about, state, *numbers, ", ".join(duties) or "-")
