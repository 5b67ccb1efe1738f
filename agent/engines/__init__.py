"""Context engines that plugins bring: contract, loader, and the adapter that runs them."""

from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine

__all__ = ["ContextCompressor", "ContextEngine"]
