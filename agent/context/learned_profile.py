"""What is known and learned of a model while it is used: how large it is, how it counts, how much it really takes.

Kept per route and model, so that it survives restarts and holds for every conversation. The provider is asked once,
when the model is first used. Counting is saved when it has changed enough to matter, not with every reply; a window
that a provider states is saved at once, with the length that it corrects (another one is tried anew). A window that we
only guess is never saved, and holds for the conversation whose prompt was refused: what made it too long may have been
that one prompt alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from agent.context.estimate import Estimator, Size
from agent.context.limits import LEAST_INPUT_WINDOW
from agent.model.base import ChatModel, ModelLimits, ModelRequest
from agent.model.sizes import UNKNOWN_LIMITS, SizeSource, model_size, plausible
from hermes_state.model_profiles import (
    ModelProfile,
    OfferedSize,
    keep_offer,
    learn_context,
    load_profile,
    save_calibration,
)
from hermes_state.store.writer import Store
from hermes_state.transcripts import View
from hermes_state.values import Clock, EstimatedTokens, LineageId, ReportedTokens, Tokens

log = structlog.get_logger()

WORTH_SAVING = 0.01
"""Relative change of the scale, or of the price of an image."""
ASSUMED_WINDOWS = (1_000_000, 512_000, 256_000, 200_000, 128_000, 64_000, 32_000, 16_000, 8_000, 4_000)
"""Guessed from when a provider refuses a prompt without saying what would fit."""
KEPT_GUESSES = 4_096
"""Conversations for which a window is guessed at one time."""


ANSWER_KEPT_MS = 7 * 86_400_000
"""What a provider says of its model is asked for again after a week; what it did not say, after a day."""
SILENCE_KEPT_MS = 86_400_000
UNREACHED_MS = 60_000
"""Until a provider that could not be asked is asked again; twice as long after each further time, up to an hour."""
LONGEST_UNREACHED_MS = 3_600_000

Fetch = Callable[[], Awaitable[ModelLimits | None]]


class LearnedProfile:
    """The profile of one model on one route."""

    def __init__(
        self,
        store: Store,
        route: str,
        model: str,
        configured: ModelLimits,
        clock: Clock,
        *,
        fetch: Fetch | None = None,
    ) -> None:
        """`fetch` asks the provider, see `ChatModel.fetch_limits`; without it nobody is asked."""
        self._store = store
        self._route = route
        self.model = model
        self._configured = configured
        self._clock = clock
        self._fetch = fetch
        self._asking = asyncio.Lock()
        self._ask_from: int = 0
        """When the provider may be asked next, by the clock; what is kept of its last answer says more."""
        self._pause_ms = UNREACHED_MS
        self.capacity = model_size(model, configured)
        """The model's size by whoever knows it best, before anything is learned from refusals."""
        self._is_loaded = False
        self._known = ModelProfile()
        """As it is stored."""
        self._assumed: dict[LineageId, Tokens] = {}
        self._accepted = 0
        self.estimator = Estimator()

    @property
    def window(self) -> Tokens:
        """The model's context: what is in force, or what was learned beside that if it is smaller."""
        return self._known.window(self.capacity.context_length)

    def window_for(self, lineage_id: LineageId) -> Tokens:
        """A conversation's context: the model's, or what is assumed for it; never below a prompt that was accepted."""
        assumed = self._assumed.get(lineage_id)
        return self.window if assumed is None else min(self.window, max(assumed, Tokens(self._accepted)))

    def source_for(self, lineage_id: LineageId | None) -> SizeSource:
        """Who says how large a conversation's context is; None: the model's."""
        if lineage_id is not None and self.window_for(lineage_id) < self.window:
            return SizeSource.GUESSED
        return self.capacity.context_from if self.window == self.capacity.context_length else SizeSource.LEARNED

    def is_about(self, model: ChatModel) -> bool:
        """Whether it is this model, on this route."""
        return (model.route, model.name) == (self._route, self.model)

    async def load(self) -> None:
        """Take up what was learned before this process; only the first call does anything."""
        if self._is_loaded:
            return
        profile = await self._store.read(load_profile, self._route, self.model)
        if not self._is_loaded:  # nobody else was faster
            self._is_loaded = True
            self.estimator = Estimator(profile.calibration)
            self._take(profile)
            in_force = self.capacity.context_length
            if self.window < in_force:
                log.info("model.window_known", model=self.model, window=self.window, beside=in_force)

    async def ask(self) -> None:
        """Ask the provider how large its model is, if that is not configured and nobody has asked lately.

        To be called when the model is about to be used. Whoever comes meanwhile waits for the one answer.
        """
        await self.load()
        if self._fetch is None or not self._is_due():
            return
        async with self._asking:
            if not self._is_due():
                return
            said = await self._fetch()
            now = self._clock.now()
            if said is None:
                self._ask_from = now + self._pause_ms
                self._pause_ms = min(2 * self._pause_ms, LONGEST_UNREACHED_MS)
                return
            said, before = plausible(said), self._known.offer
            offer = OfferedSize(context_length=said.context_length, max_output_tokens=said.max_output_tokens, at=now)
            if said == UNKNOWN_LIMITS and before is not None:
                offer = replace(before, at=now)  # a key that is refused for a while makes no model smaller
            self._take(replace(self._known, offer=offer))
            log.info(
                "model.sizes_asked",
                model=self.model,
                offered_context=offer.context_length,
                offered_output=offer.max_output_tokens,
                context=self.capacity.context_length,
                context_from=self.capacity.context_from.value,
            )
            await self._store.write(keep_offer, self._route, self.model, offer)

    def _is_due(self) -> bool:
        configured, now = self._configured, self._clock.now()
        if None not in (configured.context_length, configured.max_output_tokens):
            return False
        if now < self._ask_from:
            return False
        offer = self._known.offer
        if offer is None:
            return True
        says_something = (offer.context_length, offer.max_output_tokens) != (None, None)
        return not 0 <= now - offer.at < (ANSWER_KEPT_MS if says_something else SILENCE_KEPT_MS)

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
        """Take in what a provider counted for a request, accepted or refused; `size` is its, where that is known."""
        if was_accepted and self.estimator.is_possible(request, reported, size):
            self._accepted = max(self._accepted, reported)
        self.estimator.learn(request, reported, view, size)
        known, saved = self.estimator.calibration, self._known.calibration
        if _differs(known.scale, saved.scale) or _differs(known.image_tokens, saved.image_tokens):
            await self._store.write(save_calibration, self._route, self.model, known, self._clock.now())
            self._known = replace(self._known, calibration=known)

    async def learn_window(self, lineage_id: LineageId, stated: int) -> None:
        """Keep a window that the provider stated, if it is smaller; one above what is known is no news."""
        self._assumed.pop(lineage_id, None)
        if not LEAST_INPUT_WINDOW <= stated < self.window:
            return
        in_force = self.capacity.context_length
        log.warning("model.window_learned", model=self.model, window=stated, beside=in_force)
        learned = Tokens(stated)
        self._known = replace(self._known, learned_context=learned, learned_beside=in_force)
        await self._store.write(learn_context, self._route, self.model, learned, in_force, self._clock.now())

    def assume_window(
        self, lineage_id: LineageId, refused: EstimatedTokens | ReportedTokens, accepted: int | None
    ) -> None:
        """Guess the conversation's window when a prompt of `refused` tokens was too long and nobody says for what.

        The guess is the largest usual window that the prompt would not have fitted into. There is none where as many
        tokens were accepted before: by anybody, or in this conversation (`accepted`).
        """
        floor = max(self._accepted, accepted or 0)
        guess = next((size for size in ASSUMED_WINDOWS if size < refused), None)
        if guess is None or refused <= floor or max(guess, floor) >= self.window_for(lineage_id):
            return
        self._assume(lineage_id, Tokens(max(guess, floor)), refused)

    def assume_stated(self, lineage_id: LineageId, stated: int) -> None:
        """Keep a conversation below what the account may send at once: that is no window, it grows with the account."""
        self._assume(lineage_id, Tokens(min(self.window, max(stated, LEAST_INPUT_WINDOW))), None)

    def _assume(self, lineage_id: LineageId, window: Tokens, refused: int | None) -> None:
        if len(self._assumed) >= KEPT_GUESSES:
            self._assumed.clear()
        self._assumed[lineage_id] = window
        window = self.window_for(lineage_id)
        log.warning("model.window_assumed", model=self.model, lineage_id=lineage_id, window=window, refused=refused)


def _differs(known: float, saved: float) -> bool:
    return abs(known - saved) > WORTH_SAVING * saved
