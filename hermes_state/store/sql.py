"""SQL helpers for functions that run inside a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection


@contextmanager
def nested(db: Connection) -> Iterator[None]:
    """A savepoint: what the block has changed is taken back when it raises, and the transaction goes on."""
    db.execute("SAVEPOINT nested")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # a full disk ends the transaction, and the savepoint with it
            db.execute("ROLLBACK TO nested")
        raise
    finally:
        if db.in_transaction:
            db.execute("RELEASE nested")
