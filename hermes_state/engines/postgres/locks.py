"""PostgreSQL advisory locks of a batch. They are released when the batch's transaction ends.

Every batch first takes one common lock: exclusively if a function declares no chats, otherwise shared. This needs a
separate statement, so that later statements see the current chats, which cannot move until the transaction ends. Then
the batch takes the other locks in ascending order, so that batches cannot deadlock.

The keys of the other locks are 64-bit hashes of their names. If two chats have the same hash, they merely wait for each
other. A chat can be locked before it is stored, because only its name is hashed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from operator import or_

from hermes_state.store.locks import EVERYTHING, ROW_KINDS, LockKeys
from hermes_state.store.sql import Connection, Cursor

# Purpose: find the chats to which rows belong, by kind of row.
_CHATS_OF = {
    "chat": "SELECT 'chat' AS kind, id, id AS chat_id FROM unnest(CAST(:chat AS bigint[])) AS id",
    "session": "SELECT 'session' AS kind, id, chat_id FROM sessions WHERE id = ANY(CAST(:session AS bigint[]))",
    "lineage": """SELECT DISTINCT 'lineage' AS kind, lineage_id AS id, chat_id FROM sessions
      WHERE lineage_id = ANY(CAST(:lineage AS bigint[]))""",
    "turn": "SELECT 'turn' AS kind, id, chat_id FROM turns WHERE id = ANY(CAST(:turn AS bigint[]))",
    "inbox": "SELECT 'inbox' AS kind, id, chat_id FROM inbox WHERE id = ANY(CAST(:inbox AS bigint[]))",
    "outbox": "SELECT 'outbox' AS kind, id, chat_id FROM outbox WHERE id = ANY(CAST(:outbox AS bigint[]))",
}
# Purpose: compute the locks of chats, named as in `store.locks.place_of`.
_OF_ROWS = """
SELECT touched.kind, touched.id,
  hashtextextended('chat/' || platform || '/' || account || '/' || chat_ref || '/' || thread_ref, 0) AS key
FROM ({}) AS touched JOIN chats ON chats.id = touched.chat_id"""
_OF_NAMES = """
SELECT name AS kind, 0 AS id, hashtextextended(name, 0) AS key FROM unnest(CAST(:names AS text[])) AS name"""
# Purpose: take locks in ascending order; return the lock of each row and each name.
_TAKE = """
WITH led AS MATERIALIZED ({}), taken AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(key) FROM (SELECT DISTINCT key FROM led ORDER BY key) AS ordered)
SELECT kind, id, key FROM led, (SELECT count(*) FROM taken) AS all_of_them"""


def begin(db: Connection, batch: Sequence[LockKeys]) -> list[list[int]]:
    """Begin a transaction and take the locks that its functions need.

    Return queues of indexes into `batch`. Functions that share a lock are in the same queue, in order.
    """
    db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # the role's default may differ; rows must be read after locking
    keys = reduce(or_, batch)
    if EVERYTHING in keys.names:
        # A lock key of two integers cannot collide with a key of one integer.
        db.execute("SELECT pg_advisory_xact_lock(CAST(? AS integer), 0)", (0,))
        return [[*range(len(batch))]]
    db.execute("SELECT pg_advisory_xact_lock_shared(CAST(? AS integer), 0)", (0,))
    taken = _take(db, keys) if keys != LockKeys() else None
    if taken is None or len(batch) == 1:  # the locks are sent with the first statement
        return [[at] for at in range(len(batch))]
    return _queues(batch, taken.fetchall())


def _take(db: Connection, keys: LockKeys) -> Cursor:
    ids: dict[str, list[str]] = {}
    for kind, row_id in keys.rows:
        ids.setdefault(kind, []).append(str(row_id))
    arrays: dict[str, object] = {kind: f"{{{','.join(found)}}}" for kind, found in ids.items()}
    text = _lock_statement(tuple(kind for kind in ROW_KINDS if kind in ids), bool(keys.names))
    return db.execute(text, arrays | {"names": list(keys.names)})


@cache
def _lock_statement(kinds: tuple[str, ...], has_names: bool) -> str:
    """Return a statement that locks the chats of given rows. To save time, it only looks up rows of these `kinds`."""
    of_rows = [_OF_ROWS.format(" UNION ALL ".join(_CHATS_OF[kind] for kind in kinds))] if kinds else []
    return _TAKE.format(" UNION ALL ".join([*of_rows, *([_OF_NAMES] if has_names else [])]))


def _queues(batch: Sequence[LockKeys], taken: Iterable[tuple[str, int, int]]) -> list[list[int]]:
    """Group functions that share locks. Each item of `taken` is (kind, id, lock) or (name, 0, lock)."""
    led_to = defaultdict[tuple[str, int], set[object]](set)
    for kind, row_id, lock in taken:
        led_to[kind, row_id].add(lock)
    queues: list[tuple[set[object], list[int]]] = []
    for at, keys in enumerate(batch):
        rows = {*keys.rows, *((name, 0) for name in keys.names)}
        locks, places = rows.union(*(led_to[row] for row in rows)), [at]
        apart = list[tuple[set[object], list[int]]]()
        for others, before in queues:
            if locks.isdisjoint(others):
                apart.append((others, before))
            else:
                locks, places = locks | others, before + places
        queues = [*apart, (locks, sorted(places))]
    return [places for _, places in queues]
