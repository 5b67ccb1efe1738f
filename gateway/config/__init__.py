"""Configuration: one table of settings, one loader for start, check and reload."""

from gateway.config.loader import (
    CUSTOMARY,
    ConfigRejected,
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
