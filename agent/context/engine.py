"""The seam between whoever keeps conversations and whoever compresses them."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from agent.context.job import (
    Aborted,
    CompressionJob,
    CompressionPreview,
    CompressionRequest,
    EngineEvent,
    NotNeeded,
    PreparedCompression,
)
from agent.context.limits import Limits
from agent.context.model_handle import SummaryRoute
from agent.context.state import ContextState
from agent.tools.registry import Tool
from hermes_state.compressions import Layer
from hermes_state.values import LineageId, Tokens


class Engine(Protocol):
    """Drafts compressions of stored rows; commits nothing. One for all conversations, whatever model answers them.

    The built-in one is `Compressor`; `engines.adapter.PluginEngine` runs engines that were written for message lists.
    """

    @property
    def name(self) -> str:
        """As `context.engine` calls it."""

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        """Whether the job's conversation should be compressed before its next model call."""

    async def prepare(
        self,
        job: CompressionJob,
        state: ContextState,
    ) -> tuple[PreparedCompression | NotNeeded | Aborted, ContextState]:
        """What a compression would come to, and what is to be remembered of the attempt. Raises nothing of its own."""

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        """What a compression would take out: no model call, no write. May be called in a thread."""

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        """Whether the automatic layers should leave it alone for now."""

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """How large a conversation's prompt becomes before it is compressed, as far as that is known."""

    async def on_event(self, event: EngineEvent) -> None:
        """Take note of something. Never raises, and never takes long."""

    def tools(self) -> Sequence[Tool]:
        """What the model may call of it."""

    async def close(self) -> None:
        """Let go of everything; no conversation ends by it."""


def __getattr__(name: str) -> Any:  # a module's attributes have no type in common
    """`ContextEngine` and `ContextCompressor`, which plugins import from here; `agent.engines` stands above."""
    if name in ("ContextCompressor", "ContextEngine"):
        return getattr(import_module("agent.engines"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
