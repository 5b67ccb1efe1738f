"""Locks of a transaction. Each function that writes declares the chats that it may touch.

An engine with several writers takes the locks before a batch begins, so transactions of one chat run in order. SQLite
has one writer and ignores them. Under `sessions.groups: per_user`, all people of a group share a lock, because a
platform's deletion event does not say whose message was deleted. Threads have their own locks.

>>> @locks(turn="turn_id")
... def close(db, turn_id): ...
>>> locks_of(close, 7)
LockKeys(rows=frozenset({('turn', 7)}), names=frozenset())

A function without a declaration locks everything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

import msgspec

from hermes_state.values import ChatKey, Cursor

Fn = TypeVar("Fn", bound=Callable[..., Any])

EVERYTHING = "everything"  # excludes every other transaction
ROW_KINDS = ("chat", "session", "lineage", "turn", "inbox", "outbox")
"""Kinds of rows from whose ids the chat can be found. The chat of an inbox or outbox row can change (`move_chat`)."""


class LockKeys(msgspec.Struct, frozen=True):
    """Locks that are taken before a function or a batch of functions runs."""

    rows: frozenset[tuple[str, int]] = frozenset()  # rows whose chats are locked, by kind and id
    names: frozenset[str] = frozenset()
    """Names of other locks, including the names of chats that may not be stored yet."""

    def __or__(self, other: "LockKeys") -> "LockKeys":
        return LockKeys(self.rows | other.rows, self.names | other.names)


class Parameter(msgspec.Struct, frozen=True):
    """Parameter that leads to a chat, or that holds another function to be called inside the transaction."""

    kind: str
    index: int
    name: str
    attributes: tuple[str, ...]

    def value_in(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        return args[self.index] if self.index < len(args) else kwargs.get(self.name)


class Declaration(msgspec.Struct, frozen=True):
    names: frozenset[str]
    parameters: tuple[Parameter, ...]
    inner: Parameter | None


_ATTRIBUTE = "declared_locks"


def locks(*names: str, calls: str = "", **paths: str) -> Callable[[Fn], Fn]:
    """Declare the locks of a function: by name, and by paths from its parameters to ids of rows (`turn="claim.id"`).

    A path for `chat` can also end at a `ChatKey` or a channel's `Cursor`. Spaces separate paths. A path to a sequence
    adds the lock of each item. A path to None adds no lock. `calls` names a parameter whose value is a function that
    the declaring function calls. That function's locks are added.
    """
    assert paths.keys() <= set(ROW_KINDS), paths

    def declare(fn: Fn) -> Fn:
        assert isinstance(fn, FunctionType), "only functions can declare locks"
        taken = fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount]

        def parameter(kind: str, path: str) -> Parameter:
            name, *attributes = path.split(".")
            return Parameter(kind, taken.index(name), name, tuple(attributes))

        found = tuple(parameter(kind, path) for kind, words in paths.items() for path in words.split())
        setattr(fn, _ATTRIBUTE, Declaration(frozenset(names), found, parameter("", calls) if calls else None))
        return fn

    return declare


def declaration_of(fn: Callable[..., Any]) -> Declaration | None:
    """Return the declared locks of a function, which may be bound or partial."""
    # a bound method has the attributes of its function
    return getattr(fn.func if isinstance(fn, partial) else fn, _ATTRIBUTE, None)


def locks_of(fn: Callable[..., Any], /, *args: object, **kwargs: object) -> LockKeys:
    """Return the locks of the call `fn(db, *args, **kwargs)`. `fn` may be bound or partial."""
    declared = declaration_of(fn)
    if declared is None:
        return LockKeys(names=frozenset({EVERYTHING}))
    given = (None, *args)
    if isinstance(fn, partial):
        given, kwargs, fn = (*fn.args, *given), fn.keywords | kwargs, fn.func
    if isinstance(fn, MethodType):
        given = (fn.__self__, *given)
    rows, names = set[tuple[str, int]](), set(declared.names)
    for parameter in declared.parameters:
        for value in _reached(parameter.value_in(given, kwargs), parameter.attributes):
            if isinstance(value, int):
                rows.add((parameter.kind, value))
            else:
                names.add(_name_of(value))
    keys = LockKeys(frozenset(rows), frozenset(names))
    inner = declared.inner.value_in(given, kwargs) if declared.inner is not None else None
    return keys | locks_of(inner) if callable(inner) and declaration_of(inner) is not None else keys


def place_of(key: ChatKey) -> str:
    """Return the name of a chat's lock. All chats with the same platform chat and thread share it."""
    return f"chat/{key.platform}/{key.account}/{key.chat_ref}/{key.thread_ref}"


def _reached(value: Any, attributes: tuple[str, ...]) -> Iterator[object]:  # Any: arguments of any type
    if isinstance(value, Iterable):
        for one in value:
            yield from _reached(one, attributes)
    elif value is not None and attributes:
        yield from _reached(getattr(value, attributes[0]), attributes[1:])
    elif value is not None:
        yield value


def _name_of(value: object) -> str:
    if isinstance(value, Cursor):
        return f"cursor/{value.platform}/{value.account}/{value.channel_ref}"
    assert isinstance(value, ChatKey), f"{type(value).__name__} leads to no chat"
    return place_of(value)
