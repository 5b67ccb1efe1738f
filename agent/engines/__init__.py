"""Context engines that plugins bring: the contract, the loader, and the adapter that runs them on stored rows.

A plugin subclasses `ContextEngine`, whose methods take message lists (docs/plugins.md). `ContextCompressor` is the
built-in engine behind the same contract:

>>> engine = ContextCompressor(context_length=8_192)
>>> engine.threshold_tokens, engine.should_compress(4_000), engine.should_compress(4_096)
(4096, False, True)
>>> talk = [{"role": role, "content": "word " * 400} for _ in range(20) for role in ("user", "assistant")]
>>> shorter = engine.compress(talk)
>>> len(shorter) < len(talk), shorter[-1] is talk[-1]
(True, True)

Whoever assembles the agent calls `load_engine` for the plugin that `context.engine` names, and puts a `PluginEngine`
(adapter.py) with it in front of the built-in engine of stored rows, which takes over where the plugin fails. It is an
`agent.context.engine.Engine` like that one: it keeps a handle on an engine object for each conversation (handle.py),
gives up calls that take too long (timeouts.py), and turns rows into a list and the list into rows (mapping.py).
"""

from agent.engines.adapter import PluginEngine
from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine
from agent.engines.loader import LoadedEngine, PluginReport, list_plugins, load_engine, unknown_engine
from agent.engines.mapping import text_of
from agent.handoff import unframed
from agent.tokens import estimated_text_tokens
from hermes_state.errors import ModelError

__all__ = [
    "ContextCompressor",
    "ContextEngine",
    "LoadedEngine",
    "ModelError",
    "PluginEngine",
    "PluginReport",
    "estimated_text_tokens",
    "list_plugins",
    "load_engine",
    "text_of",
    "unframed",
    "unknown_engine",
]
