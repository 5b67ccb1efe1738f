"""Locks of a batch as advisory locks of PostgreSQL, which end with its transaction.

The first is that of everything: shared for most, exclusive for functions that touch whatever they find. It is taken
with `BEGIN`, in a statement of its own: whoever waits for it sees the chats behind it as they are then, and no chat is
moved while it is held. The others follow in ascending order, so that no two batches wait for each other.

Keys are hashes of 64 bits. Two chats that share one wait for each other now and then, and nothing else happens. A chat
that is not stored yet is locked by its key like any other.
"""

from hermes_state.store.locks import EVERYTHING, ROW_KINDS, LockKeys

# Keys of two numbers are apart from those of one.
_BEGIN = "BEGIN; SELECT pg_advisory_xact_lock_shared(0, 0)"
_BEGIN_ALONE = "BEGIN; SELECT pg_advisory_xact_lock(0, 0)"

# Purpose: the locks of a batch, in ascending order. The names of chats are those of `store.locks.place_of`.
PREPARE = """
PREPARE take_locks (bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], text[]) AS
WITH touched AS (
  SELECT unnest($1) AS chat_id
  UNION SELECT chat_id FROM sessions WHERE id = ANY($2)
  UNION SELECT chat_id FROM sessions WHERE lineage_id = ANY($3)
  UNION SELECT chat_id FROM turns WHERE id = ANY($4)
  UNION SELECT chat_id FROM inbox WHERE id = ANY($5)
  UNION SELECT chat_id FROM outbox WHERE id = ANY($6))
SELECT pg_advisory_xact_lock(key) FROM (
  SELECT hashtextextended('chat/' || platform || '/' || account || '/' || chat_ref || '/' || thread_ref, 0) AS key
  FROM chats WHERE id = ANY(ARRAY(SELECT chat_id FROM touched))
  UNION SELECT hashtextextended(name, 0) FROM unnest($7) AS name
  ORDER BY key) AS ordered
"""


def begin(keys: LockKeys) -> str:
    """The statements that begin a batch, on a connection that has run `PREPARE`.

    They go to the server in one trip; each of them sees what was stored before it began, not before the trip did.
    """
    if EVERYTHING in keys.names:
        return _BEGIN_ALONE
    if not (keys.rows or keys.names):
        return _BEGIN
    ids = ["'{" + ",".join(str(int(row_id)) for of, row_id in keys.rows if of == kind) + "}'" for kind in ROW_KINDS]
    names = ",".join(map(_literal, keys.names))
    return f"{_BEGIN}; EXECUTE take_locks ({', '.join(ids)}, ARRAY[{names}]::text[])"


def _literal(name: str) -> str:
    """A text that no character of it can end; a NUL is as it is stored."""
    stored = name.replace("\0", "\N{REPLACEMENT CHARACTER}").encode()
    return f"convert_from('\\x{stored.hex()}', 'UTF8')"
