"""`ContextCompressor`: the built-in compression as an engine for message lists.

A list becomes rows, `agent.context` compresses the rows, and the result becomes a list again. The rows exist only
during one call. Their ids are positions in the list. Nobody can look these ids up, so they are removed from all texts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from agent.context.cuts import Cut, SkipReason, find_cut, middle_of
from agent.context.deterministic import deterministic_summary
from agent.context.estimate import Estimator
from agent.context.limits import CompressorSettings, Limits, LimitSettings, limits_of, summary_input_tokens
from agent.context.pruning import prune
from agent.context.summary import SummaryJob, checked_summary, summary_request
from agent.engines.contract import ContextEngine, ListMessage
from agent.engines.lists import STYLE, ListTranscript, rows_of
from agent.handoff import escape_markers, framed
from agent.model.base import ModelReply, ModelRequest
from agent.model.usage import RowTokenCache
from hermes_state.errors import ModelError
from hermes_state.redaction import redact
from hermes_state.values import SystemClock

log = structlog.get_logger()


class ContextCompressor(ContextEngine):
    """The built-in engine for message lists. It cuts and prunes a list, and inserts one handoff with a summary."""

    threshold_percent = 0.50
    protect_first_n = 3
    protect_last_n = 20

    def __init__(
        self,
        model: str = "",
        context_length: int = 128_000,
        *,
        summarise: Callable[[ModelRequest], ModelReply] | None = None,
    ) -> None:
        """Create an engine. `summarise`: a blocking model call that can raise `ModelError`. None: no model is used."""
        self._summarise = summarise
        self._estimator = Estimator(sizes=RowTokenCache(4_096))
        self.update_model(model, context_length)

    @property
    def name(self) -> str:
        return "compressor"

    @property
    def limits(self) -> Limits:
        """Limits of the current model, with the current `threshold_percent`."""
        return limits_of(self.context_length, 0, LimitSettings(threshold=self.threshold_percent))

    def update_model(
        self, model: str, context_length: int, base_url: str = "", api_key: str = "", provider: str = ""
    ) -> None:
        self.context_length = context_length
        self.threshold_tokens = int(self.limits.threshold)

    def update_from_response(self, usage: Mapping[str, Any]) -> None:
        self.last_prompt_tokens = int(usage.get("prompt_tokens") or 0)
        self.last_completion_tokens = int(usage.get("completion_tokens") or 0)
        total = usage.get("total_tokens") or self.last_prompt_tokens + self.last_completion_tokens
        self.last_total_tokens = int(total)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self.last_prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens >= self.threshold_tokens

    def should_compress_preflight(self, messages: list[ListMessage]) -> bool:
        return sum(self._sizes(rows_of(messages))) >= self.threshold_tokens

    def has_content_to_compress(self, messages: list[ListMessage]) -> bool:
        rows = rows_of(messages)
        return isinstance(self._cut(rows, self._sizes(rows)), Cut)

    def compress(
        self, messages: list[ListMessage], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[ListMessage]:
        """Return a list in which one handoff replaces the middle, or the same messages if that saves nothing.

        The message objects are not changed. `current_tokens` is only logged, because message sizes decide the cut.
        """
        rows = rows_of(messages)
        sizes = self._sizes(rows)
        cut = self._cut(rows, sizes)
        if isinstance(cut, SkipReason):
            return self._unchanged(messages, cut)
        content = sum(cut.middle(sizes))
        summary = escape_markers(self._summary(rows, cut, content, focus_topic))
        if int(self._estimator.text(framed(summary))) >= content:
            return self._unchanged(messages, SkipReason.NOT_SMALLER)
        self.compression_count += 1
        compressed = rows.compressed(cut, summary)
        log.info(
            "compression.done",
            engine=self.name,
            tokens=current_tokens,
            messages_before=len(messages),
            messages_after=len(compressed),
        )
        return compressed

    def _unchanged(self, messages: list[ListMessage], why: SkipReason) -> list[ListMessage]:
        log.info("compression.not_needed", engine=self.name, why=why, messages=len(messages))
        return list(messages)

    def _sizes(self, rows: ListTranscript) -> list[int]:
        return self._estimator.each(rows.transcript, STYLE)

    def _cut(self, rows: ListTranscript, sizes: Sequence[int]) -> Cut | SkipReason:
        rules = CompressorSettings(protect_first_n=self.protect_first_n, protect_last_n=max(1, self.protect_last_n))
        return find_cut(rows.transcript, sizes, self.limits, rules)

    def _summary(self, rows: ListTranscript, cut: Cut, content: int, focus: str | None) -> str:
        limits = self.limits
        upto = min(cut.tail_start, max(0, len(rows.transcript) - self.protect_last_n))
        pruned, _ = prune(rows.transcript, upto=upto, redact=redact)
        middle, earlier = middle_of(pruned, cut)
        previous = earlier.text if earlier is not None else None
        if self._summarise is not None:
            target, limit = limits.summary_tokens(content), summary_input_tokens(self.context_length)
            now = SystemClock().now()
            job = SummaryJob(rows=middle, previous=previous, focus=focus, target=target, input_limit=limit, now=now)
            try:
                request = summary_request(job, redact)
                [row] = request.transcript
                row = msgspec.structs.replace(row, text=_ID_IN_REQUEST.sub("", row.text or ""))
                return checked_summary(self._summarise(replace(request, transcript=(row,))), job, redact)
            except ModelError as error:
                log.warning("compression.summary_failed", engine=self.name, error=type(error).__name__)
        ceiling = limits.summary_ceiling
        text = deterministic_summary(middle, previous, redact=redact, limit=ceiling, removed=len(middle))
        return re.sub(r"(?<=^- )m\d+: | \(m\d+\)", "", text, flags=re.MULTILINE)


_ID_IN_REQUEST = re.compile(
    r"(?<=^\[)m\d+ "
    r"|(?<=\[pruned) m\d+(?=: )|(?<=: the same result) as m\d+(?=, which came later\])|; history_open reads them(?=\])",
    re.MULTILINE,
)
