"""Python source as data: the modules of this checkout or of an installed library, and their imports."""

import ast
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
DEVELOPMENT = ("tests/", "bench/")
"""Folders of the checkout that are not part of the product."""
TEST_FOLDERS = frozenset({"test", "tests"})
"""Folders that some libraries install although they are not part of the library."""

Graph = Mapping[str, Collection[str]]
"""For each name, the names that it points to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file."""

    name: str
    """Dotted name. An `__init__` has the name of its package."""
    path: str
    """Path relative to the root of the checkout or library."""
    text: str
    lines: int
    tree: ast.Module
    nodes: Sequence[ast.AST]
    """All nodes of the tree."""

    @property
    def is_package(self) -> bool:
        """True if the file is an `__init__.py`."""
        return self.path.endswith("__init__.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module. The import can be anywhere in the importing module."""

    target: str
    is_for_types: bool
    """True for an import inside `if TYPE_CHECKING`, which never runs."""


def parse(path: str, text: str) -> Module:
    """Parse a module. Its name is derived from `path`."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    tree = ast.parse(text)
    nodes = tuple(ast.walk(tree))
    return Module(name=".".join(parts), path=path, text=text, lines=text.count("\n"), tree=tree, nodes=nodes)


def product() -> list[Module]:
    """Return the product's modules: Python files tracked by git, without tests and benchmarks."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.splitlines() if not name.startswith(DEVELOPMENT) and (ROOT / name).exists()]
    return [parse(name, (ROOT / name).read_text("utf-8")) for name in names]


def library(distribution: str) -> list[Module]:
    """Return the modules of an installed distribution, without its tests. Empty if it is not installed."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [file for file in files if file.suffix == ".py" and not TEST_FOLDERS.union({".."}) & set(file.parts)]
    return [parse(str(file), Path(str(file.locate())).read_text("utf-8")) for file in wanted]


def imports(module: Module, known: Collection[str]) -> Iterator[Import]:
    """Yield imports of `known` modules, including imports inside functions."""
    guarded = {
        id(node) for found in module.nodes if _is_for_types(found) for part in found.body for node in ast.walk(part)
    }
    for node in module.nodes:
        for target in _targets(node, module, known):
            if target in known and target != module.name:
                yield Import(target=target, is_for_types=id(node) in guarded)


def import_graph(modules: Iterable[Module], *, with_types: bool = False) -> Graph:
    """Return the imports between these modules. `with_types`: include imports for type checkers only."""
    named = {module.name: module for module in modules}
    return {
        name: {found.target for found in imports(module, named) if with_types or not found.is_for_types}
        for name, module in named.items()
    }


def cycles(graph: Graph) -> list[set[str]]:
    """Return groups of names that all reach one another, largest first (Kosaraju's algorithm)."""
    reversed_graph: dict[str, list[str]] = {name: [] for name in graph}
    for name, targets in graph.items():
        for target in targets:
            reversed_graph[target].append(name)
    seen: set[str] = set()
    finished = [name for start in graph for name in _finishing_order(graph, start, seen)]
    seen = set()
    groups = [set(_finishing_order(reversed_graph, start, seen)) for start in reversed(finished)]
    return sorted((group for group in groups if len(group) > 1), key=len, reverse=True)


def _finishing_order(graph: Graph, start: str, seen: set[str]) -> list[str]:
    """Return names reached from `start` that are not in `seen`. Each comes after all names that it leads to."""
    if start in seen:
        return []
    seen.add(start)
    finished, path = [], [(start, iter(sorted(graph[start])))]
    while path:
        name, targets = path[-1]
        following = next((target for target in targets if target not in seen), None)
        if following is None:
            path.pop()
            finished.append(name)
        else:
            seen.add(following)
            path.append((following, iter(sorted(graph[following]))))
    return finished


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _targets(node: ast.AST, module: Module, known: Collection[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
        above = package[: len(package) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    inner = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name in known else base for name in inner]
