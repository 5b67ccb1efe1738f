"""Measure search on PostgreSQL, in as many messages as an active team writes in several years.

The database is created as a file and copied to the server, like with `hermes-gateway store copy`. It has the same
messages as the database of `make bench`.
"""

import tempfile
from pathlib import Path

from bench.measure import Measure
from bench.searches import emoji_search, fill, timed_searches, usual_searches
from hermes_state.admin.copy import copy_database
from hermes_state.engines.opening import open_ends
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.engines.sqlite.store import SqliteStore
from tests.postgres import running_server

MESSAGES, FEWER = 200_000, 20_000
_SEARCHES = [*usual_searches(rare=5, phrase=5, common=10, chinese=15), emoji_search(25)]


async def run(quick: bool) -> list[Measure]:
    """Measure each search many times. `quick`: in a tenth of the messages."""
    messages = FEWER if quick else MESSAGES
    with (
        tempfile.TemporaryDirectory(prefix="search-bench-", ignore_cleanup_errors=True) as name,
        running_server(Path(name) / "postgres", {}) as server,
        server.database() as url,
    ):
        path = Path(name) / "full.db"
        await (await SqliteStore.open(path)).close()
        fill(path, messages)
        with open_ends(path, url) as (read, written):
            copy_database(read, written, path.name, lambda *_: None)
        store = await PostgresStore.open(url)
        try:
            return await timed_searches(store, f"{messages:,} messages on PostgreSQL", _SEARCHES)
        finally:
            await store.close()
