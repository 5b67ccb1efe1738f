"""Configuration: one table of settings, one loader for start, check and reload."""

from gateway.config.errors import ConfigRejected
from gateway.config.loader import (
    CUSTOMARY,
    LoadedConfig,
    ReloadPlan,
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
    "LoadedConfig",
    "ReloadPlan",
    "load_config",
    "merge_for_reload",
    "process_environment",
    "reload_differences",
]
