"""The built-in engine behind the contract, under the name by which plugins written for hermes-agent import it."""

from agent.engines.compressor import ContextCompressor

__all__ = ["ContextCompressor"]
