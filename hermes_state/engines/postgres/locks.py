"""Locks of a batch as advisory locks of PostgreSQL, which end with its transaction.

The first is that of everything: shared for most, exclusive for functions that touch whatever they find. It is taken
with `BEGIN`, in a statement of its own: whoever waits for it sees the chats behind it as they are then, and no chat is
moved while it is held. The others follow in ascending order, so that no two batches wait for each other.

Keys are hashes of 64 bits. Two chats that share one wait for each other now and then, and nothing else happens. A chat
that is not stored yet is locked by its key like any other.
"""

from hermes_state.store.locks import EVERYTHING, ROW_KINDS, LockKeys

# Keys of two numbers are apart from those of one.
BEGIN = "BEGIN; SELECT pg_advisory_xact_lock_shared(0, 0)"
BEGIN_ALONE = "BEGIN; SELECT pg_advisory_xact_lock(0, 0)"

# Purpose: the locks of a batch, in ascending order. The names of chats are those of `store.locks.place_of`.
LOCK = """
WITH touched AS (
  SELECT unnest(%(chat)s::bigint[]) AS chat_id
  UNION SELECT chat_id FROM sessions WHERE id = ANY(%(session)s::bigint[])
  UNION SELECT chat_id FROM sessions WHERE lineage_id = ANY(%(lineage)s::bigint[])
  UNION SELECT chat_id FROM turns WHERE id = ANY(%(turn)s::bigint[])
  UNION SELECT chat_id FROM inbox WHERE id = ANY(%(inbox)s::bigint[])
  UNION SELECT chat_id FROM outbox WHERE id = ANY(%(outbox)s::bigint[]))
SELECT pg_advisory_xact_lock(key) FROM (
  SELECT hashtextextended('chat/' || platform || '/' || account || '/' || chat_ref || '/' || thread_ref, 0) AS key
  FROM chats WHERE id = ANY(ARRAY(SELECT chat_id FROM touched))
  UNION SELECT hashtextextended(name, 0) FROM unnest(%(names)s::text[]) AS name
  ORDER BY key) AS ordered
"""


def begin(keys: LockKeys) -> str:
    """The statements that begin a batch."""
    return BEGIN_ALONE if EVERYTHING in keys.names else BEGIN


def lock_parameters(keys: LockKeys) -> dict[str, object] | None:
    """Parameters of `LOCK`; None where a batch needs no lock beside that of everything."""
    if EVERYTHING in keys.names or not (keys.rows or keys.names):
        return None
    ids = {kind: [row_id for of, row_id in keys.rows if of == kind] for kind in ROW_KINDS}
    return {**ids, "names": list(keys.names)}
