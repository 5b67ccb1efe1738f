"""PostgreSQL can prepare every SQL text of the modules above the engines.

The test covers every literal that looks like a statement, including f-strings with names of their module. Texts
composed from local values are unknown here; tests that run on both engines cover them.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from itertools import chain, combinations
from pathlib import Path
from types import ModuleType

import pytest
from psycopg.pq import ExecStatus, PGconn

from hermes_state.engines.postgres.connection import PostgresConnection

ROOT = Path(__file__).parents[3]
PACKAGES = ("agent", "gateway", "hermes_state", "platforms")
ON_FILES = {
    "gateway.moving": "it reads the files of other programs",
    "hermes_state.admin.overview": "it looks at a file, which another process may have open",
    "hermes_state.admin.repair": "it reads and mends a damaged file",
    "hermes_state.admin.restore": "it replaces a file",
    "hermes_state.engines": "the engines' own",
    "hermes_state.search": "full text is FTS5's",
}
"""Modules and packages that only work on SQLite, with the reason."""
NOT_SHARED = {
    "hermes_state.admin.retention": 3  # maintenance of a file: statistics and log
}
"""Number of texts in other modules that PostgreSQL does not understand."""
INT8 = 20  # oid: integers are bound as bigint, everything else as text whose type the server infers

_STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|REPLACE|PRAGMA|VACUUM|ATTACH)\s")
_PARAMETER = re.compile(r"'[^']*'|--[^\n]*|(\?|:[a-z][a-z0-9_]*)")


def _modules() -> Iterator[str]:
    """Yield the modules that contain statements."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith(tuple(ON_FILES)) and any(map(_STATEMENT.match, re.split('"+', path.read_text()))):
            yield name


def _texts(module: ModuleType) -> Iterator[str]:
    """Yield the statements of a module that are known without running it."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    whole = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in whole for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        elif isinstance(node, ast.JoinedStr) and (known := _value(node, module)) is not None:
            text = known
        else:
            continue
        if _STATEMENT.match(text) and "{" not in text:
            yield text


def _value(node: ast.JoinedStr, module: ModuleType) -> str | None:
    """Evaluate an f-string with the names of its module; None if a part is local, or if it is not a statement."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    if not _STATEMENT.match(_beginning(node.values[0], module)) or not names <= vars(module).keys():
        return None
    return str(eval(compile(ast.Expression(node), str(module.__file__), "eval"), vars(module)))


def _beginning(part: ast.expr, module: ModuleType) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name)):
            return str(vars(module).get(name))
    return ""


def _trouble(server: PGconn, text: str) -> str | None:
    """Return PostgreSQL's complaint about a text, trying combinations of up to two integer parameters."""
    names: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        if found[1] == "?" or found[1] not in names:
            names.append(found[1])
        return f"${len(names) if found[1] == '?' else names.index(found[1]) + 1}"

    statement = _PARAMETER.sub(numbered, text).encode()
    found = []
    for integers in chain.from_iterable(combinations(range(len(names)), count) for count in range(3)):
        types = [INT8 if number in integers else 0 for number in range(len(names))]
        result = server.prepare(b"", statement, types)
        if result.status == ExecStatus.COMMAND_OK:
            return None
        found.append(result.error_message.decode().splitlines()[0])
    return found[0]


@pytest.mark.cluster
def test_postgresql_can_prepare_every_shared_statement(postgres_url: str) -> None:
    not_shared, known, told = Counter[str](), 0, list[str]()
    with closing(PostgresConnection.open(postgres_url)) as db:
        for name in _modules():
            for text in _texts(import_module(name)):
                known += 1
                if (trouble := _trouble(db.raw.pgconn, text)) is not None:
                    not_shared[name] += 1
                    told.append(f"{name}: {trouble}: {' '.join(text.split())[:80]}")
    assert not_shared == NOT_SHARED, "\n".join(told)
    assert known > 150, "most texts are known"
