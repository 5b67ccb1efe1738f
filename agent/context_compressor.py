"""The built-in context engine, under the import path that plugins for hermes-agent use."""

from agent.engines.compressor import ContextCompressor
from agent.handoff import SUMMARY_PREFIX

__all__ = ["SUMMARY_PREFIX", "ContextCompressor"]
