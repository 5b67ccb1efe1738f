"""Nodes of a cluster as the database knows them: who has a seat, what is theirs, and what they must agree on.

What a node has is in PostgreSQL's own tables of sessions and locks. Nobody writes it down, so it cannot be out of date.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.seats import KEEPER, LockKind, NodeInfo, account_lock
from hermes_state.store.sql import Connection, columns, scalar, scalars, select
from hermes_state.text import counted
from hermes_state.values import ChatKey, Millis

MAX_CLOCK_SECONDS = 60
"""Most seconds that a node's clock may differ from the server's: days, deadlines and their order go by it."""

POOLED = "store.url leads to a pooler: the locks of a node are those of one session, so name the server itself"
"""Sentence about an address that gives a node no session of its own."""

GONE_MILLIS = 86_400_000
"""Time for which a node that is gone is remembered, in milliseconds."""

NAME = "hermes-gateway"
"""Name of our sessions, or the beginning of it."""

SEAT = f"{NAME} seat "
"""Name of a seat's session, before the node's id: by it the server's own tables tell which node lives."""

LEFT_SECONDS = 2.0
"""Age in seconds of a transaction that a node without a seat has left: one that has a new seat is not disturbed."""

_LIVES = f"""EXISTS (SELECT 1 FROM pg_stat_activity a
  WHERE a.pid = n.pid AND a.datname = current_database() AND a.application_name = '{SEAT}' || n.id)"""


_NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

_CONNECTIONS = (
    "SELECT CAST(current_setting('max_connections') AS bigint)"
    " - CAST(current_setting('superuser_reserved_connections') AS bigint)"
)

# Purpose: living nodes and, of each other name, the last one.
_NODES = f"""
SELECT n.id, n.name, n.version, n.role, n.settings, n.pid, n.seats, n.started_at, n.seated_at, {_LIVES} AS is_alive
FROM nodes n
WHERE {_LIVES} OR NOT EXISTS (SELECT 1 FROM nodes later WHERE later.name = n.name AND later.started_at > n.started_at)
ORDER BY n.name, n.started_at"""

_KINDS = ", ".join(str(kind.value) for kind in LockKind)
# Purpose: locks of this database's seats; keys of two integers have 2 as `objsubid`.
_HELD = f"""
SELECT pid, CAST(classid AS bigint) AS kind, CAST(objid AS bigint) AS key FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND CAST(classid AS bigint) IN ({_KINDS})
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

# Purpose: what gateways, this session aside, have to do with the database, and how full its server is.
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

_CHATS = f"SELECT {columns(ChatKey, 'c', 'key')}, c.id & 2147483647 AS lock_key FROM chats c"
_WAITING = "SELECT count(*), min(received_at) FROM inbox WHERE state = 'new'"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node that has, or had, a seat."""

    id: str
    name: str
    version: str
    role: str
    settings: str
    pid: int
    seats: int
    started_at: Millis
    seated_at: Millis
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node with what it has of the work."""

    id: str
    name: str
    label: str
    """Its name in sentences: with the beginning of its id where another node has the same name."""
    role: str
    version: str
    started_at: Millis
    seated_at: Millis
    is_alive: bool
    seats_lost: int
    accounts: list[str]
    is_keeper: bool
    """It does what is to be done once: schedules, expiry, housekeeping."""
    chats: list[str]
    """Chats that it works in, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Load of the database and its server."""

    connections: int
    """Connections of gateways to the database."""
    busy: int
    """Those in a transaction."""
    lock_waits: int
    """Those that wait for what another one has locked."""
    longest_seconds: float
    """Age of their longest transaction."""
    server_connections: int
    """Connections of everybody to the server."""
    max_connections: int
    hint_queue_percent: float
    """Share of the server's queue of notifications that a seat has not yet read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """All nodes of a database, and what waits for one."""

    nodes: list[NodeStatus]
    unserved: list[str]
    """Accounts that no node serves right now."""
    waiting: int
    """Messages that no turn has taken up."""
    oldest_waiting_seconds: float | None
    """Age of the oldest of them; None: there is none."""
    load: ServerLoad | None
    """None: nobody has made the tables yet."""


@dataclass(frozen=True, slots=True)
class _HeldLock:
    pid: int
    kind: int
    key: int


@dataclass(frozen=True, slots=True)
class _LockedChat:
    key: ChatKey
    lock_key: int


def load_nodes(db: Connection) -> list[NodeRow]:
    """Living nodes and, of every other name, the node that had it last; by name."""
    return select(db, NodeRow, _NODES)


def session_name(node_id: str) -> str:
    """Name of the sessions in which a node reads and writes."""
    return f"{NAME} {node_id}"


def end_left_transactions(db: Connection, seconds: float = LEFT_SECONDS) -> int:
    """End transactions that nodes without a seat have left open for `seconds`; returns how many.

    The server takes back one that is idle by itself, but not one in the middle of a batch: of a node that was stopped
    while it sent one, or of a machine that died then, it waits for the rest, and the chats stay locked meanwhile.
    """
    query = f"""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user
      AND xact_start < clock_timestamp() - make_interval(secs => CAST(? AS double precision))
      AND application_name IN (SELECT '{NAME} ' || n.id FROM nodes n WHERE NOT {_LIVES})"""
    return scalar(db, int, query, (seconds,))


