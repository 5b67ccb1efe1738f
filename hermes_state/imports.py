"""Speed up imports by skipping unused parts of libraries."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import ssl  # imported late, because most commands of the command line do not need it

_tls = Lock()
_contexts = list["ssl.SSLContext"]()


@contextmanager
def without(*names: str, **others: str) -> Iterator[None]:
    """Make imports of these modules fail inside the `with` block, unless they are already imported.

    `others`: modules whose imports return another module there, by name.

    >>> with without("antigravity"):
    ...     import antigravity
    Traceback (most recent call last):
    ModuleNotFoundError: import of antigravity halted; None in sys.modules
    """
    given: dict[str, Any] = dict.fromkeys(names) | {name: importlib.import_module(others[name]) for name in others}
    replaced = given.keys() - sys.modules.keys()
    sys.modules.update((name, given[name]) for name in replaced)
    try:
        yield
    finally:
        for name in replaced:
            del sys.modules[name]


def defer(name: str) -> None:
    """Delay running a package's `__init__` until one of its names is used. Its submodules can be imported earlier.

    Does nothing for a package that is already imported or not installed. Defer parent packages first.
    """
    parent = name.rpartition(".")[0]
    path = sys.modules[parent].__path__ if parent else None
    spec = None if name in sys.modules else PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return
    package, loader, loading = module_from_spec(spec), spec.loader, set[int]()

    def load(attribute: str) -> Any:
        thread = get_ident()
        if attribute.startswith("__") or thread in loading:  # a scan of all modules, or the package is importing itself
            raise AttributeError(attribute)
        if PathFinder.find_spec(f"{name}.{attribute}", package.__path__) is not None:
            return importlib.import_module(f"{name}.{attribute}")
        loading.add(thread)  # other threads may load it at the same time, because waiting for them could deadlock
        try:
            loader.exec_module(package)
        finally:
            loading.remove(thread)
        vars(package).pop("__getattr__", None)
        return getattr(package, attribute)

    package.__getattr__ = load  # type: ignore[method-assign]  # see PEP 562
    sys.modules[name] = package
    if parent:
        setattr(sys.modules[parent], name.removeprefix(f"{parent}."), package)  # as every import does


class _LatePattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self._source = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(re.compile(*self._source), name)
        return found


def late_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a regular expression that is compiled when it is first used."""
    return cast(re.Pattern[str], _LatePattern(pattern, flags))


def ssl_context() -> "ssl.SSLContext":
    """Return the shared TLS context. Reading the certificates again would take 20 ms and a megabyte."""
    import ssl

    with _tls:
        if not _contexts:
            _contexts.append(ssl.create_default_context())  # httpx2's own function would import another transport
        return _contexts[0]


def import_aiohttp() -> None:
    """Import aiohttp with the shared TLS context and the system's DNS resolver as its defaults.

    At its import, aiohttp reads all certificates twice: for a default context, and for one that verifies nothing. With
    aiodns, it would not find the names of a local network. See docs/decisions/0032-what-a-start-does-not-load.md.
    """
    import ssl

    shared, thread = ssl_context(), get_ident()
    make, read = ssl.create_default_context, ssl.SSLContext.set_default_verify_paths

    def make_here(*args: Any, **options: Any) -> ssl.SSLContext:
        return shared if get_ident() == thread else make(*args, **options)

    def read_elsewhere(context: ssl.SSLContext) -> None:
        if get_ident() != thread:
            read(context)

    ssl.create_default_context = make_here
    ssl.SSLContext.set_default_verify_paths = read_elsewhere  # type: ignore[method-assign, assignment]
    try:
        with without("aiodns"):
            importlib.import_module("aiohttp")
    finally:
        ssl.create_default_context = make
        ssl.SSLContext.set_default_verify_paths = read  # type: ignore[method-assign]
