"""`ContextEngine` and `ContextCompressor` under the name by which plugins import them. Nothing of ours imports it."""

from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine

__all__ = ["ContextCompressor", "ContextEngine"]