def load_cluster(db: Connection) -> ClusterStatus:
    """Every node with its accounts and chats, and what waits for one."""
    held = defaultdict[tuple[int, int], set[int]](set)
    for lock in select(db, _HeldLock, _HELD):
        held[lock.pid, lock.kind].add(lock.key)
    accounts = scalars(db, str, "SELECT account FROM accounts ORDER BY account")
    chats = {chat.lock_key: chat.key.name for chat in select(db, _LockedChat, _CHATS)}
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
    waiting, oldest = db.execute(_WAITING).fetchone()
    (load,) = select(db, ServerLoad, _LOAD)
    return ClusterStatus(
        nodes=nodes,
        unserved=[name for name in accounts if not any(name in node.accounts for node in nodes)],
        waiting=waiting,
        oldest_waiting_seconds=None if oldest is None else max(0, scalar(db, int, _NOW) - oldest) / 1000,
        load=load,
    )


def find_owner(db: Connection, account: str) -> NodeStatus | None:
    """The node that serves an account; None where none does."""
    return next((node for node in load_cluster(db).nodes if account in node.accounts), None)


def find_differences(db: Connection, node: NodeInfo, now: Millis) -> list[str]:
    """Sentences about what `node` must agree on with the server and with the living nodes, and does not."""
    late = (scalar(db, int, _NOW) - now) // 1000
    found = []
    if abs(late) > MAX_CLOCK_SECONDS:
        off = f"{counted(abs(late), 'second')} {'behind' if late > 0 else 'ahead of'}"
        found.append(f"the clock of {node.name} is {off} the PostgreSQL server's, a minute at most is allowed: use NTP")
    others, mine = _living_others(db, node), _settings_of(node.settings)
    labels = _labels([replace(node, id=""), *others])
    for other in others:
        found += _compared(labels[""], mine, labels[other.id], _settings_of(other.settings))
    return found


def find_faults(db: Connection, node: NodeInfo, connections: int, now: Millis) -> list[str]:
    """Sentences about all that keeps `node` from working beside others, with so many `connections` of its own."""
    found = find_differences(db, node, now)
    if not is_one_session(db):
        found.append(POOLED)
    others = _living_others(db, node)
    if any(other.name == node.name for other in others):
        found.append(
            f"another node is called {node.name}, too: give each a name of its own (cluster.name), or logs and "
            "`cluster status` tell them apart by their ids only"
        )
    nodes = 1 + len(others)
    if nodes * connections > (free := scalar(db, int, _CONNECTIONS)):
        found.append(
            f"the server takes {counted(free, 'connection')}, and {counted(nodes, 'node')} with {connections} each need"
            f" {nodes * connections}: raise its max_connections, or lower store.writers"
        )
    return found


def _living_others(db: Connection, node: NodeInfo) -> list[NodeRow]:
    return [other for other in load_nodes(db) if other.is_alive and other.id != node.id]


def _labels(nodes: Sequence[NodeInfo | NodeRow]) -> dict[str, str]:
    """Names of nodes in sentences, by their ids; the node that asks has none."""
    counts = Counter(node.name for node in nodes)
    ids = {node.id: node.id[:8] or "this one" for node in nodes}
    return {node.id: node.name if counts[node.name] == 1 else f"{node.name} ({ids[node.id]})" for node in nodes}


def is_one_session(db: Connection) -> bool:
    """True where the session behind a connection is its own, as a seat's must be, and may be ended when it is silent.

    Leaves the session as it is.
    """
    query = "SELECT set_config('idle_session_timeout', '1h', true), pg_backend_pid()"
    timeout, pid = db.execute(query).fetchone()
    return bool(pid == db.raw.info.backend_pid and timeout == "1h")  # type: ignore[attr-defined]  # PostgreSQL's


def _compared(name: str, mine: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each setting that both nodes have and not with the same value."""
    for key in sorted(mine.keys() & theirs.keys()):
        if mine[key] != theirs[key]:
            rule = "a cluster of another bot needs another database" if key.endswith("token") else "nodes must agree"
            yield f"{key} is {mine[key]} at {name} and {theirs[key]} at {other}, which has the same database: {rule}"


def _settings_of(note: str) -> Mapping[str, str]:
    return msgspec.json.decode(note, type=dict[str, str])


@locks("nodes")
def forget_node(db: Connection, node: NodeInfo) -> None:
    """Remove a node that may not be beside the others."""
    db.execute("DELETE FROM nodes WHERE id = ?", (node.id,))


@locks("nodes")
def save_settings(db: Connection, node: NodeInfo) -> None:
    """Keep the settings of a node, which others compare theirs with."""
    db.execute("UPDATE nodes SET settings = ? WHERE id = ?", (node.settings, node.id))


@locks("nodes")
def forget_gone(db: Connection, now: Millis) -> int:
    """Note which nodes are gone, and remove those that have been for a day; returns how many."""
    query = f"UPDATE nodes n SET gone_at = :now WHERE gone_at IS NULL AND NOT {_LIVES}"
    db.execute(query, {"now": now})
    statement = "DELETE FROM nodes WHERE gone_at < ?"
    return db.execute(statement, (now - GONE_MILLIS,)).rowcount
