"""What is learned of a model while it is used: how it counts, and how much it really takes.

Kept per route and model, so that it survives restarts and holds for every conversation. Counting is saved when it has
changed enough to matter, not with every reply; a window that a provider states is saved at once, with the configured
length that it corrects (another one is tried anew); one that we only guess is never saved.
"""

import structlog

from agent.context.estimate import Estimator, Size
from agent.context.limits import LEAST_INPUT_WINDOW
from agent.model.base import ChatModel, ModelRequest
from hermes_state.errors import ContextOverflow
from hermes_state.profiles import Calibration, learn_context, load_profile, save_calibration
from hermes_state.store import Store
from hermes_state.transcripts import View
from hermes_state.values import Clock, EstimatedTokens, ReportedTokens, Tokens

log = structlog.get_logger()

WORTH_SAVING = 0.01
"""Relative change of the scale, or of the price of an image."""
ASSUMED_WINDOWS = (1_000_000, 512_000, 256_000, 200_000, 128_000, 64_000, 32_000, 16_000, 8_000, 4_000)
"""Tried from the top when a provider refuses a prompt without saying what would fit."""


class ProfileBook:
    """The profile of one model on one route."""

    def __init__(self, store: Store, route: str, model: str, configured: Tokens, clock: Clock) -> None:
        self._store = store
        self._route = route
        self.model = model
        self.configured = configured
        self._clock = clock
        self._is_loaded = False
        self._saved = Calibration()
        self._learned: Tokens | None = None
        self._assumed: Tokens | None = None
        self.estimator = Estimator()

    @property
    def window(self) -> Tokens:
        """The model's context: the smallest of what is configured, what was learned and what is assumed."""
        return min(size for size in (self.configured, self._learned, self._assumed) if size is not None)

    def is_about(self, model: ChatModel) -> bool:
        """Whether it is this model, on this route."""
        return (model.route, model.name) == (self._route, self.model)

    async def load(self) -> None:
        """Take up what was learned before this process; only the first call does anything."""
        if self._is_loaded:
            return
        profile = await self._store.read(load_profile, self._route, self.model, self.configured)
        if not self._is_loaded:  # nobody else was faster
            self._is_loaded = True
            self._saved, self._learned = profile.calibration, profile.learned_context
            self.estimator = Estimator(profile.calibration)
            if self._learned is not None:
                log.info("model.window_known", model=self.model, window=self._learned, configured=self.configured)

    async def learn(
        self, request: ModelRequest, reported: ReportedTokens, view: View, size: Size | None = None
    ) -> None:
        """Take in what a provider counted for a request; `size` is the request's, where it is known."""
        self.estimator.learn(request, reported, view, size)
        known, saved = self.estimator.calibration, self._saved
        if _differs(known.scale, saved.scale) or _differs(known.image_tokens, saved.image_tokens):
            self._saved = known
            await self._store.write(save_calibration, self._route, self.model, known, self._clock.now())

    async def learn_window(self, error: ContextOverflow, estimated: EstimatedTokens, input_window: Tokens) -> None:
        """After a refused prompt: keep a smaller window that the provider stated, or guess one below the present."""
        if error.window is not None:
            if LEAST_INPUT_WINDOW <= error.window < self.window:
                log.warning("model.window_learned", model=self.model, window=error.window, configured=self.configured)
                self._learned = Tokens(error.window)
                known, now = (self._route, self.model, self._learned, self.configured), self._clock.now()
                await self._store.write(learn_context, *known, now)
        elif estimated < input_window:
            self._assumed = Tokens(next((size for size in ASSUMED_WINDOWS if size < self.window), self.window))
            log.warning("model.window_assumed", model=self.model, window=self._assumed, configured=self.configured)


def _differs(known: float, saved: float) -> bool:
    return abs(known - saved) > WORTH_SAVING * saved
