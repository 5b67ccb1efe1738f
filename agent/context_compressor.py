"""The built-in engine behind the contract, under the name by which plugins written for hermes-agent import it."""

from agent.engines.compressor import ContextCompressor
from agent.handoff import SUMMARY_PREFIX

__all__ = ["SUMMARY_PREFIX", "ContextCompressor"]
