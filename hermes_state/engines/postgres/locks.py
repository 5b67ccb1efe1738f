"""Locks of a batch as advisory locks of PostgreSQL, which end with its transaction.

The first is that of everything: shared for most, exclusive for functions that touch whatever they find. It is taken
with `BEGIN`, in a statement of its own: whoever waits for it sees the chats behind it as they are then, and no chat is
moved while it is held. The others follow in ascending order, so that no two batches wait for each other.

Keys are hashes of 64 bits. Two chats that share one wait for each other now and then, and nothing else happens. A chat
that is not stored yet is locked by its key like any other.
"""

from hermes_state.store.locks import EVERYTHING, ROW_KINDS, LockKeys
from hermes_state.store.sql import Connection

# Keys of two numbers are apart from those of one.
_SHARED = "SELECT pg_advisory_xact_lock_shared(CAST(? AS integer), 0)"
_ALONE = "SELECT pg_advisory_xact_lock(CAST(? AS integer), 0)"

# Purpose: the locks of a batch, in ascending order. The names of chats are those of `store.locks.place_of`.
_TAKE = """
WITH touched AS (
  SELECT unnest(CAST(? AS bigint[])) AS chat_id
  UNION SELECT chat_id FROM sessions WHERE id = ANY(CAST(? AS bigint[]))
  UNION SELECT chat_id FROM sessions WHERE lineage_id = ANY(CAST(? AS bigint[]))
  UNION SELECT chat_id FROM turns WHERE id = ANY(CAST(? AS bigint[]))
  UNION SELECT chat_id FROM inbox WHERE id = ANY(CAST(? AS bigint[]))
  UNION SELECT chat_id FROM outbox WHERE id = ANY(CAST(? AS bigint[])))
SELECT pg_advisory_xact_lock(key) FROM (
  SELECT hashtextextended('chat/' || platform || '/' || account || '/' || chat_ref || '/' || thread_ref, 0) AS key
  FROM chats WHERE id = ANY(ARRAY(SELECT chat_id FROM touched))
  UNION SELECT hashtextextended(name, 0) FROM unnest(CAST(? AS text[])) AS name
  ORDER BY key) AS ordered
"""


def begin(db: Connection, keys: LockKeys) -> None:
    """Begin a transaction and take its locks. Each statement sees what was stored before it began itself."""
    db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # whatever the role's own is: locks come before what is read
    db.execute(_ALONE if EVERYTHING in keys.names else _SHARED, (0,))
    if EVERYTHING not in keys.names and (keys.rows or keys.names):
        ids = ["{" + ",".join(str(row_id) for of, row_id in keys.rows if of == kind) + "}" for kind in ROW_KINDS]
        db.execute(_TAKE, (*ids, list(keys.names)))
