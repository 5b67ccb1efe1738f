"""Estimates of prompts, in tokens, before the provider has counted them.

What a provider counted last is the anchor; only what was stored since is estimated, scaled by how this model's counts
have differed from our estimates. Without an anchor (a new session, the child of a compression) the whole prompt is.
Everything here is an estimate in tokens and is named so; a provider's own count is `reported_`.
"""

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from agent.model.base import ModelRequest
from agent.model.usage import Size, fixed_tokens, rows_size
from agent.model.wire import WireSettings
from agent.tokens import ROW_TOKENS, RowTokenCache, estimated_text_tokens
from hermes_state.models.profiles import MAX_IMAGE_TOKENS, MAX_SCALE, MIN_IMAGE_TOKENS, MIN_SCALE, Calibration
from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import EstimatedTokens, Message, ReportedTokens

MIN_LONG_ROWS = 100
"""To measure more of them for the first time (after a restart, say) takes longer than an event loop may wait."""
UNSEEN_TOKENS = 8_000
"""Most tokens that a provider may add unseen (a prompt of its own) before its count is taken for nonsense."""
MIN_LEARNED_TOKENS = 100
"""A smaller prompt says nothing: what surrounds it outweighs it."""
SURE_TOKENS = 1_000
"""From here on a report counts in full; a smaller prompt's counts less."""
MIN_STEP = 0.2
"""Least step by which a further report moves the scale: old ones fade, for a provider may change its tokenizer."""
MAX_STRIDE = 1.5
"""A report that differs more than this from what was learned counts as if it differed by this."""
SETTLED_SAMPLES = 3
MIN_LIKELY_SHARE = 0.5
"""Least share of what a settled scale expects; an anchor below it is not built upon."""
ESTIMATE_NOISE = 0.1
"""Relative error of a text's estimate; the price of an image is learned where that is little beside it."""


