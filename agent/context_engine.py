"""The contract of context engines under the name by which plugins written for hermes-agent import it."""

from agent.engines.contract import ContextEngine

__all__ = ["ContextEngine"]
