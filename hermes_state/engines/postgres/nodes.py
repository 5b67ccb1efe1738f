"""Nodes of a cluster: their seats, their work, and the settings on which they must agree.

Seats and work are read from PostgreSQL's own lists of sessions and locks, so they are always current.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from hermes_state.store.locks import locks
from hermes_state.store.seats import KEEPER, LockKind, NodeInfo, account_lock
from hermes_state.store.sql import Connection, columns, scalar, scalars, select
from hermes_state.text import counted
from hermes_state.values import ChatKey, Millis

MAX_CLOCK_SECONDS = 60
"""Maximum difference in seconds between a node's clock and the server's. Dates and deadlines depend on the clock."""

POOLED = "store.url points to a pooler, but a node's locks need a single session: use the address of the server itself"
NAME = "hermes-gateway"  # prefix of our sessions' names

SEAT = f"{NAME} seat "
"""Prefix of a seat's session name, followed by the node's id. The names of open sessions show which nodes are alive."""

_LIVES = f"""EXISTS (SELECT 1 FROM pg_stat_activity a
  WHERE a.pid = n.pid AND a.datname = current_database() AND a.application_name = '{SEAT}' || n.id)"""


_NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

_CONNECTIONS = (
    "SELECT CAST(current_setting('max_connections') AS bigint)"
    " - CAST(current_setting('superuser_reserved_connections') AS bigint)"
)

_KINDS = ", ".join(str(kind.value) for kind in LockKind)
# Purpose: find the locks of this database's seats. Keys of two integers have `objsubid` 2.
_HELD = f"""
SELECT pid, CAST(classid AS bigint) AS kind, CAST(objid AS bigint) AS key FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND CAST(classid AS bigint) IN ({_KINDS})
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

# Purpose: count the sessions of gateways, except this one, and measure the load of the server.
_LOAD = f"""
SELECT count(*) AS connections,
  count(*) FILTER (WHERE xact_start IS NOT NULL) AS busy,
  count(*) FILTER (WHERE wait_event_type = 'Lock') AS lock_waits,
  coalesce(max(CAST(extract(epoch FROM clock_timestamp() - xact_start) AS double precision)), 0) AS longest_seconds,
  (SELECT CAST(sum(numbackends) AS bigint) FROM pg_stat_database) AS server_connections,
  ({_CONNECTIONS}) AS max_connections,
  CAST(100 * pg_notification_queue_usage() AS double precision) AS hint_queue_percent
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'hermes-gateway%' AND pid <> pg_backend_pid()"""


class NodeRow(NodeInfo, frozen=True, kw_only=True):
    """A node that has, or had, a seat."""

    pid: int
    seats: int
    started_at: Millis
    seated_at: Millis
    is_alive: bool


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    label: str
    """Name for use in messages, followed by the start of the id if another node has the same name."""
    role: str
    version: str
    started_at: Millis
    seated_at: Millis
    is_alive: bool
    seats_lost: int
    accounts: list[str]
    is_keeper: bool  # runs the work that needs one node: schedules, expiry, housekeeping
    chats: list[str]  # names of the chats in which it works


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    connections: int  # gateway connections to the database
    busy: int  # gateway connections in a transaction
    lock_waits: int
    longest_seconds: float  # age of the longest gateway transaction
    server_connections: int  # all connections to the server
    max_connections: int
    hint_queue_percent: float
    """Percentage of the server's notification queue in use."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a database, the number of waiting messages, and the server's load."""

    nodes: list[NodeStatus]
    unserved: list[str]  # accounts without a node
    waiting: int  # messages without a turn
    oldest_waiting_seconds: float | None
    load: ServerHealth | None  # None: there are no tables yet


def load_nodes(db: Connection) -> list[NodeRow]:
    """Load all running nodes, and the latest node with each name even if it has ended, sorted by name."""
    query = f"""SELECT n.id, n.name, n.version, n.role, n.settings, n.pid, n.seats, n.started_at, n.seated_at,
      {_LIVES} AS is_alive
    FROM nodes n
    WHERE {_LIVES}
      OR NOT EXISTS (SELECT 1 FROM nodes later WHERE later.name = n.name AND later.started_at > n.started_at)
    ORDER BY n.name, n.started_at"""
    return select(db, NodeRow, query)


def session_name(node_id: str) -> str:
    """Return the name of the database sessions in which a node reads and writes."""
    return f"{NAME} {node_id}"


def end_left_transactions(db: Connection, seconds: float = 2.0) -> int:
    """End transactions that nodes without a seat have left open for `seconds`. Return how many were ended.

    The server ends idle transactions by itself. But if a node stops while it sends a batch, the server waits for the
    rest of the batch, whose chats stay locked.
    """
    query = f"""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user
      AND xact_start < clock_timestamp() - make_interval(secs => CAST(? AS double precision))
      AND application_name IN (SELECT '{NAME} ' || n.id FROM nodes n WHERE NOT {_LIVES})"""
    return scalar(db, int, query, (seconds,))


