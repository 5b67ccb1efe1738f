"""Loads context engines from package entry points and from folders in the state directory.

Loading a plugin runs its code, so the daemon loads only the configured plugin.
"""

import copy
import importlib.util
import inspect
import re
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agent.engines.contract import ContextEngine
from agent.model.base import ToolSchema
from hermes_state.errors import ConfigError
from hermes_state.text import closest

BUILT_IN: Final = "compressor"
FOLDER: Final = Path("plugins") / "context_engine"
MakeEngine: TypeAlias = Callable[[], ContextEngine]


class PluginError(Exception):
    """A plugin cannot be used. The error message gives the reason."""


class PluginSource(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that was found but not loaded yet."""

    name: str
    source: str
    """Folder, or package and version, as shown to people."""
    load: Callable[[], object]
    """Runs the plugin's code and returns its engine or module. Can raise any exception."""


class LoadedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Engine of a plugin, after a test instance was created."""

    name: str
    source: str
    about: str
    """First line of the engine's docstring."""
    make: MakeEngine
    schemas: tuple[ToolSchema, ...] = ()


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `plugins list`."""

    name: str
    state: Literal["active", "found", "failed"]
    source: str
    about: str = ""
    why: str | None = None


def load_engine(name: str, home: Path) -> LoadedEngine | None:
    """Load the engine that `context.engine` names, or return None for the built-in engine. No other plugin runs.

    Raises `ConfigError` for an unknown name (with a suggestion) or a broken plugin.
    """
    if name == BUILT_IN:
        return None
    plugins = find_plugins(home)
    found = next((plugin for plugin in plugins if plugin.name == name), None)
    if found is None:
        raise ConfigError(unknown_engine(name, [plugin.name for plugin in plugins]))
    try:
        return loaded(found)
    except PluginError as error:
        raise ConfigError(f"context.engine: the plugin {name} ({found.source}) cannot be used: {error}") from error


def list_plugins(home: Path, active: str) -> list[PluginReport]:
    """List all engines, the built-in engine first. Runs the code of all plugins."""

    def report(name: str, source: str, about: str) -> PluginReport:
        return PluginReport(name=name, state="active" if name == active else "found", source=source, about=about)

    reports = [report(BUILT_IN, "built in", "shortens and summarises older messages")]
    for plugin in find_plugins(home):
        try:
            if any(plugin.name == known.name for known in reports):
                by = " by the built-in engine" if plugin.name == BUILT_IN else ""
                raise PluginError(f"this name is already used{by}")
            reports.append(report(plugin.name, plugin.source, loaded(plugin).about))
        except PluginError as error:
            reports.append(PluginReport(name=plugin.name, state="failed", source=plugin.source, why=str(error)))
    return reports


def unknown_engine(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys([BUILT_IN, *known]))
    meant = closest(name, names, cutoff=0.5)
    hint = f"known engines: {', '.join(names)}" if meant is None else f"did you mean {meant}?"
    return f"context.engine: there is no engine named {name!r}; {hint}"


def find_plugins(home: Path) -> list[PluginSource]:
    """Find all plugins without running their code. Folders in the state directory take precedence over packages."""
    folders, is_name = list[Path](), re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}").fullmatch
    with suppress(OSError):  # the folder is missing or unreadable
        folders = sorted(entry for entry in (home / FOLDER).iterdir() if entry.is_dir() and is_name(entry.name))
    found = [PluginSource(name=one.name, source=str(one), load=partial(_import_folder, one)) for one in folders]
    for point in sorted(entry_points(group="hermes_gateway.context_engines"), key=lambda point: point.name):
        source = point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
        found.append(PluginSource(name=point.name, source=source, load=point.load))
    return found


def _import_folder(folder: Path) -> ModuleType:
    """Import the package in a folder under a unique module name. Its modules can import each other."""
    main = folder / "__init__.py"
    if not main.is_file():
        raise PluginError("its folder has no __init__.py")
    parents = folder.parents[: len(FOLDER.parts)]
    for part in (*parents, folder, *sorted(folder.rglob("*"))):
        if part.exists() and part.stat().st_mode & stat.S_IWOTH:
            where = part.relative_to(parents[-1].parent)
            raise PluginError(f"every user of this machine can write to {where}; remove that permission")
    name = f"hermes_context_engine_{re.sub(r'[^A-Za-z0-9]', '_', folder.name)}"
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]
    spec = importlib.util.spec_from_file_location(name, main, submodule_search_locations=[str(folder)])
    assert spec is not None, "a path that ends with .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with ExitStack() as undo:
        undo.callback(sys.modules.pop, name)
        spec.loader.exec_module(module)
        undo.pop_all()
    return module


def loaded(plugin: PluginSource) -> LoadedEngine:
    """Load a plugin and make an instance of its engine as a test. Raises `PluginError` if the plugin cannot be used."""
    try:
        offered = plugin.load()
        make = _maker(offered)
        engine = make()
        if not isinstance(engine, ContextEngine):
            raise PluginError(f"it creates {type(engine).__name__}, which is not a ContextEngine")
        tools: object = engine.get_tool_schemas()
        if inspect.iscoroutine(tools):
            tools.close()
            raise PluginError("get_tool_schemas must not be async")
        if not isinstance(tools, Sequence):
            raise PluginError("get_tool_schemas does not return a list")
        schemas = tuple(map(_schema, tools))
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # plugin code may raise any error
        raise PluginError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    about = (inspect.getdoc(offered) or inspect.getdoc(type(engine)) or "").partition("\n")[0].strip()
    return LoadedEngine(name=plugin.name, source=plugin.source, about=about, make=make, schemas=schemas)


def _maker(offered: object) -> MakeEngine:
    if isinstance(offered, ModuleType):
        return _maker(_offered_by(offered))
    if isinstance(offered, ContextEngine):
        return partial(_copied, offered)  # if conversations shared one object, it would mix them up
    if inspect.isclass(offered) and inspect.isabstract(offered):
        missing = ", ".join(sorted(getattr(offered, "__abstractmethods__", ())))
        raise PluginError(f"{offered.__name__} does not define {missing}")
    if callable(offered):
        return offered
    raise PluginError(f"it offers {type(offered).__name__}, which is not a ContextEngine")


def _copied(engine: ContextEngine) -> ContextEngine:
    """Return a copy of an engine. If it cannot be copied, for example because of a lock, make a new one."""
    try:
        return copy.deepcopy(engine)
    except TypeError:
        return type(engine)()


class _Registry:
    """Registry to pass to a plugin's `register`. It accepts engines and ignores everything else, such as hooks."""

    def __init__(self, offered: list[object]) -> None:
        self.register_context_engine = offered.append

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("register_"):
            raise AttributeError(f"the registry has no {name}")
        return lambda *_args, **_options: None


def _offered_by(module: ModuleType) -> object:
    """Return the engine that the module's `register` registers, or else the only engine class in the module."""
    offered: list[object] = []
    register = getattr(module, "register", None)
    if callable(register):
        register(_Registry(offered))
    else:
        offered += [
            value
            for name, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, ContextEngine) and not name.startswith("_")
            and value.__module__.partition(".")[0] == module.__name__.partition(".")[0]
        ]  # fmt: skip
    if len(offered) != 1:
        raise PluginError(f"it must provide exactly one engine, but provides {len(offered) or 'none'}")
    return offered[0]


def _schema(offered: Any) -> ToolSchema:
    if isinstance(offered, dict) and isinstance(offered.get("function"), dict):
        offered = offered["function"]
    name = offered.get("name") if isinstance(offered, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise PluginError("one of its tools has an invalid name (use at most 64 letters, digits, _ and -)")
    parameters = offered.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise PluginError(f"the parameters of its tool {name} are not a JSON schema of type object")
    return ToolSchema(name=name, description=str(offered.get("description") or ""), parameters=parameters)
