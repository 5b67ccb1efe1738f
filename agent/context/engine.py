"""`ContextEngine` and `ContextCompressor`, under an import path that plugins use. The gateway does not use it."""

from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine

__all__ = ["ContextCompressor", "ContextEngine"]