def load_cluster(db: Connection) -> ClusterStatus:
    """Load every node with its accounts and chats, the number of waiting messages, and the server's load."""
    held = defaultdict[tuple[int, int], set[int]](set)
    for pid, kind, key in db.execute(_HELD):
        held[pid, kind].add(key)
    accounts = scalars(db, str, "SELECT account FROM accounts ORDER BY account")
    lock_keys = scalars(db, int, "SELECT id & 2147483647 FROM chats ORDER BY id")
    keys = select(db, ChatKey, f"SELECT {columns(ChatKey, 'chats')} FROM chats ORDER BY id")
    chats = {lock_key: key.name for lock_key, key in zip(lock_keys, keys, strict=True)}
    found = load_nodes(db)
    labels = _labels(found)
    nodes = [
        NodeStatus(
            id=node.id,
            name=node.name,
            label=labels[node.id],
            role=node.role,
            version=node.version,
            started_at=node.started_at,
            seated_at=node.seated_at,
            is_alive=node.is_alive,
            seats_lost=node.seats - 1,
            accounts=[name for name in accounts if account_lock(name).key in held[node.pid, LockKind.ACCOUNT]],
            is_keeper=KEEPER.key in held[node.pid, LockKind.KEEPER],
            chats=sorted(chats.get(key, "?") for key in held[node.pid, LockKind.CHAT]),
        )
        for node in found
    ]
    waiting, oldest = db.execute("SELECT count(*), min(received_at) FROM inbox WHERE state = 'new'").fetchone()
    (load,) = select(db, ServerHealth, _LOAD)
    return ClusterStatus(
        nodes=nodes,
        unserved=[name for name in accounts if not any(name in node.accounts for node in nodes)],
        waiting=waiting,
        oldest_waiting_seconds=None if oldest is None else max(0, scalar(db, int, _NOW) - oldest) / 1000,
        load=load,
    )


def find_owner(db: Connection, account: str) -> NodeStatus | None:
    return next((node for node in load_cluster(db).nodes if account in node.accounts), None)


def find_differences(db: Connection, node: NodeInfo, now: Millis) -> list[str]:
    """Compare the node's clock with the server's, and its settings with running nodes. Describe each difference."""
    late = (scalar(db, int, _NOW) - now) // 1000
    found = []
    if abs(late) > MAX_CLOCK_SECONDS:
        off = f"{counted(abs(late), 'second')} {'behind' if late > 0 else 'ahead of'}"
        found.append(f"the clock of {node.name} is {off} the PostgreSQL server's clock: synchronise both with NTP")
    others = _living_others(db, node)
    labels, mine = _labels([replace(node, id=""), *others]), _settings_of(node.settings)
    for other in others:
        theirs = _settings_of(other.settings)
        for key in sorted(mine.keys() & theirs.keys()):
            if mine[key] != theirs[key]:
                rule = "each bot needs its own database" if key.endswith("token") else "set the same value on all nodes"
                place = f"{theirs[key]} on {labels[other.id]}, which uses the same database"
                found.append(f"{key} is {mine[key]} on {labels['']} and {place}: {rule}")
    return found


def find_faults(db: Connection, node: NodeInfo, connections: int, now: Millis) -> list[str]:
    """Return a sentence about each problem that prevents `node` from joining with this number of `connections`."""
    found = find_differences(db, node, now)
    if not is_one_session(db):
        found.append(POOLED)
    others = _living_others(db, node)
    if any(other.name == node.name for other in others):
        found.append(
            f"another node is also called {node.name}: set cluster.name on each of them. Otherwise "
            "only ids distinguish them in logs and in `cluster status`"
        )
    nodes = 1 + len(others)
    if nodes * connections > (free := scalar(db, int, _CONNECTIONS)):
        found.append(
            f"the server allows {counted(free, 'connection')}, but {counted(nodes, 'node')} with {connections} each "
            f"need {nodes * connections}: raise its max_connections, or lower store.writers"
        )
    return found


def _living_others(db: Connection, node: NodeInfo) -> list[NodeRow]:
    return [other for other in load_nodes(db) if other.is_alive and other.id != node.id]


def _labels(nodes: Sequence[NodeInfo | NodeRow]) -> dict[str, str]:
    """Return the nodes' names for use in messages, keyed by node id. An empty id means this node."""
    counts = Counter(node.name for node in nodes)
    ids = {node.id: node.id[:8] or "this one" for node in nodes}
    return {node.id: node.name if counts[node.name] == 1 else f"{node.name} ({ids[node.id]})" for node in nodes}


def is_one_session(db: Connection) -> bool:
    """Return True if there is no pooler between this node and the server.

    Only then can the server end a silent session.
    """
    query = "SELECT set_config('idle_session_timeout', '1h', true), pg_backend_pid()"
    timeout, pid = db.execute(query).fetchone()
    return bool(pid == db.raw.info.backend_pid and timeout == "1h")  # type: ignore[attr-defined]  # PostgreSQL's


def _settings_of(note: str) -> Mapping[str, str]:
    return msgspec.json.decode(note, type=dict[str, str])


@locks("nodes")
def forget_node(db: Connection, node: NodeInfo) -> None:
    """Remove a node that is not allowed to run with the others."""
    db.execute("DELETE FROM nodes WHERE id = ?", (node.id,))


@locks("nodes")
def save_settings(db: Connection, node: NodeInfo) -> None:
    db.execute("UPDATE nodes SET settings = ? WHERE id = ?", (node.settings, node.id))


@locks("nodes")
def forget_gone(db: Connection, now: Millis) -> int:
    """Mark nodes that are gone, and delete nodes that have been gone for a day. Return how many were deleted."""
    db.execute(f"UPDATE nodes n SET gone_at = :now WHERE gone_at IS NULL AND NOT {_LIVES}", {"now": now})
    return db.execute("DELETE FROM nodes WHERE gone_at < ?", (now - 86_400_000,)).rowcount
