"""What is learned of a model while it is used: how it counts, and how much it really takes.

Kept per route and model, so that it survives restarts and holds for every conversation. Counting is saved when it has
changed enough to matter, not with every reply; a window that a provider states is saved at once, with the configured
length that it corrects (another one is tried anew). A window that we only guess is never saved, and holds for the
conversation whose prompt was refused: what made it too long may have been that one prompt alone.
"""

import structlog

from agent.context.estimate import Estimator, Size
from agent.context.limits import LEAST_INPUT_WINDOW
from agent.model.base import ChatModel, ModelRequest
from hermes_state.profiles import Calibration, learn_context, load_profile, save_calibration
from hermes_state.store import Store
from hermes_state.transcripts import View
from hermes_state.values import Clock, EstimatedTokens, LineageId, ReportedTokens, Tokens

log = structlog.get_logger()

WORTH_SAVING = 0.01
"""Relative change of the scale, or of the price of an image."""
ASSUMED_WINDOWS = (1_000_000, 512_000, 256_000, 200_000, 128_000, 64_000, 32_000, 16_000, 8_000, 4_000)
"""Guessed from when a provider refuses a prompt without saying what would fit."""
KEPT_GUESSES = 4_096
"""Conversations for which a window is guessed at one time."""


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
        self._assumed: dict[LineageId, Tokens] = {}
        self._accepted = 0
        self.estimator = Estimator()

    @property
    def window(self) -> Tokens:
        """The model's context: what is configured, or what was learned if that is smaller."""
        return self.configured if self._learned is None else min(self.configured, self._learned)

    def window_for(self, lineage_id: LineageId) -> Tokens:
        """A conversation's context: the model's, or what is assumed for it; never below a prompt that was accepted."""
        assumed = self._assumed.get(lineage_id)
        return self.window if assumed is None else min(self.window, max(assumed, Tokens(self._accepted)))

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
        known, saved = self.estimator.calibration, self._saved
        if _differs(known.scale, saved.scale) or _differs(known.image_tokens, saved.image_tokens):
            await self._store.write(save_calibration, self._route, self.model, known, self._clock.now())
            self._saved = known

    async def learn_window(self, lineage_id: LineageId, stated: int) -> None:
        """Keep a window that the provider stated, if it is smaller; one above what is known is no news."""
        self._assumed.pop(lineage_id, None)
        if not LEAST_INPUT_WINDOW <= stated < self.window:
            return
        log.warning("model.window_learned", model=self.model, window=stated, configured=self.configured)
        self._learned = Tokens(stated)
        known, now = (self._route, self.model, self._learned, self.configured), self._clock.now()
        await self._store.write(learn_context, *known, now)

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