class Estimator:
    """Estimates prompts of one model on one route, and learns from its reports. May be used from several threads."""

    def __init__(self, calibration: Calibration | None = None, sizes: RowTokenCache = ROW_TOKENS) -> None:
        self._calibration = calibration or Calibration()
        self._sizes = sizes

    @property
    def calibration(self) -> Calibration:
        """Calibration to be kept for the next start."""
        return self._calibration

    def text(self, text: str) -> EstimatedTokens:
        """One text, as this model would count it."""
        return self._scaled(Size(estimated_text_tokens(text), 0))

    def unscaled(self, tokens: int) -> int:
        """So many tokens of text as this model counts them, as `estimated_text_tokens` does."""
        return int(tokens / self._calibration.scale)

    def rows(self, rows: Iterable[Message], style: WireSettings) -> EstimatedTokens:
        """Rows as they stand on the wire, without what precedes them."""
        return self._scaled(self.rows_size(rows, style))

    def each(self, rows: Iterable[Message], style: WireSettings) -> list[int]:
        """Tokens that each of the rows takes by itself."""
        text_of, limit, is_shared = self._sizes.text_tokens, style.max_result_characters, style.is_shared
        scale, maker = self._calibration.scale, style.reasoning_of
        return [
            int(self.rows((row,), style))
            if row.body.images
            else int(scale * text_of(row, limit, is_shared=is_shared, reasoning_of=maker))
            for row in rows
        ]

    def whole(self, request: ModelRequest) -> EstimatedTokens:
        """A request from system prompt to last row, whatever was reported before."""
        return self._scaled(self.size(request))

    def is_quick(self, request: ModelRequest) -> bool:
        """True when a request can be estimated within a millisecond or two: most of its rows were measured before."""
        rows = request.transcript
        return len(rows) < MIN_LONG_ROWS or self._sizes.has(rows[0], request.style.max_result_characters)

    def prompt(self, view: View, request: ModelRequest, size: Size | None = None) -> EstimatedTokens:
        """A request for the next call of the view's session: the last report, and what was stored since.

        `size` is the request's, where it is known.
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
        """Take in a provider's count of a request; nonsense is left out, and answered with False.

        With the `view` that the request was made from, the price of images is also learned in long conversations:
        its session has the report before this one, so that only what came between is in doubt. `size` is the
        request's, where it is known.
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

    # ---- learning

    def _learn_scale(self, sample: float, text_tokens: int) -> None:
        known = self._calibration
        if not MIN_SCALE <= sample <= MAX_SCALE:
            return
        if known.samples >= SETTLED_SAMPLES:
            sample = min(max(sample, known.scale / MAX_STRIDE), known.scale * MAX_STRIDE)
        step = max(1 / (known.samples + 1), MIN_STEP) * min(1.0, text_tokens / SURE_TOKENS)
        scale = min(max(known.scale + step * (sample - known.scale), MIN_SCALE), MAX_SCALE)
        self._calibration = msgspec.structs.replace(known, scale=scale, samples=known.samples + 1)

    def _learn_price(self, request: ModelRequest, reported: int, whole: Size, view: View | None) -> bool:
        """Learns from this report what an image costs; False when it does not say."""
        known = self._calibration
        doubtful, rest, scale = whole, float(reported), known.scale
        before = view.session.reported_prompt_tokens if view is not None else None
        if view is not None and before is not None:
            since = self._since(view.session, request)
            covered = whole - since
            if since.images and _is_possible(before, covered):
                doubtful, rest, scale = since, float(reported - before), self._local_scale(before, covered)
        text = scale * doubtful.text
        if text * ESTIMATE_NOISE > self._priced(doubtful) / 2:
            return False
        sample = (rest - text) / doubtful.images
        if not MIN_IMAGE_TOKENS <= sample <= MAX_IMAGE_TOKENS:
            return False
        step = max(1 / (known.image_samples + 1), MIN_STEP)
        price = known.image_tokens + step * (sample - known.image_tokens)
        self._calibration = msgspec.structs.replace(known, image_tokens=price, image_samples=known.image_samples + 1)
        return True

    # ---- judging reports

    def _is_likely(self, reported: int, covered: Size) -> bool:
        """True when a count fits what was learned: some providers now and then leave out what they had cached."""
        known = self._calibration
        return known.samples < SETTLED_SAMPLES or reported >= known.scale * covered.text * MIN_LIKELY_SHARE

    def _local_scale(self, reported: int, covered: Size) -> float:
        """Scale by which this conversation's text was counted so far: what follows is likely in the same language."""
        known = self._calibration
        if covered.text < MIN_LEARNED_TOKENS:
            return known.scale
        stride = MAX_STRIDE if known.samples else MAX_SCALE
        scale = (reported - self._priced(covered)) / covered.text
        return min(max(scale, known.scale / stride), known.scale * stride)

    # ---- measuring

    def _scaled(self, size: Size) -> EstimatedTokens:
        return EstimatedTokens(int(self._calibration.scale * size.text + self._priced(size)))

    def _priced(self, size: Size) -> float:
        return self._calibration.image_tokens * size.images

    def _since(self, session: Session, request: ModelRequest) -> Size:
        """The request's rows that the session's last report does not cover."""
        seq = session.reported_at_seq or 0
        # What a session itself holds stands at the end, in order: the rows before it need no look.
        own = takewhile(lambda row: row.session_id == session.id, reversed(request.transcript))
        return self.rows_size([row for row in own if row.seq > seq], request.style)

    def size(self, request: ModelRequest) -> Size:
        """Size of a request, from system prompt to last row."""
        return Size(fixed_tokens(request), 0) + self.rows_size(request.transcript, request.style)

    def rows_size(self, rows: Iterable[Message], style: WireSettings) -> Size:
        """Rows as they stand on the wire, whatever model reads them."""
        return rows_size(rows, style, self._sizes)


def _is_possible(reported: int, covered: Size) -> bool:
    """True when any tokenizer can have counted this of what we know was read."""
    minimum = max(1.0, MIN_SCALE * covered.text)
    return minimum <= reported <= MAX_SCALE * covered.text + MAX_IMAGE_TOKENS * covered.images + UNSEEN_TOKENS
