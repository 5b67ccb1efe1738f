"""Configuration: blocks of settings, and the loader for start, `config check` and reload.

>>> loaded = load_config({"HERMES_HOME": "/nowhere/yet", "HERMES_LOCAL__PORT": "9000"})
>>> loaded.config.local.port, loaded.sources["local.port"], loaded.config.model.protocol
(9000, 'HERMES_LOCAL__PORT', 'offline')

`settings.py` names every block. A block is a class of this package, or the settings that its part works with, where
the fields marked with a `Setting` are keys (`agent/settings.py`, `platforms/settings.py`). `old_keys.py` knows the keys
of earlier versions. `files.py` reads the state directory, `loader.py` chooses the value of each key among its sources
and checks it, and `blocks.py` explains what is wrong. `fields.py` is the flat table of all keys, of which `docs.py`
makes the documentation. Nothing else reads a file or the environment. A reload takes `merge_for_reload`, so that no
part acts on half a change.
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
