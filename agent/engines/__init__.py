"""Context engines from plugins: their interface, the loader, and the adapter that runs them on stored rows.

A plugin subclasses `ContextEngine`, whose methods work on message lists (docs/reference/plugins.md).
`ContextCompressor` offers the built-in engine under the same interface:

>>> engine = ContextCompressor(context_length=8_192)
>>> engine.threshold_tokens, engine.should_compress(4_000), engine.should_compress(4_096)
(4096, False, True)
>>> talk = [{"role": role, "content": "word " * 400} for _ in range(20) for role in ("user", "assistant")]
>>> shorter = engine.compress(talk)
>>> len(shorter) < len(talk), shorter[-1] is talk[-1]
(True, True)

`load_engine` loads the plugin named in `context.engine`. `PluginEngine` (adapter.py) runs it on stored rows, with the
built-in engine as the fallback. It keeps one engine object per conversation and abandons calls that take too long
(handle.py), reads message lists (lists.py), and maps them to rows (mapping.py).
"""

from agent.engines.adapter import PluginEngine
from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine
from agent.engines.lists import text_of
from agent.engines.loader import LoadedEngine, PluginReport, list_plugins, load_engine, unknown_engine
from agent.handoff import unframed
from agent.model.usage import estimated_text_tokens
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
