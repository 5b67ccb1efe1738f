"""Context engines: the seam between the controller, which keeps conversations, and what compresses them."""

from collections.abc import Sequence
from typing import Protocol

from agent.context.job import (
    CompressionJob,
    CompressionPreview,
    CompressionRequest,
    EngineEvent,
    NotNeeded,
    Preparation,
)
from agent.context.limits import Limits
from agent.context.model_handle import SummaryRoute
from agent.context.state import ContextState
from agent.tools.registry import Tool
from hermes_state.compressions import Layer
from hermes_state.values import LineageId, Tokens


class Engine(Protocol):
    """Prepares compressions of stored rows; commits nothing. One for all conversations, whatever model answers them.

    The built-in one is `Compressor`; `engines.adapter.PluginEngine` runs engines that were written for message lists.
    """

    @property
    def name(self) -> str:
        """Name of the engine, as `context.engine` has it."""

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        """The compression that the conversation wants before its next model call; None for none."""

    async def prepare(self, job: CompressionJob, state: ContextState) -> tuple[Preparation, ContextState]:
        """The prepared compression, or why there is none, and the state to be remembered. Raises nothing of its own."""

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        """Preview of what a compression would take out: no model call, no write. May be called in a thread."""

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        """True while the automatic layers should leave the conversation alone."""

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """Prompt size at which a conversation is compressed, in tokens, as far as that is known."""

    async def on_event(self, event: EngineEvent) -> None:
        """Take note of something. Never raises, and never takes long."""

    def tools(self) -> Sequence[Tool]:
        """Tools of the engine that the model may call."""

    async def close(self) -> None:
        """Let go of everything; no conversation ends by it."""
