"""Private names of third-party packages: only the modules in `ALLOWED` use any, each for its reason."""

import ast
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("gateway", "agent", "platforms", "hermes_state")

ALLOWED = {
    # aiosqlite has no public call that runs a whole function on the thread of a connection.
    "hermes_state/engines/sqlite/connections.py": {"_conn", "_execute", "_thread"},
    # discord.py has no public way to addresses of one's own, to events it cannot read, or to the last heartbeat.
    "platforms/discord/client.py": {
        *("_connection", "_from_json", "_get_guild_channel", "_handlers", "_hooks", "_last_ack"),
    },
    # The public module imports the types of all resources: 11 to 17 MB and 0.2 to 0.4 s.
    "agent/model/protocols/openai.py": {
        "openai._base_client.DefaultAioHttpClient",
        "openai._client.AsyncOpenAI",
        "openai._exceptions.APIConnectionError",
        "openai._exceptions.APIStatusError",
    },
    # httpx2 does not tell which transports a client has made, and they must use sessions of ours.
    "agent/model/connections.py": {"_transport"},
    # httpx2's own SOCKS client needs a second SOCKS package, and httpcore2 does not publish the stream of a backend.
    "agent/tools/mcp/connection.py": {"httpcore2._backends.anyio.AnyIOStream"},
    # aiohttp has no SOCKS, and no way to give an HTTP proxy a checked address instead of a name.
    "hermes_state/connector.py": {"_get_ssl_context", "_resolve_host"},
    # The name of the system call in Python's documentation. It ends a process whose thread may hang in a parser.
    "agent/documents/worker.py": {"_exit"},
    # asyncio has no public method that closes the pipes of a process that has ended.
    "agent/tools/mcp/stdio.py": {"_transport"},
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_private_path(path: str) -> bool:
    package, *rest = path.split(".")
    return package in _third_party() and any(map(is_private, rest))


@cache
def _third_party() -> set[str]:
    return set(packages_distributions()) - {*PRODUCT, "tests", "bench"}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def _imported_modules(tree: ast.Module) -> set[Path]:
    """Modules of the product that a module imports from."""
    names = {node.module for node in _nodes(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {f"{module}.{one}" for module, one in _imports_from(tree)}
    files = [ROOT / f"{name.replace('.', '/')}.py" for name in names if name.partition(".")[0] in PRODUCT]
    return {file for file in files if file.exists()}


def _imports_from(tree: ast.Module) -> set[tuple[str, str]]:
    found = [node for node in _nodes(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {(node.module or "", one.name) for node in found for one in node.names}


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a module gives to functions, classes, variables and attributes of `self`."""
    names = set[str]()
    for node in _nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


@cache
def _imported_by(path: Path) -> set[Path]:
    return _imported_modules(_parsed(path))


@cache
def _defined_in(path: Path) -> set[str]:
    return defined_names(_parsed(path))


def private_names(tree: ast.Module) -> set[str]:
    """Private modules and attributes of other packages that a module uses.

    An attribute belongs to another package if neither the module, nor one of ours that it imports from, nor one that
    those import from defines its name: a class may inherit over two modules.
    """
    near = _imported_modules(tree)
    modules = near.union(*map(_imported_by, near))
    own = defined_names(tree).union(*map(_defined_in, modules))
    found = {f"{module}.{name}" for module, name in _imports_from(tree)}
    for node in _nodes(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case ast.Constant(value=str(text)):  # also names for `import_module`
                found.add(text)
    attributes = {node.attr for node in _nodes(tree) if isinstance(node, ast.Attribute)}
    return {path for path in found if _is_private_path(path)} | {
        name for name in attributes if is_private(name) and name not in own
    }


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from openai._client import AsyncOpenAI", {"openai._client.AsyncOpenAI"}),
        ("import discord._types", {"discord._types"}),
        ("from aiosqlite import _core", {"aiosqlite._core"}),
        ("import_module('openai._client')", {"openai._client"}),
        ("connection._execute(1)", {"_execute"}),
        ("discord.utils._from_json = 1", {"_from_json"}),
        ("class Own:\n    def run(self): self._x = self._y()\n    def _y(self): return self.__dict__", set()),
        ("from openai import AsyncOpenAI\nfrom os import path", set()),
    ],
)
def test_private_names_are_found(source: str, found: set[str]) -> None:
    assert private_names(ast.parse(source)) == found


def test_only_adapters_use_private_names_of_other_packages() -> None:
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    used = {str(path.relative_to(ROOT)): names for path in paths if (names := private_names(_parsed(path)))}
    assert used == ALLOWED
