"""Token estimates for prompts that the provider has not counted yet.

The provider's last count is the anchor. Only newer rows are estimated, and then scaled by the ratio of this model's
counts to earlier estimates. Without an anchor (in a new session or after a compression) the whole prompt is estimated.
"""

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from agent.model.base import ModelRequest
from agent.model.usage import ROW_TOKENS, RowTokenCache, Size, estimated_text_tokens, fixed_tokens, rows_size
from agent.model.wire import WireStyle
from hermes_state.models.profiles import MAX_IMAGE_TOKENS, MAX_SCALE, MIN_IMAGE_TOKENS, MIN_SCALE, Calibration
from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import EstimatedTokens, Message, ReportedTokens

MIN_LEARNED_TOKENS = 100
"""Smallest prompt to learn from, in tokens. Smaller prompts consist mostly of fixed markup around the text."""
MIN_STEP = 0.2
"""Minimum weight of a new token count. It keeps old counts from dominating after a provider changes its tokenizer."""
MAX_STRIDE = 1.5
"""Maximum factor by which the scale of one token count may differ from the learned scale. Larger factors are capped."""
SETTLED_SAMPLES = 3


class Estimator:
    """Estimates prompt sizes for a model on a route, and learns from reported counts. It is thread-safe."""

    def __init__(self, calibration: Calibration | None = None, sizes: RowTokenCache = ROW_TOKENS) -> None:
        self._calibration = calibration or Calibration()
        self._sizes = sizes

    @property
    def calibration(self) -> Calibration:
        return self._calibration

    def text(self, text: str) -> EstimatedTokens:
        return self._scaled(Size(estimated_text_tokens(text), 0))

    def unscaled(self, tokens: int) -> int:
        """Convert a number of this model's tokens to the unscaled tokens that `estimated_text_tokens` counts."""
        return int(tokens / self._calibration.scale)

    def rows(self, rows: Iterable[Message], style: WireStyle) -> EstimatedTokens:
        return self._scaled(self.rows_size(rows, style))

    def each(self, rows: Iterable[Message], style: WireStyle) -> list[int]:
        text_of, limit, is_shared = self._sizes.text_tokens, style.max_result_characters, style.is_shared
        scale, maker = self._calibration.scale, style.reasoning_of
        return [
            int(self.rows((row,), style))
            if row.body.images
            else int(scale * text_of(row, limit, is_shared=is_shared, reasoning_of=maker))
            for row in rows
        ]

    def whole(self, request: ModelRequest) -> EstimatedTokens:
        return self._scaled(self.size(request))

    def is_quick(self, request: ModelRequest) -> bool:
        """Return True if an estimate is fast enough for the event loop: few rows, or cached sizes."""
        rows = request.transcript
        return len(rows) < 100 or self._sizes.has(rows[0], request.style.max_result_characters)

    def prompt(self, view: View, request: ModelRequest, size: Size | None = None) -> EstimatedTokens:
        """Estimate the next request of the view's session from the last reported count and the rows since then.

        `size`: size of the request, if known.
        """
        whole = size or self.size(request)
        reported = view.session.reported_prompt_tokens
        if reported is None:
            return self._scaled(whole)
        since = self._since(view.session, request)
        covered = whole - since
        if not (_is_possible(reported, covered) and self._is_likely(reported, covered)):
            return self._scaled(whole)
        return EstimatedTokens(reported + int(self._local_scale(reported, covered) * since.text + self._priced(since)))

    def learn(
        self, request: ModelRequest, reported: ReportedTokens, view: View | None = None, size: Size | None = None
    ) -> bool:
        """Learn from the token count that a provider reports for a request. Return False if the count is impossible.

        `view`: helps to learn the token cost of images in long conversations. Its session stores the previous count, so
        only the rows between the two counts must be estimated. `size`: size of the request, if known.
        """
        whole = size or self.size(request)
        if not _is_possible(reported, whole):
            return False
        if whole.text < MIN_LEARNED_TOKENS or (whole.images and self._learn_price(request, reported, whole, view)):
            return True
        images = self._priced(whole)
        if not whole.images or (self._calibration.image_samples > 0 and images * 4 <= reported):
            self._learn_scale((reported - images) / whole.text, whole.text)
        return True

    def _learn_scale(self, sample: float, text_tokens: int) -> None:
        known = self._calibration
        if not MIN_SCALE <= sample <= MAX_SCALE:
            return
        if known.samples >= SETTLED_SAMPLES:
            sample = min(max(sample, known.scale / MAX_STRIDE), known.scale * MAX_STRIDE)
        # A prompt of fewer than 1,000 tokens has less weight.
        step = max(1 / (known.samples + 1), MIN_STEP) * min(1.0, text_tokens / 1_000)
        scale = min(max(known.scale + step * (sample - known.scale), MIN_SCALE), MAX_SCALE)
        self._calibration = msgspec.structs.replace(known, scale=scale, samples=known.samples + 1)

    def _learn_price(self, request: ModelRequest, reported: int, whole: Size, view: View | None) -> bool:
        """Learn the token cost of an image. Return False if that is impossible.

        It is impossible if a 10 % error in the text estimate could distort the cost, or if the cost is implausible.
        """
        known = self._calibration
        doubtful, rest, scale = whole, float(reported), known.scale
        before = view.session.reported_prompt_tokens if view is not None else None
        if view is not None and before is not None:
            since = self._since(view.session, request)
            covered = whole - since
            if since.images and _is_possible(before, covered):
                doubtful, rest, scale = since, float(reported - before), self._local_scale(before, covered)
        text = scale * doubtful.text
        if text * 0.1 > self._priced(doubtful) / 2:
            return False
        sample = (rest - text) / doubtful.images
        if not MIN_IMAGE_TOKENS <= sample <= MAX_IMAGE_TOKENS:
            return False
        step = max(1 / (known.image_samples + 1), MIN_STEP)
        price = known.image_tokens + step * (sample - known.image_tokens)
        self._calibration = msgspec.structs.replace(known, image_tokens=price, image_samples=known.image_samples + 1)
        return True

    def _is_likely(self, reported: int, covered: Size) -> bool:
        """Return True if a count fits the learned scale. Providers may omit cached tokens, so counts can be too low."""
        known = self._calibration
        return known.samples < SETTLED_SAMPLES or reported >= known.scale * covered.text * 0.5

    def _local_scale(self, reported: int, covered: Size) -> float:
        """Return the token scale of this conversation so far. Newer text is probably in the same language."""
        known = self._calibration
        if covered.text < MIN_LEARNED_TOKENS:
            return known.scale
        stride = MAX_STRIDE if known.samples else MAX_SCALE
        scale = (reported - self._priced(covered)) / covered.text
        return min(max(scale, known.scale / stride), known.scale * stride)

    def _scaled(self, size: Size) -> EstimatedTokens:
        return EstimatedTokens(int(self._calibration.scale * size.text + self._priced(size)))

    def _priced(self, size: Size) -> float:
        return self._calibration.image_tokens * size.images

    def _since(self, session: Session, request: ModelRequest) -> Size:
        seq = session.reported_at_seq or 0
        # The rows that belong to the session itself are at the end, in order. Replaced rows have a negative `seq`.
        own = takewhile(
            lambda row: row.session_id == session.id and not 0 < row.seq <= seq, reversed(request.transcript)
        )
        return self.rows_size([row for row in own if row.seq > seq], request.style)

    def size(self, request: ModelRequest) -> Size:
        return Size(fixed_tokens(request), 0) + self.rows_size(request.transcript, request.style)

    def rows_size(self, rows: Iterable[Message], style: WireStyle) -> Size:
        return rows_size(rows, style, self._sizes)


def _is_possible(reported: int, covered: Size) -> bool:
    """Return True if a tokenizer could return this count, allowing for up to 8,000 tokens that a provider adds."""
    minimum = max(1.0, MIN_SCALE * covered.text)
    return minimum <= reported <= MAX_SCALE * covered.text + MAX_IMAGE_TOKENS * covered.images + 8_000
