"""Context engines that plugins bring: the contract, the loader, and the adapter that runs them on stored rows.

A plugin subclasses `ContextEngine`, whose methods take message lists (docs/plugins.md). Whoever assembles the agent
loads the one that `context.engine` names, and puts it around the built-in engine:

    plugin = load_engine("bookmarks", home)  # None: the built-in one is named. Raises `ConfigError`.
    if plugin is not None:
        engine = plugin.around(built_in, model=model, redact=redact, clock=clock, mark="")

The result is a `PluginEngine` (adapter.py), an `agent.context.engine.Engine` like the built-in one. It keeps one engine
object for each conversation (instances.py), gives up calls that take too long (timeouts.py), and turns rows into a
list and the list into rows (mapping.py). `ContextCompressor` (compressor.py) is the built-in engine behind the same
contract.
"""

from agent.engines.adapter import PluginEngine
from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine
from agent.engines.loader import LoadedEngine, PluginReport, list_plugins, load_engine, unknown_engine

__all__ = [
    "ContextCompressor",
    "ContextEngine",
    "LoadedEngine",
    "PluginEngine",
    "PluginReport",
    "list_plugins",
    "load_engine",
    "unknown_engine",
]
