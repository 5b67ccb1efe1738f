"""Database pages that the gateway writes per message in one chat, by table and index.

Each commit appends its changed pages to the write-ahead log, one frame a page. The figures count these frames. The log
is read when the gateway has written nothing for some seconds, so work that it does behind the answers counts too.
"""

import asyncio
import contextlib
import sqlite3
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from bench.measure import Measure
from bench.subjects import gateway, lab
from bench.traffic import WARM_UP, sequence

QUIET_SECONDS, LATEST_SECONDS = 4.0, 60.0
"""Seconds without a write after which the gateway has nothing left to do, and the maximum seconds to wait for that."""
_LOG_HEADER, _FRAME_HEADER = 32, 24


async def run(quick: bool) -> list[Measure]:
    """Count the pages written for messages in one chat. Each message is written after the previous answer."""
    count = 60 if quick else 200
    with tempfile.TemporaryDirectory() as name:
        log = Log(Path(name) / "home" / "state.db")
        async with lab() as here, gateway(here, Path(name)) as subject:
            await here.speak()
            await sequence(here, subject, 2 * count)  # small tables share fewer pages than larger ones
            with log.kept():
                await sequence(here, subject, 1)
                start = await log.quiet_end()
                await sequence(here, subject, count - WARM_UP)
                await log.quiet_end()
                written, names = log.frames()[start:], log.names()
    for table, pages in Counter(names.get(page, "free pages") for page, _ in written).most_common():
        print(f"{pages / count:6.2f}  {table}")
    print(f"{sum(pages > 0 for _, pages in written) / count:6.2f}  commits")
    return [Measure(name="one chat: pages written per message", ours=len(written) / count, unit="pages", bar=33)]


@dataclass(frozen=True, slots=True)
class Log:
    """Write-ahead log of a database that another process writes."""

    database: Path

    @property
    def _file(self) -> Path:
        return self.database.with_name(f"{self.database.name}-wal")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep all frames. SQLite reuses the log's space only if no open snapshot needs it."""
        with contextlib.closing(sqlite3.connect(self.database, isolation_level=None)) as db:
            db.execute("BEGIN")
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
            yield

    async def quiet_end(self) -> int:
        """Return the number of valid frames when nothing was written for some seconds."""
        count, latest = -1, time.monotonic() + LATEST_SECONDS
        while count < (now := len(self.frames())) and time.monotonic() < latest:
            count = now
            await asyncio.sleep(QUIET_SECONDS)
        return count

    def frames(self) -> list[tuple[int, int]]:
        """Return the page of each frame, and the size of the database if the frame ends a commit, otherwise 0."""
        log = memoryview(self._file.read_bytes())
        size = _FRAME_HEADER + struct.unpack_from(">I", log, 8)[0]
        heads = [struct.unpack_from(">IIQ", log, at) for at in range(_LOG_HEADER, len(log) - size + 1, size)]
        (current,) = struct.unpack_from(">Q", log, 16)
        return [(page, pages) for page, pages, salts in takewhile(lambda head: head[2] == current, heads)]

    def names(self) -> dict[int, str]:
        """Return the table or index of each page."""
        with contextlib.closing(sqlite3.connect(self.database)) as db:
            return dict(db.execute("SELECT pageno, name FROM dbstat"))
