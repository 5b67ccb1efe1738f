"""Figures about the code itself, next to libraries worth reading: sizes, words, helpers, imports, docstrings.

They enforce nothing, but show where to look. `--show` lists the places behind a figure.
"""

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.measure import aligned, percentile
from bench.source import Graph, Module, cycles, import_graph, library, product
from bench.words import documentation, per_ten_thousand, prose

ANCHORS = (
    *("httpx", "structlog", "APScheduler", "procrastinate", "nonebot2", "aiogram", "pydantic-ai-slim", "llm"),
    *("aiohttp", "python-telegram-bot", "discord.py"),
)
"""Libraries to compare with; those that we learn from come first. Libraries that are not installed are left out."""
MAX_FOLDER_MODULES = 15
"""Maximum number of modules in a folder that is not reported as large."""

OF, QUESTION, SEE = "Of", "What …", "See"
OPENINGS = {OF: OF, SEE: SEE} | dict.fromkeys(("What", "Whether", "Who", "Which", "How", "Where", "When"), QUESTION)
"""First words of docstrings that cannot be understood alone, by the column that counts them."""
LAST_WORD = re.compile(r"(?:[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+)_*$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One item that a figure counts, and its location."""

    path: str
    line: int
    text: str
    group: str = ""
    """Column of the figure, if the figure has several."""


def head_noun(class_name: str) -> str:
    """Return the last word of a CamelCase name: `Request` for `SendRequest`, `HTTP` for `OverHTTP`."""
    found = LAST_WORD.search(class_name)
    return found[0].rstrip("_") if found else class_name


def classes(module: Module) -> Iterator[Place]:
    """Yield all classes, grouped by the last word of their names."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            yield Place(path=module.path, line=node.lineno, text=node.name, group=head_noun(node.name))


def functions(module: Module) -> list[Function]:
    """Yield functions and methods, including nested ones."""
    return [node for node in module.nodes if isinstance(node, Function)]


def helpers_called_once(module: Module) -> Iterator[Place]:
    """Yield private functions and methods whose name occurs only once in the module, in a call."""
    called = {id(node.func) for node in module.nodes if isinstance(node, ast.Call)}
    uses: dict[str, list[bool]] = {}
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            uses.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append(id(node) in called)
    for helper in functions(module):
        if _is_private(helper) and uses.get(helper.name) == [True]:
            yield Place(path=module.path, line=helper.lineno, text=helper.name)


def constants(module: Module) -> Iterator[Place]:
    """Yield upper-case names to which a module assigns a value."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield Place(path=module.path, line=node.lineno, text=target.id)


def broad_excepts(module: Module) -> Iterator[Place]:
    """Yield exception handlers for `Exception`, `BaseException` or everything."""
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {"" if one is None else ast.unparse(one) for one in caught}
            if names & {"", "Exception", "BaseException"}:
                yield Place(path=module.path, line=node.lineno, text=f"except {', '.join(sorted(names))}")


def headlines(module: Module) -> Iterator[Place]:
    """Yield docstrings, including those of attributes, whose first word is not a useful noun or verb."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = node.value.value.strip()
            if group := OPENINGS.get(text.split(maxsplit=1)[0] if text else ""):
                yield Place(path=module.path, line=node.lineno, text=text.splitlines()[0], group=group)


SHOWN: dict[str, Callable[[Module], Iterable[Place]]] = {
    "classes": classes,
    "helpers": helpers_called_once,
    "constants": constants,
    "excepts": broad_excepts,
    "headlines": headlines,
}


def figures(modules: Sequence[Module]) -> dict[str, dict[str, float]]:
    """Return every figure of a code base: the table's rows, each with one or more numbers."""
    found = {name: [place for module in modules for place in find(module)] for name, find in SHOWN.items()}
    written = [function for module in modules for function in functions(module)]
    sizes = [(function.end_lineno or function.lineno) - function.lineno + 1 for function in written]
    openings = Counter(place.group for place in found["headlines"])
    return {
        "lines": {"lines": sum(module.lines for module in modules)},
        "modules": {"modules": len(modules)},
        "module lines": {
            "median": statistics.median(module.lines for module in modules),
            "max": max(module.lines for module in modules),
        },
        "functions": {"functions": len(written)},
        "function lines": {"p50": percentile(sizes, 0.5), "p95": percentile(sizes, 0.95), "max": max(sizes)},
        "classes": {"all": len(found["classes"]), "head nouns": len({place.group for place in found["classes"]})},
        "private helpers": {"all": sum(map(_is_private, written)), "called once": len(found["helpers"])},
        "module constants": {"constants": len(found["constants"])},
        "broad excepts": {"handlers": len(found["excepts"])},
        "import cycles": _cycles(import_graph(modules)),
        "import cycles, types too": _cycles(import_graph(modules, with_types=True)),
        "headlines without a head": {name: openings[name] for name in (OF, QUESTION, SEE)},
        "in 10,000 words of docstrings and comments": per_ten_thousand(text for one in modules for text in prose(one)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Contents of one folder, without its subfolders.

    `__init__` and `__main__` do not count. A package inside the folder counts as one item.
    """

    lines: int
    """Number of lines, including everything below the folder."""
    modules: int
    packages: int
    edges: int
    """Number of pairs of modules or packages in which one imports the other."""


def folders(modules: Sequence[Module]) -> dict[str, Folder]:
    """Return every package of a code base by its dotted name."""
    graph = import_graph(modules)
    return {name: _folder(name, modules, graph) for name in sorted(one.name for one in modules if one.is_package)}


def _folder(package: str, modules: Sequence[Module], graph: Graph) -> Folder:
    packages = {module.name for module in modules if module.is_package}
    inside = {module.name: _part_of(package, module.name) for module in modules}
    parts = {part for part in inside.values() if part}
    edges = {(inside[one], inside[other]) for one, targets in graph.items() for other in targets}
    return Folder(
        lines=sum(module.lines for module in modules if f"{module.name}.".startswith(f"{package}.")),
        modules=len(parts - packages),
        packages=len(parts & packages),
        edges=sum(1 for one, other in edges if one and other and one != other),
    )


def _part_of(package: str, name: str) -> str:
    """Return the direct child of `package` that contains a module; empty for a module outside the package."""
    if not name.startswith(f"{package}."):
        return ""
    part = name.removeprefix(f"{package}.").split(".")[0]
    return "" if part == "__main__" else f"{package}.{part}"


def _cycles(graph: Graph) -> dict[str, float]:
    found = cycles(graph)
    return {"all": len(found), "largest": len(found[0]) if found else 0}


def _is_private(function: Function) -> bool:
    return function.name.startswith("_") and not function.name.endswith("__")


def table(columns: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return a Markdown table that compares the code bases."""
    [first, *_] = columns.values()
    rows = [["", *columns]]
    for name, numbers in first.items():
        title = name if len(numbers) == 1 else f"{name}: {' / '.join(numbers)}"
        rows.append([title, *(" / ".join(f"{one:,g}" for one in column[name].values()) for column in columns.values())])
    return aligned(rows)


def folder_table(found: dict[str, Folder]) -> str:
    """Return the folders as a Markdown table, followed by the names of the large folders."""
    rows = [["folder", "lines", "modules", "packages", "imports between them"]]
    rows += [
        [name, *(f"{n:,}" for n in (one.lines, one.modules, one.packages, one.edges))] for name, one in found.items()
    ]
    large = [f"{name} ({one.modules})" for name, one in found.items() if one.modules > MAX_FOLDER_MODULES]
    return f"{aligned(rows)}\n\nFolders with more than {MAX_FOLDER_MODULES} modules: {', '.join(large) or 'none'}"


def main() -> None:
    """Print the figures, or the places behind one of them. The exit code is always 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("--show", choices=SHOWN, help="places in our code behind a figure, instead of the figures")
    given = parser.parse_args()
    ours = product()
    if given.show:
        for place in sorted((p for one in ours for p in SHOWN[given.show](one)), key=lambda place: place.group):
            print(f"{place.path}:{place.line}: {f'[{place.group}] ' if place.group else ''}{place.text}")
        return
    code = {"ours": ours} | {name: found for name in ANCHORS if (found := library(name))}
    columns = {name: figures(modules) for name, modules in code.items()}
    docs = ", ".join(f"{number:,} {name}" for name, number in documentation().items())
    print(table(columns), folder_table(folders(ours)), f"docs/: {docs}", sep="\n\n")


if __name__ == "__main__":
    main()
