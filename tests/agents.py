"""Agents with a single model that answers their turns, as most tests need them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.context.limits import ContextSettings, Limits
from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import LearnedProfile, ModelHandle, ModelInfo, SummaryRoute
from agent.context.pending import CompressionRegistry
from agent.images.model_images import ModelImages
from agent.images.scaling import ImageScaler
from agent.model.base import ModelLimits
from agent.model.catalog import model_size
from agent.model.client import ModelClient
from agent.prompt import DEFAULT_PERSONA, PromptBuilder
from agent.tools.offers import OfferRegistry
from agent.tools.registry import ToolRegistry
from agent.turn import MAX_TOOL_ROUNDS, Agent, Answer
from gateway.turns.runner import check_size
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import Clock, Tokens

if TYPE_CHECKING:
    from tests.agent.conftest import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """Settings of an agent and of its model."""

    context_length: Tokens | None = None
    max_output_tokens: Tokens | None = None
    sees_images: bool = False
    attachments: Path | None = None
    route_mark: str = "as-it-is"
    zone: tzinfo = UTC
    persona: str = DEFAULT_PERSONA
    max_tool_rounds: int = MAX_TOOL_ROUNDS
    context: ContextSettings = field(default_factory=ContextSettings)


def handle_of(
    client: ModelClient,
    settings: TurnSettings,
    store: Store,
    clock: Clock,
    routes: Sequence[SummaryRoute] | None = None,
) -> ModelHandle:
    """Return a model that answers turns. By default, it also writes its summaries."""
    configured = ModelLimits(context_length=settings.context_length, max_output_tokens=settings.max_output_tokens)
    fetch = client.model.fetch_limits
    return ModelHandle(
        client=client,
        profile=LearnedProfile(store, client.route, client.name, configured, clock, fetch=fetch),
        info=ModelInfo(name=client.name, context_length=model_size(client.name, configured).context_length),
        context=settings.context,
        summary_routes=(SummaryRoute(client=client),) if routes is None else tuple(routes),
        images=images_for(client, settings, store, clock),
    )


def images_for(client: ModelClient, settings: TurnSettings, store: Store, clock: Clock) -> ModelImages | None:
    """Return the images for a model that accepts images, or None."""
    if not settings.sees_images or settings.attachments is None:
        return None
    scaler = ImageScaler(AttachmentFolder(settings.attachments))
    return ModelImages(
        scaler=scaler, store=store, route=client.route, model=client.name, mark=settings.route_mark, clock=clock
    )


class SingleModelContext:
    """Context controller of an agent, whose methods get its model as second argument."""

    def __init__(self, agent: Agent, model: ModelHandle) -> None:
        self._context = agent.context
        self._model = model

    @property
    def limits(self) -> Limits:
        return self._model.limits

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._context, name)
        if name in ("settle", "ended"):
            return method
        return lambda conversation, *rest, **options: method(conversation, self._model, *rest, **options)


class SingleModelAgent:
    """An agent together with the model that answers its turns."""

    def __init__(
        self,
        *,
        store: Store,
        client: ModelClient,
        tools: ToolRegistry,
        settings: TurnSettings,
        clock: Clock,
        summary_routes: Sequence[SummaryRoute] | None = None,
        pending: CompressionRegistry | None = None,
        offers: OfferRegistry | None = None,
        **options: Any,
    ) -> None:
        """`offers` is set if prompts list only the tools that fit. `options` are passed to `Agent`."""
        self.agent = Agent(
            store=store,
            prompts=PromptBuilder(tools=tools, offers=offers, persona=settings.persona, zone=settings.zone),
            max_tool_rounds=settings.max_tool_rounds,
            clock=clock,
            pending=pending or CompressionRegistry(),
            **options,
        )
        self.client = client
        self.model = handle_of(client, settings, store, clock, summary_routes)
        self.context = SingleModelContext(self.agent, self.model)

    async def check(self, turn: RunningTurn) -> MeasuredPrompt | None:
        """Compress the conversation before a turn, if hygiene requires it."""
        return await check_size(self.agent, turn, self.model)

    async def run(self, turn: RunningTurn, sink: "Sink", prompt: MeasuredPrompt | None = None) -> Answer:
        return await self.agent.run(turn, sink.show, self.model, prompt)

    async def close(self) -> None:
        await self.agent.close()
