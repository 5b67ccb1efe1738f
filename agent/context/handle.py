"""Models in use: the client of each, what is learned of it, and the settings that hold for conversations with it."""

from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path

from agent.context.cuts import CutSettings
from agent.context.learned_profile import LearnedProfile
from agent.context.limits import Limits, LimitSettings, limits_of
from agent.context.pruning import PruneStyle
from agent.context.state import CooldownKey, cooldown_key
from agent.model.base import made_by
from agent.model.client import ModelClient
from agent.model.sizes import SizeSource
from hermes_state.compressions import Layer
from hermes_state.values import LineageId, Tokens

SUMMARY_SECONDS = 180.0
"""Longest wait for one summary, in seconds, however steadily it comes in: one that the turn's own deadline ended would
begin anew with the next message, and the one after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorSettings:
    """Configuration of the built-in context engine, sizes aside."""

    cut: CutSettings = field(default_factory=CutSettings)
    prune_style: PruneStyle = "stub"
    summary_template: str | None = None
    abort_on_summary_failure: bool = False
    summary_seconds: float = SUMMARY_SECONDS
    zone: tzinfo = UTC
    note_in_system: bool = True
    """Whether the system prompt behind a compression says why the view begins with a handoff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Configuration of how conversations with a model are kept inside its window."""

    is_enabled: bool = True
    """Whether anything but `/compress` compresses."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    compressor: CompressorSettings = field(default_factory=CompressorSettings)
    hard_message_limit: int = 5_000
    """Number of messages from which on hygiene acts, whatever their size."""
    hold_seconds: float = 10.0
    """Longest time that hygiene keeps a turn waiting that could also begin, in seconds."""
    quiet_seconds: float = 5.0
    """Time that a turn waits for a compression that nobody asked for until its people are told why, in seconds."""
    pressure_levels: tuple[float, ...] = ()
    """Shares of the window at which people are told, beside the notice before the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about a model that a plugin's context engine is told."""

    name: str
    context_length: Tokens
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    provider: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRoute:
    """A model that can write summaries."""

    client: ModelClient
    context_length: Tokens | None = None
    """None: that of the conversation."""
    mark: str = ""
    """Mark of the settings behind it: with others, what failed before may work."""

    @property
    def name(self) -> str:
        return f"{self.client.route}:{self.client.name}"

    def cooldown_key(self, layer: Layer) -> CooldownKey:
        return cooldown_key(layer, self.name, self.mark)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelHandle:
    """A model that answers turns. A turn is given one, and keeps it to its end."""

    client: ModelClient
    profile: LearnedProfile
    info: ModelInfo
    context: ContextSettings = field(default_factory=ContextSettings)
    summary_routes: tuple[SummaryRoute, ...] = ()
    """Models that are asked for summaries, in this order."""
    images: Path | None = None
    """Folder in which the paths of stored images start; None for a model that sees none."""

    @property
    def maker(self) -> str:
        """Name by which the model's own reasoning is marked."""
        return made_by(self.client.route, self.client.name)

    @property
    def window_from(self) -> SizeSource:
        """Source of the size of the model's window."""
        return self.profile.source_for(None)

    @property
    def limits(self) -> Limits:
        """Limits of the model as they are now: a learned window moves all of them."""
        return self._limits_of(self.profile.window)

    def limits_for(self, lineage_id: LineageId) -> Limits:
        """Limits of a conversation: the model's, unless a smaller window is assumed for it."""
        return self._limits_of(self.profile.window_for(lineage_id))

    async def load_limits(self) -> Limits:
        """Limits of the model, with what was learned before this process."""
        await self.profile.load()
        return self.limits

    def routes_within(self, window: Tokens) -> tuple[SummaryRoute, ...]:
        """Summary routes for a conversation of this window.

        The conversation's own model reads no more for a summary than for a turn, whatever is configured.
        """
        return tuple(self._bounded(route, window) for route in self.summary_routes)

    def _bounded(self, route: SummaryRoute, window: Tokens) -> SummaryRoute:
        length = window if route.context_length is None else route.context_length
        if self.profile.is_about(route.client.model):
            length = min(length, window)
        return SummaryRoute(client=route.client, context_length=length, mark=route.mark)

    def _limits_of(self, window: Tokens) -> Limits:
        return limits_of(window, self.profile.capacity.output_in(window), self.context.limits)
