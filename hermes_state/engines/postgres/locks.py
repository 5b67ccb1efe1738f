"""Locks of a batch as advisory locks of PostgreSQL, which end with its transaction.

The first is that of everything: shared for most, exclusive for functions that touch whatever they find. It is taken
with `BEGIN`, in a statement of its own: whoever waits for it sees the chats behind it as they are then, and no chat is
moved while it is held. The others follow in ascending order, so that no two batches wait for each other.

Keys are hashes of 64 bits. Two chats that share one wait for each other now and then, and nothing else happens. A chat
that is not stored yet is locked by its key like any other.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from hermes_state.store.locks import EVERYTHING, ROW_KINDS, LockKeys
from hermes_state.store.sql import Connection, Cursor

# Keys of two numbers are apart from those of one.
_SHARED = "SELECT pg_advisory_xact_lock_shared(CAST(? AS integer), 0)"
_ALONE = "SELECT pg_advisory_xact_lock(CAST(? AS integer), 0)"

# Purpose: the locks of a batch, in ascending order; returns which lock each row and each name has led to. The names of
# chats are those of `store.locks.place_of`.
_TAKE = """
WITH touched AS (
  SELECT 'chat' AS kind, id, id AS chat_id FROM unnest(CAST(? AS bigint[])) AS id
  UNION ALL SELECT 'session', id, chat_id FROM sessions WHERE id = ANY(CAST(? AS bigint[]))
  UNION ALL SELECT DISTINCT 'lineage', lineage_id, chat_id FROM sessions WHERE lineage_id = ANY(CAST(? AS bigint[]))
  UNION ALL SELECT 'turn', id, chat_id FROM turns WHERE id = ANY(CAST(? AS bigint[]))
  UNION ALL SELECT 'inbox', id, chat_id FROM inbox WHERE id = ANY(CAST(? AS bigint[]))
  UNION ALL SELECT 'outbox', id, chat_id FROM outbox WHERE id = ANY(CAST(? AS bigint[]))),
led AS MATERIALIZED (
  SELECT touched.kind, touched.id,
    hashtextextended('chat/' || platform || '/' || account || '/' || chat_ref || '/' || thread_ref, 0) AS key
  FROM touched JOIN chats ON chats.id = touched.chat_id
  UNION ALL SELECT name, 0, hashtextextended(name, 0) FROM unnest(CAST(? AS text[])) AS name),
taken AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(key) FROM (SELECT DISTINCT key FROM led ORDER BY key) AS ordered)
SELECT kind, id, key FROM led, (SELECT count(*) FROM taken) AS all_of_them
"""


def begin(db: Connection, batch: Sequence[LockKeys]) -> list[list[int]]:
    """Begin a transaction and take the locks of its functions. Each statement sees what was stored before it began.

    Returns the places of the functions in queues: those that share a lock are in one, and have to follow each other.
    """
    db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # whatever the role's own is: locks come before what is read
    keys = reduce(or_, batch)
    if EVERYTHING in keys.names:
        db.execute(_ALONE, (0,))
        return [[*range(len(batch))]]
    db.execute(_SHARED, (0,))
    taken = _take(db, keys) if keys != LockKeys() else None
    if taken is None or len(batch) == 1:  # nobody looks at what is taken: it travels with the first statement
        return [[at] for at in range(len(batch))]
    return _queues(batch, taken.fetchall())


def _take(db: Connection, keys: LockKeys) -> Cursor:
    ids = ["{" + ",".join(str(row_id) for of, row_id in keys.rows if of == kind) + "}" for kind in ROW_KINDS]
    return db.execute(_TAKE, (*ids, list(keys.names)))


def _queues(batch: Sequence[LockKeys], taken: Iterable[tuple[str, int, int]]) -> list[list[int]]:
    """`taken`: kinds and ids of rows, or names and 0, and the locks that they have led to.

    A row that is not there leads to none, and is one of its own.
    """
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
