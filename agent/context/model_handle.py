"""Models that answer turns, each with its client, its learned profile and the settings of its conversations.

A profile (size, token scale, accepted prompts) belongs to a route and a model. A window that a provider states is saved
immediately, together with the context length that it corrects. A guessed window applies only to the conversation whose
prompt was refused, and is never saved.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec.structs import replace

from agent.context.estimate import Estimator
from agent.context.limits import MIN_INPUT_WINDOW, ContextSettings, Limits, limits_of
from agent.context.state import CooldownKey, cooldown_key
from agent.images.model_images import ModelImages
from agent.model.base import ChatModel, ModelLimits, ModelRequest, made_by
from agent.model.catalog import UNKNOWN_LIMITS, SizeSource, model_size, plausible
from agent.model.client import ModelClient
from agent.model.usage import Size
from hermes_state.aio import Backoff
from hermes_state.compressions import Layer
from hermes_state.errors import ContextOverflow
from hermes_state.models.ledger import largest_answered_prompt
from hermes_state.models.profiles import (
    ModelProfile,
    OfferedSize,
    learn_context,
    load_profile,
    save_calibration,
    save_offer,
)
from hermes_state.store.writer import Store
from hermes_state.transcripts import View
from hermes_state.values import Clock, EstimatedTokens, LineageId, ReportedTokens, Tokens

log = structlog.get_logger()

ASSUMED_WINDOWS = (1_000_000, 512_000, 256_000, 200_000, 128_000, 64_000, 32_000, 16_000, 8_000, 4_000)
"""Common window sizes, in tokens, to guess from if a provider refuses a prompt without stating its limit."""
MAX_OFFER_AGE_MS = 7 * 86_400_000
"""Milliseconds after which a provider that stated the model's limits is asked again: a week."""
MAX_SILENCE_AGE_MS = 86_400_000
"""Milliseconds after which a provider that stated no limits is asked again: a day."""
UNREACHED_BACKOFF = Backoff(60.0, 3_600.0)
"""Pauses before an unreachable provider is asked again."""
Fetch = Callable[[], Awaitable[ModelLimits | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about a model, for plugin context engines."""

    name: str
    context_length: Tokens
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    provider: str = ""


class SummaryRoute(msgspec.Struct, frozen=True, kw_only=True):
    client: ModelClient
    context_length: Tokens | None = None
    """Context length of the summary model, or None to use the conversation's."""
    mark: str = ""
    """Fingerprint of the route's settings. A route that failed can be used again as soon as its settings change."""

    @property
    def name(self) -> str:
        return f"{self.client.route}:{self.client.name}"

    def cooldown_key(self, layer: Layer) -> CooldownKey:
        return cooldown_key(layer, self.name, self.mark)


class LearnedProfile:
    """Everything learned about a model on a route: its window, token scale and accepted prompts."""

    def __init__(
        self, store: Store, route: str, model: str, configured: ModelLimits, clock: Clock, *, fetch: Fetch | None = None
    ) -> None:
        """Create an empty profile. `fetch` asks the provider for the model's limits (`ChatModel.fetch_limits`)."""
        self._store = store
        self._route = route
        self.model = model
        self._configured = configured
        self._clock = clock
        self._fetch = fetch
        self._asking = asyncio.Lock()
        self._ask_from: int = 0
        """Earliest time at which to ask an unreachable provider again."""
        self._pauses = iter(UNREACHED_BACKOFF)
        self.capacity = model_size(model, configured)
        """The model's limits from the best source, without corrections that were learned from refusals."""
        self._news, self._read = 1, 0
        """Number of changes to the stored profile that are known, and number of changes that have been read."""
        self._known = ModelProfile()
        self._assumed: dict[LineageId, Tokens] = {}
        self._accepted = 0
        self.estimator = Estimator()

    @property
    def window(self) -> Tokens:
        """Context length of the model: from `capacity`, or a smaller length learned from refusals."""
        return self._known.window(self.capacity.context_length)

    @property
    def max_input(self) -> Tokens | None:
        """Maximum prompt size, if the model catalog or a refusal states a separate limit for prompts."""
        return self._known.max_input(self.capacity.context_length, self.capacity.max_input_tokens)

    def window_for(self, lineage_id: LineageId) -> Tokens:
        """Return a conversation's context length: the model's, or a guess that fits the largest accepted prompt."""
        assumed = self._assumed.get(lineage_id)
        return self.window if assumed is None else min(self.window, max(assumed, Tokens(self._accepted)))

    def source_for(self, lineage_id: LineageId | None) -> SizeSource:
        """Return the source of a conversation's context length or, if `lineage_id` is None, of the model's own."""
        if lineage_id is not None and self.window_for(lineage_id) < self.window:
            return SizeSource.GUESSED
        return self.capacity.context_from if self.window == self.capacity.context_length else SizeSource.LEARNED

    def is_about(self, model: ChatModel) -> bool:
        return (model.route, model.name) == (self._route, self.model)

    def expire_learned(self) -> None:
        self._news += 1

    async def load(self) -> None:
        """Read the stored profile if it may have changed. Most calls do nothing."""
        if self._read == self._news:
            return
        news = self._news
        profile = await self._store.read(load_profile, self._route, self.model)
        if self._read < news:  # unless another call has read it in the meantime
            self._read, window = news, self.window
            if profile.calibration != self._known.calibration:
                self.estimator = Estimator(profile.calibration)
            known = self._known
            self._take(profile)
            in_force = self.capacity.context_length
            self._known = profile.merged(known, in_force)  # nodes with different context lengths learn different bounds
            if self.window < min(window, in_force):
                log.info("model.window_known", model=self.model, window=self.window, known=in_force)

    async def ask(self) -> None:
        """Ask the provider for the model's limits if they are unknown or too old. Concurrent calls share one answer."""
        await self.load()
        if self._fetch is None or not self._is_due():
            return
        async with self._asking:
            if not self._is_due():
                return
            said = await self._fetch()
            now = self._clock.now()
            if said is None:
                self._ask_from = now + int(next(self._pauses) * 1000)
                return
            said, before = plausible(said), self._known.offer
            offer = OfferedSize(context_length=said.context_length, max_output_tokens=said.max_output_tokens, at=now)
            if said == UNKNOWN_LIMITS and before is not None:
                offer = replace(before, at=now)  # a refused key does not change the model's size
            self._take(replace(self._known, offer=offer))
            log.info(
                "model.limits_fetched",
                model=self.model,
                offered_context=offer.context_length,
                offered_output=offer.max_output_tokens,
                context=self.capacity.context_length,
                context_from=self.capacity.context_from.value,
            )
            await self._store.write(save_offer, self._route, self.model, offer)

    def _is_due(self) -> bool:
        configured, now = self._configured, self._clock.now()
        is_configured = None not in (configured.context_length, configured.max_output_tokens)
        # If `_ask_from` is further away than the longest pause, the clock was set back.
        if is_configured or 0 < self._ask_from - now <= UNREACHED_BACKOFF.max_seconds * 1000:
            return False
        offer = self._known.offer
        if offer is None:
            return True
        is_silence = offer.context_length is None and offer.max_output_tokens is None
        return not 0 <= now - offer.at < (MAX_SILENCE_AGE_MS if is_silence else MAX_OFFER_AGE_MS)

    def _take(self, profile: ModelProfile) -> None:
        self._known = profile
        if profile.offer is not None:
            said = ModelLimits(
                context_length=profile.offer.context_length, max_output_tokens=profile.offer.max_output_tokens
            )
            self.capacity = model_size(self.model, self._configured, said)

    async def learn(
        self,
        request: ModelRequest,
        reported: ReportedTokens,
        view: View,
        size: Size | None = None,
        *,
        was_accepted: bool = True,
    ) -> None:
        """Learn from the token count that a provider reports for an accepted or refused request.

        `size`: size of the request, if known.
        """
        is_plausible = self.estimator.learn(request, reported, view, size)
        if is_plausible and was_accepted:
            self._accepted = max(self._accepted, reported)
        known, saved = self.estimator.calibration, self._known.calibration
        pairs = ((known.scale, saved.scale), (known.image_tokens, saved.image_tokens))
        if any(abs(new - old) > 0.01 * old for new, old in pairs):  # smaller changes are not worth a write
            await self._store.write(save_calibration, self._route, self.model, known, self._clock.now())
            self._known = replace(self._known, calibration=known)

    async def largest_answered(self, lineage_id: LineageId | None = None) -> int | None:
        """Return the size of the largest prompt that the model answered in this conversation (None: in any)."""
        return await self._store.read(largest_answered_prompt, lineage_id, self._route, self.model)

    async def is_disproved(self, error: ContextOverflow, prompt: EstimatedTokens) -> bool:
        """Return True if the model answered a prompt that was larger than both `prompt` and the stated window."""
        answered = await self.largest_answered() or 0
        is_vague = error.prompt_tokens is None and not error.is_of_account
        return is_vague and (error.window or answered) < answered >= prompt

    async def learn_window(
        self, lineage_id: LineageId, stated: int, *, is_of_input: bool = False, is_counted: bool = False
    ) -> None:
        """Save a smaller window that the provider stated. `is_of_input`: the stated limit applies to the prompt alone.

        A window below an answered prompt is accepted only if the provider counted the refused prompt (`is_counted`).
        In that case, the provider must have lowered the limit.
        """
        self._assumed.pop(lineage_id, None)
        answered = 0 if is_counted else await self.largest_answered()
        if not max(MIN_INPUT_WINDOW, answered or 0) <= stated < min(self.window, self.max_input or self.window):
            return
        in_force, bound = self.capacity.context_length, Tokens(stated)
        log.warning("model.window_learned", model=self.model, window=stated, is_of_input=is_of_input, known=in_force)
        self._known = self._known.learned(bound, beside=in_force, is_of_input=is_of_input)
        about = (self._route, self.model, bound, in_force, self._clock.now())
        await self._store.write(learn_context, *about, is_of_input=is_of_input)

    def assume_window(
        self, lineage_id: LineageId, refused: EstimatedTokens | ReportedTokens, accepted: int | None
    ) -> None:
        """Guess a conversation's window: the largest common window below a prompt of `refused` tokens.

        No window is guessed if the model is known to accept a prompt of this size. `accepted`: size of the largest
        prompt that it accepted in this conversation.
        """
        floor = max(self._accepted, accepted or 0)
        guess = next((size for size in ASSUMED_WINDOWS if size < refused), None)
        if guess is None or refused <= floor or max(guess, floor) >= self.window_for(lineage_id):
            return
        self._assume(lineage_id, Tokens(max(guess, floor)), refused)

    def assume_stated(self, lineage_id: LineageId, stated: int) -> None:
        """Keep a conversation below the account's token limit per request, without saving it as the model's limit."""
        self._assume(lineage_id, Tokens(min(self.window, max(stated, MIN_INPUT_WINDOW))), None)

    def _assume(self, lineage_id: LineageId, window: Tokens, refused: int | None) -> None:
        if len(self._assumed) >= 4_096:  # a few bytes per conversation
            self._assumed.clear()
        self._assumed[lineage_id] = window
        window = self.window_for(lineage_id)
        log.warning("model.window_assumed", model=self.model, lineage_id=lineage_id, window=window, refused=refused)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelHandle:
    """A model that answers turns. Each turn uses one handle from beginning to end."""

    client: ModelClient
    profile: LearnedProfile
    info: ModelInfo
    context: ContextSettings = field(default_factory=ContextSettings)
    summary_routes: tuple[SummaryRoute, ...] = ()
    flush_route: SummaryRoute | None = None
    """Model that takes notes before a compression. None: no notes are taken."""
    images: ModelImages | None = None
    """Chooses images for the model; None if it cannot see images."""
    subagent_model: Callable[[], "ModelHandle | None"] = lambda: None
    """Returns the model for sub-agents, or None if they use this model."""

    @property
    def maker(self) -> str:
        return made_by(self.client.route, self.client.name)

    @property
    def window_from(self) -> SizeSource:
        return self.profile.source_for(None)

    @property
    def limits(self) -> Limits:
        return self._limits_of(self.profile.window)

    def limits_for(self, lineage_id: LineageId) -> Limits:
        return self._limits_of(self.profile.window_for(lineage_id))

    def output_limit(self, prompt: EstimatedTokens, lineage_id: LineageId) -> Tokens:
        return self.profile.capacity.output_beside(prompt, self.profile.window_for(lineage_id))

    def expire_learned(self) -> None:
        self.profile.expire_learned()
        if self.images is not None:
            self.images.expire_learned()

    async def load_limits(self) -> Limits:
        await self.profile.load()
        return self.limits

    def routes_within(self, window: Tokens) -> tuple[SummaryRoute, ...]:
        """Return the summary routes with their context lengths.

        A route that uses this model, or whose own context length is unknown, gets at most `window` tokens.
        """
        bounded = []
        for route in self.summary_routes:
            length = window if route.context_length is None else route.context_length
            if self.profile.is_about(route.client.model):
                length = min(length, window)
            bounded.append(replace(route, context_length=length))
        return tuple(bounded)

    def _limits_of(self, window: Tokens) -> Limits:
        profile = self.profile
        return limits_of(window, profile.capacity.reserved_in(window), self.context, profile.max_input)
