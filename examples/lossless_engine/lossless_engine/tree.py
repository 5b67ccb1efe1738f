"""Tree of one conversation in an SQLite file: messages as they were shown, and nodes that summarise them.

Messages and nodes are never removed. The file does not store which nodes are in use, because the handoff in the view
names them. A change of the view (`/compress undo`, `/undo`, a restart between two writes) therefore needs no repair
here.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

_MESSAGES = "CREATE TABLE IF NOT EXISTS messages (id TEXT PRIMARY KEY, role TEXT NOT NULL, text TEXT NOT NULL) STRICT"
# AUTOINCREMENT prevents the reuse of ids, because handoffs name nodes by id.
_NODES = """CREATE TABLE IF NOT EXISTS nodes (id INTEGER PRIMARY KEY AUTOINCREMENT, level INTEGER NOT NULL,
  summary TEXT NOT NULL, children TEXT NOT NULL, covers TEXT NOT NULL) STRICT"""
# A message grows while people continue writing before the answer, so its longest version is the complete one.
_KEEP = """INSERT INTO messages SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
ON CONFLICT (id) DO UPDATE SET text = excluded.text WHERE length(excluded.text) > length(text)"""


class Kept(NamedTuple):
    """Stored message, identified by the recall id of its first row."""

    id: str
    role: str
    text: str

    def __str__(self) -> str:
        return f"{self.id} {self.role}: {self.text}"


class Node(NamedTuple):
    """Summary of messages (level 0) or of other nodes (higher levels). `covers` lists all messages below it."""

    id: int
    level: int
    summary: str
    children: Sequence[str]
    covers: Sequence[str]

    def __str__(self) -> str:
        return f"n{self.id} ({len(self.covers)} messages, {self.covers[0]} to {self.covers[-1]}):\n{self.summary}"


class Tree:
    """Tree in the file `path`. Each call opens and closes the file, because calls can come from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._execute(_MESSAGES)
        self._execute(_NODES)

    def keep(self, messages: Iterable[Kept]) -> None:
        self._execute(_KEEP, json.dumps(list(messages)))

    def messages(self) -> dict[str, Kept]:
        """Return all messages by id, in the order in which they were first seen."""
        return {row[0]: Kept(*row) for row in self._execute("SELECT id, role, text FROM messages ORDER BY rowid")}

    def node(self, level: int, covers: Sequence[str], children: Sequence[str], summarise: Callable[[], str]) -> Node:
        """Return a node for these messages. If it exists, as after an undo, it is reused without a new summary."""
        lists = json.dumps(children), json.dumps(covers)
        if known := self._nodes("level = ? AND children = ? AND covers = ? ORDER BY id DESC", level, *lists):
            return known[0]
        self._execute("INSERT INTO nodes VALUES (NULL, ?, ?, ?, ?)", level, summarise(), *lists)
        return self.node(level, covers, children, summarise)

    def named(self, *names: str) -> list[Node]:
        """Return the nodes with names such as `n3`. Raises `ValueError` if a name has another form."""
        return [node for name in names for node in self._nodes("id = ?", int(name.removeprefix("n")))]

    def below(self, tops: Iterable[Node]) -> list[Node]:
        """Return these nodes and all nodes below them."""
        return [node for top in tops for node in (top, *self.below(self.named(*top.children)))]

    def tops_beside(self, in_view: Iterable[str]) -> list[Node]:
        """Return the newest nodes that cover messages outside the view, without overlap. Used if no handoff names
        nodes."""
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
