"""Every function that the product hands to the store declares what it locks, by paths that lead to ids of that kind."""

import ast
import inspect
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, get_args, get_type_hints

from hermes_state.store.locks import declaration_of
from hermes_state.values import ChatId, ChatKey, Cursor, InboxId, LineageId, OutboxId, SessionId, TurnId

ROOT = Path(__file__).parents[1]
IDS: dict[str, set[Any]] = {
    "chat": {ChatId, ChatKey, Cursor},
    "session": {SessionId},
    "lineage": {LineageId},
    "turn": {TurnId},
    "inbox": {InboxId},
    "outbox": {OutboxId},
}


def _written() -> Iterator[tuple[str, ast.expr]]:
    """Yield the first argument of every `store.write`, with the name of its module."""
    for package in ("agent", "gateway", "hermes_state", "platforms"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(
                            attr="write" | "write_with_retry",
                            value=ast.Name(id="store" | "_store") | ast.Attribute(attr="store" | "_store"),
                        ),
                        args=[first, *_],
                    ):
                        yield name, first


def _function(module: ModuleType, node: ast.expr) -> Any:  # whatever stands there
    """The function that an expression stands for, wherever in the module that is."""
    match node:
        case ast.Call(func=ast.Name(id="partial"), args=[inner, *_]):
            found = _function(module, inner)
        case ast.Attribute(value=ast.Name(id="self"), attr=method):
            classes = [one for one in vars(module).values() if inspect.isclass(one) and method in vars(one)]
            found = vars(classes[0])[method]
        case ast.Name(id=name) if not hasattr(module, name):  # a local variable
            tree = ast.parse(inspect.getsource(module))
            values = [one.value for one in ast.walk(tree) if isinstance(one, ast.Assign) and _targets(one, name)]
            assert values, f"nobody can tell what {name} is"
            found = _function(module, values[0])
        case ast.Name() | ast.Attribute():
            found = reduce(getattr, ast.unparse(node).split("."), module)
        case _:
            raise AssertionError(f"{ast.unparse(node)} has no place for a declaration")
    return found


def _targets(assignment: ast.Assign, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in assignment.targets)


def _kinds(hint: Any, attributes: tuple[str, ...]) -> set[Any]:
    """What a path leads to from a value of this type: the types of a sequence's items, and None for nothing."""
    if inner := get_args(hint):
        return set().union(*(_kinds(one, attributes) for one in inner if one is not NoneType))
    if not attributes:
        return {hint}
    member = inspect.getattr_static(hint, attributes[0], None)
    hints = {"": get_type_hints(member.fget)["return"]} if isinstance(member, property) else get_type_hints(hint)
    return _kinds(hints.get("") or hints[attributes[0]], attributes[1:])


def _fault(name: str, node: ast.expr) -> str | None:
    """Return what is wrong with the declaration of a function that the module `name` hands to the store."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "locks(EVERYTHING)":
        return None
    fn = _function(import_module(name), node)
    declared = declaration_of(fn)
    if declared is None or not (declared.parameters or declared.names):
        return f"{fn.__qualname__} does not say what it locks"
    hints = get_type_hints(fn)
    wrong = [one for one in declared.parameters if not _kinds(hints[one.name], one.attributes) <= IDS[one.kind]]
    return f"{fn.__qualname__} declares {wrong}" if wrong else None


def test_what_is_handed_to_the_store_declares_its_locks() -> None:
    written = list(_written())
    assert len(written) > 80
    assert [fault for name, node in written if (fault := _fault(name, node))] == []
