"""The interface of context engines, under the import path that plugins for hermes-agent use."""

from agent.engines.contract import ContextEngine

__all__ = ["ContextEngine"]
