"""Salvage of tables: copies the readable rows of a damaged database into a new one of the same schema.

A page that cannot be read takes the rows on it and below it. They are stepped over: ranges of keys are halved until
the rest of them was read or is a single key.
"""

import contextlib
import heapq
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

_JSON = frozenset({"body", "payload", "settings", "context_state", "calibration", "image_facts"})
"""Columns of JSON. A row with invalid JSON was hit, and would break its readers."""


@dataclass(slots=True, kw_only=True)
class TableReport:
    """Outcome of the salvage of a table."""

    name: str
    rows: int
    expected: int | None
    """Number of rows according to a readable index; None without one."""
    lost: str
    """Lost keys, as far as they are numbers; `all` without the table's description."""


class SalvageJob:
    """Copies one table from the damaged database `old` to `new`."""

    def __init__(self, name: str, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        described = new.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
        key = sorted((position, column, kind) for column, kind, position in described if position)
        self._name, self._old, self._new = name, old, new
        self._columns = [column for column, _, _ in described]
        self._key = [column for _, column, _ in key]
        self._is_numbered = key[0][2] == "INTEGER"  # it begins with a number, as a row id is
        self._failures = 0
        self._lost: list[tuple[int, int]] = []

    def run(self) -> TableReport:
        """Copy every readable row that `new` does not have. Raises `OSError` if `new` is full."""
        expected, lost = None, "all"
        with contextlib.suppress(sqlite3.DatabaseError):  # the description of the table may be lost
            self._old.execute(f"SELECT {', '.join(self._columns)} FROM {self._name} LIMIT 0")
            expected, greatest = self._size()
            if self._is_numbered:
                self._copy_ranges(greatest)
                lost = _shown(self._lost)
            else:
                lost = "" if self._copy("1", ()) is None else "some"
                self._copy("1", (), is_backward=True)
        rows = self._new.execute(f"SELECT count(*) FROM {self._name}").fetchone()[0]
        return TableReport(name=self._name, rows=rows, expected=expected, lost=lost)

    def _size(self) -> tuple[int | None, int]:
        """Return the number of rows, if an index still has it, and the greatest number at the beginning of a key."""
        greatest = f"max(+{self._key[0]})" if self._is_numbered else "0"
        indexes = "SELECT name FROM pragma_index_list(?) WHERE NOT partial AND origin <> 'pk'"
        for (name,) in [("",), *self._new.execute(indexes, (self._name,)).fetchall()]:
            source = f'{self._name} INDEXED BY "{name}"' if name else self._name
            with contextlib.suppress(sqlite3.DatabaseError):
                count, key = self._old.execute(f"SELECT count(*), {greatest} FROM {source}").fetchone()
                return count, key or 0
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):  # no table, no row
            query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
            return None, self._old.execute(query, (self._name,)).fetchone()[0]
        # No page of any table has more than 1,000 row ids.
        return None, self._old.execute("PRAGMA page_count").fetchone()[0] * 1_000

    def _copy_ranges(self, greatest: int) -> None:
        """Copy ranges of keys, the widest first: the part that has to be given up at the end is the smallest.

        Each is a query of its own, so that a page that leads astray does so only up to the end of its range.
        """
        first, step = self._key[0], greatest // 256 + 1
        ranges = [(-step, low, min(low + step - 1, greatest)) for low in range(1, greatest + 1, step)]
        while ranges:
            _, low, high = heapq.heappop(ranges)
            where, values = (f"{first} BETWEEN ? AND ?", (low, high)) if low < high else (f"{first} = ?", (low,))
            if (reached := self._copy(where, values)) is None:
                continue
            if low >= high or self._failures >= 20_000:  # after that, some seconds of work, the rest is given up
                self._copy(where, values, is_backward=True)
                self._lost.append((low, high))
            else:
                low = max(low, reached)
                middle = (low + high) // 2
                heapq.heappush(ranges, (low - middle, low, middle))
                heapq.heappush(ranges, (middle + 1 - high, middle + 1, high))

    def _copy(self, where: str, values: Sequence[int], *, is_backward: bool = False) -> int | None:
        """Copy rows in the order of their keys; None if all were read, else the last number before the damage.

        One by one: the driver reads a row ahead, and damage would cost the row before it, too.
        """
        beyond, order = ("<", "DESC") if is_backward else (">", "")
        query = f"SELECT {', '.join(self._columns)} FROM {self._name} NOT INDEXED WHERE {where}"
        tail = f"ORDER BY {', '.join(f'{part} {order}' for part in self._key)} LIMIT 1"
        after = f"AND ({', '.join(self._key)}) {beyond} ({', '.join('?' * len(self._key))})"
        places, last = [self._columns.index(part) for part in self._key], [0]
        seen = set[tuple[object, ...]]()
        try:
            row = self._old.execute(f"{query} {tail}", values).fetchone()
            while row is not None:
                last = [row[place] for place in places]
                if tuple(last) in seen:
                    raise sqlite3.DatabaseError("pages that are not where they belong lead in a circle")
                seen.add(tuple(last))
                self._insert(row, last[0])
                if len(last) == len(values) == 1:
                    break  # a row id has one row: a look beyond it may meet other damage
                if len(values) == 2:  # an unchanged bound would begin at the same row each time
                    values = (values[0], last[0]) if is_backward else (last[0], values[1])
                row = self._old.execute(f"{query} {after} {tail}", [*values, *last]).fetchone()
        except sqlite3.DatabaseError:
            self._failures += 1
            return last[0]
        return None

    def _insert(self, row: tuple[object, ...], key: int) -> None:
        """Insert a row, unless its key is there already; a row with impossible values is lost."""
        values = zip(self._columns, row, strict=True)
        try:
            for value in (value for name, value in values if name in _JSON and value):
                json.loads(str(value))
            self._new.execute(f"INSERT OR IGNORE INTO {self._name} VALUES ({', '.join('?' * len(row))})", row)
        except (ValueError, sqlite3.IntegrityError):
            if self._is_numbered:
                self._lost.append((key, key))
        except sqlite3.OperationalError as error:  # a full disk is no damage of the old file
            raise OSError(str(error)) from error


def _shown(ranges: list[tuple[int, int]]) -> str:
    """Return the ranges in order, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            low, high = joined[-1][0], max(joined.pop()[1], high)
        joined.append((low, high))
    return ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in joined)
