"""Configuration: blocks of settings, and the loader for start, `config check` and reload.

>>> loaded = load_config({"HERMES_HOME": "/nowhere/yet", "HERMES_LOCAL__PORT": "9000"})
>>> loaded.config.local.port, loaded.sources["local.port"], loaded.config.model.protocol
(9000, 'HERMES_LOCAL__PORT', 'offline')

`settings.py` lists every block. A block is a class of this package or a dataclass in `agent/settings.py` or
`platforms/settings.py`. The keys of a dataclass are its fields with a `Setting`. `files.py` reads the state directory,
`loader.py` chooses and checks the value of each key, and `blocks.py` writes the error messages. `old_keys.py` handles
keys of earlier versions, `fields.py` is a flat table of all keys, and `docs.py` documents them. No other code reads the
files or the environment. A reload uses `merge_for_reload`, so that a change never takes effect only in part.
"""

from gateway.config.blocks import ConfigRejected
from gateway.config.loader import (
    CUSTOMARY,
    LiveConfig,
    LoadedConfig,
    ReloadPlan,
    find_store_url,
    load_config,
    merge_for_reload,
    process_environment,
    reload_differences,
)
from gateway.config.settings import Config

__all__ = [
    "CUSTOMARY",
    "Config",
    "ConfigRejected",
    "LiveConfig",
    "LoadedConfig",
    "ReloadPlan",
    "find_store_url",
    "load_config",
    "merge_for_reload",
    "process_environment",
    "reload_differences",
]
