"""The tree of one conversation, in a file of SQLite: messages as they were shown, and nodes that stand for them.

Both are only ever added. Which nodes are in use is not written down: the handoff in the view names them, so that
whatever happens to the view (`/compress undo`, `/undo`, a restart between two writes) needs no repair here.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

_MESSAGES = "CREATE TABLE IF NOT EXISTS messages (id TEXT PRIMARY KEY, role TEXT NOT NULL, text TEXT NOT NULL) STRICT"
# AUTOINCREMENT: handoffs name nodes, so no number is used twice.
_NODES = """CREATE TABLE IF NOT EXISTS nodes (id INTEGER PRIMARY KEY AUTOINCREMENT, level INTEGER NOT NULL,
  summary TEXT NOT NULL, children TEXT NOT NULL, covers TEXT NOT NULL) STRICT"""
# A message grows while people write on before they are answered: its longest form is the whole one.
_KEEP = """INSERT INTO messages SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
ON CONFLICT (id) DO UPDATE SET text = excluded.text WHERE length(excluded.text) > length(text)"""


class Kept(NamedTuple):
    """A message that is kept, by the recall id of its first row."""

    id: str
    role: str
    text: str

    def __str__(self) -> str:
        return f"{self.id} {self.role}: {self.text}"


class Node(NamedTuple):
    """A summary, and what it stands for: messages on level 0, other nodes above; `covers` are the messages below it."""

    id: int
    level: int
    summary: str
    children: Sequence[str]
    covers: Sequence[str]

    def __str__(self) -> str:
        return f"n{self.id} ({len(self.covers)} messages, {self.covers[0]} to {self.covers[-1]}):\n{self.summary}"


class Tree:
    """The tree in the file `path`. Nothing stays open between two calls, which may come from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._execute(_MESSAGES)
        self._execute(_NODES)

    def keep(self, messages: Iterable[Kept]) -> None:
        self._execute(_KEEP, json.dumps(list(messages)))

    def messages(self) -> dict[str, Kept]:
        """Every message by its id, in the order in which they were first seen."""
        return {row[0]: Kept(*row) for row in self._execute("SELECT id, role, text FROM messages ORDER BY rowid")}

    def node(self, level: int, covers: Sequence[str], children: Sequence[str], summarise: Callable[[], str]) -> Node:
        """A node for these messages; after an undo it may be there already, and is not summarised again."""
        lists = json.dumps(children), json.dumps(covers)
        if known := self._nodes("level = ? AND children = ? AND covers = ? ORDER BY id DESC", level, *lists):
            return known[0]
        self._execute("INSERT INTO nodes VALUES (NULL, ?, ?, ?, ?)", level, summarise(), *lists)
        return self.node(level, covers, children, summarise)

    def named(self, *names: str) -> list[Node]:
        """The nodes of names such as n3. Raises `ValueError` for what is none."""
        return [node for name in names for node in self._nodes("id = ?", int(name.removeprefix("n")))]

    def below(self, tops: Iterable[Node]) -> list[Node]:
        """These nodes and all under them."""
        return [node for top in tops for node in (top, *self.below(self.named(*top.children)))]

    def tops_beside(self, in_view: Iterable[str]) -> list[Node]:
        """The newest nodes for what is not in view, nothing of it twice: where no handoff names them."""
        taken, tops = set(in_view), list[Node]()
        for node in self._nodes("true ORDER BY id DESC"):
            if taken.isdisjoint(node.covers):
                taken.update(node.covers)
                tops.insert(0, node)
        return tops

    def _nodes(self, where: str, *values: Any) -> list[Node]:
        rows = self._execute(f"SELECT * FROM nodes WHERE {where}", *values)
        return [Node(row[0], row[1], row[2], json.loads(row[3]), json.loads(row[4])) for row in rows]

    def _execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=5.0)) as db, db:
            return db.execute(sql, values).fetchall()
