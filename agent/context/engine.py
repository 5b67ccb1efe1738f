"""Import path of `ContextEngine` and `ContextCompressor` for plugins. The gateway does not import this module."""

from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine

__all__ = ["ContextCompressor", "ContextEngine"]
