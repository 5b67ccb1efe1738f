"""The contract of context engines that work on message lists, and the built-in engine behind it.

Plugins subclass `ContextEngine`; see docs/plugins.md. Lists are those of the chat completions API. The conversations
of the gateway itself are kept by `Compressor`, on stored rows; `ContextCompressor` runs the same steps on lists.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from agent.context.compressor import CompressorSettings
from agent.context.cuts import Cut, find_cut
from agent.context.deterministic import recap
from agent.context.engine_events import CompressionRequest
from agent.context.estimate import Estimator
from agent.context.limits import Limits, LimitSettings, limits_of, summary_input_tokens
from agent.context.outcomes import SkipReason
from agent.context.pruning import prune
from agent.context.summary import SummaryTask, checked_summary, summary_request
from agent.engines.list_rows import ListRows, rows_of
from agent.engines.mapping import ListMessage
from agent.handoff import escape_markers, framed
from agent.model.base import ModelReply, ModelRequest
from agent.model.wire import WireSettings
from agent.tokens import RowTokenCache
from hermes_state.errors import ModelError
from hermes_state.redaction import redact as default_redact
from hermes_state.values import Clock, SystemClock, Tokens, Transcript

log = structlog.get_logger()


class ContextEngine(ABC):
    """Keeps one conversation inside its window. There is an object for each conversation.

    Every method but `get_tool_schemas` may be `async` in a subclass. Sync ones are called in a thread, one at a time;
    none may take long but `compress`.
    """

    last_prompt_tokens: int = 0
    last_completion_tokens: int = 0
    last_total_tokens: int = 0
    threshold_tokens: int = 0
    context_length: int = 0
    compression_count: int = 0
    threshold_percent: float = 0.75
    """Share of `context_length`."""
    protect_first_n: int = 3
    protect_last_n: int = 6

    _wish: CompressionRequest | None = None

    # ---- what every engine does

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for logs and people."""

    @abstractmethod
    def update_from_response(self, usage: dict[str, Any]) -> None:
        """After each reply: `prompt_tokens`, `completion_tokens`, `total_tokens`, as the provider counted them."""

    @abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Whether to compress before a prompt of this size; None stands for `last_prompt_tokens`."""

    @abstractmethod
    def compress(
        self, messages: list[ListMessage], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[ListMessage]:
        """A shorter legal list that stands for `messages`. Keep the objects of messages that stay as they are."""

    # ---- what an engine may do

    def should_compress_preflight(self, messages: list[ListMessage]) -> bool:
        """Whether to compress before the first model call of a turn, beside what `should_compress` says."""
        return False

    def has_content_to_compress(self, messages: list[ListMessage]) -> bool:
        """False: compressing would be in vain, whatever the size."""
        return True

    def on_session_start(self, session_id: str, **kwargs: Any) -> None:  # noqa: B027  optional
        """A session begins or is taken up: `reason` is `started`, `resumed`, `compression` or `undo`.

        After a compression or its undo `session_id` is the child, and `parent` the session that it continues.
        """

    def on_session_end(self, session_id: str, messages: list[ListMessage]) -> None:  # noqa: B027  optional
        """A conversation has really ended; never after a turn, nor at a compression."""

    def on_session_reset(self) -> None:
        """`/new`: what was counted belongs to a conversation that is over."""
        self.last_prompt_tokens = self.last_completion_tokens = self.last_total_tokens = 0
        self.compression_count = 0
        self._wish = None

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Tools that the engine gives to the model: `name`, `description`, `parameters`."""
        return []

    def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """The result of one of its tools as JSON text."""
        return json.dumps({"error": f"Unknown tool: {name}"})

    def get_status(self) -> dict[str, Any]:
        """How full the window is; `usage_percent` is at most 100."""
        used = self.last_prompt_tokens * 100 / self.context_length if self.context_length > 0 else 0.0
        return {
            "last_prompt_tokens": self.last_prompt_tokens,
            "threshold_tokens": self.threshold_tokens,
            "context_length": self.context_length,
            "usage_percent": min(100.0, used),
            "compression_count": self.compression_count,
        }

    def update_model(
        self, model: str, context_length: int, base_url: str = "", api_key: str = "", provider: str = ""
    ) -> None:
        """Another model answers from now on, or the same one with another window."""
        self.context_length = context_length
        self.threshold_tokens = int(context_length * self.threshold_percent)

    # ---- what an engine may ask for; not to be overridden

    def request_compression(self, reason: str, focus_topic: str | None = None) -> None:
        """Ask for a compression before the next model call. It happens only if nothing holds compressions back."""
        self._wish = CompressionRequest(reason=reason, focus=focus_topic)

    def take_request(self) -> CompressionRequest | None:
        """The request that was made since the last look. For whoever runs the engine."""
        wish, self._wish = self._wish, None
        return wish


Summarise = Callable[[ModelRequest], ModelReply]
"""Makes one model call and waits for it. Raises the kinds of `ModelError`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    cut: Cut
    sizes: Sequence[int]


class ContextCompressor(ContextEngine):
    """The built-in engine on message lists: cut, prune, a summary by model or by rule, one handoff."""

    threshold_percent = 0.50
    protect_first_n = 3
    protect_last_n = 20

    def __init__(
        self,
        model: str = "",
        context_length: int = 128_000,
        *,
        summarise: Summarise | None = None,
        limits: LimitSettings | None = None,
        settings: CompressorSettings | None = None,
        reserved_output: int = 0,
        redact: Callable[[str], str] = default_redact,
        clock: Clock | None = None,
    ) -> None:
        """Without `summarise` the handoff is made by rule. Lengths are in tokens."""
        self._summarise = summarise
        self._limit_settings = limits or LimitSettings()
        self._settings = settings or CompressorSettings()
        self.threshold_percent = self._limit_settings.threshold
        self.protect_first_n = self._settings.cut.protect_first_n
        self.protect_last_n = self._settings.cut.protect_last_n
        self._reserved_output = reserved_output
        self._redact = redact
        self._clock = clock or SystemClock()
        self._estimator = Estimator(sizes=RowTokenCache(4_096))
        self.update_model(model, context_length)

    @property
    def name(self) -> str:
        return "compressor"

    @property
    def limits(self) -> Limits:
        """Of the model in use, from the same table as everywhere; `threshold_percent` may have been changed since."""
        reserved = min(self._reserved_output, self.context_length // 4)
        settings = replace(self._limit_settings, threshold=self.threshold_percent)
        return limits_of(self.context_length, reserved, settings)

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
        rows = self._rows(messages)
        return sum(self._sizes(rows)) >= self.threshold_tokens

    def has_content_to_compress(self, messages: list[ListMessage]) -> bool:
        return isinstance(self._plan(self._rows(messages)), _Plan)

    def compress(
        self, messages: list[ListMessage], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[ListMessage]:
        """A list with the middle in one handoff; the same messages when there is nothing to gain.

        `messages` and what is in them are not changed. `current_tokens` is taken for the log only: what is cut
        follows from sizes of messages.
        """
        rows = self._rows(messages)
        plan = self._plan(rows)
        if isinstance(plan, SkipReason):
            log.info("compression.not_needed", engine=self.name, why=plan, messages=len(messages))
            return list(messages)
        handoff = framed(escape_markers(self._text(rows, plan, focus_topic)))
        gone = sum(
            plan.sizes[place] for place in range(plan.cut.head_end, plan.cut.tail_start) if place not in plan.cut.kept
        )
        if int(self._estimator.text(handoff)) >= gone:
            log.info("compression.not_needed", engine=self.name, why=SkipReason.NOT_SMALLER, messages=len(messages))
            return list(messages)
        self.compression_count += 1
        compressed = rows.assembled(plan.cut, handoff)
        log.info(
            "compression.done",
            engine=self.name,
            tokens=current_tokens,
            messages_before=len(messages),
            messages_after=len(compressed),
        )
        return compressed

    # ---- steps

    def _rows(self, messages: Sequence[ListMessage]) -> ListRows:
        return rows_of(messages, self._clock.now())

    def _sizes(self, rows: ListRows) -> list[int]:
        style = WireSettings()
        image = int(self._estimator.calibration.image_tokens)
        return [
            int(self._estimator.rows((row,), style)) + images * image
            for row, images in zip(rows.transcript, rows.images, strict=True)
        ]

    def _plan(self, rows: ListRows) -> _Plan | SkipReason:
        sizes = self._sizes(rows)
        rules = replace(
            self._settings.cut, protect_first_n=self.protect_first_n, protect_last_n=max(1, self.protect_last_n)
        )
        cut = find_cut(rows.transcript, sizes, self.limits, rules)
        return cut if isinstance(cut, SkipReason) else _Plan(cut, sizes)

    def _text(self, rows: ListRows, plan: _Plan, focus: str | None) -> str:
        """The words of the handoff, by a model where there is one that can."""
        limits = self.limits
        upto = min(plan.cut.tail_start, max(0, len(rows.transcript) - self.protect_last_n))
        pruned = prune(rows.transcript, upto=upto, redact=self._redact, style=self._settings.prune_style).transcript
        middle, previous = rows.middle(pruned, plan.cut)
        content = sum(plan.sizes[plan.cut.head_end : plan.cut.tail_start])
        if self._summarise is not None:
            task = SummaryTask(
                rows=middle,
                previous=previous,
                focus=focus,
                target=limits.summary_tokens(content),
                input_limit=summary_input_tokens(self.context_length),
                now=self._clock.now(),
                zone=self._settings.zone,
                template=self._settings.summary_template,
            )
            try:
                request = _without_ids(summary_request(task, self._redact))
                return checked_summary(self._summarise(request), task, self._redact)
            except ModelError as error:
                log.warning("compression.summary_failed", engine=self.name, error=type(error).__name__)
        return self._recap(middle, previous, limits.summary_ceiling)

    def _recap(self, middle: Transcript, previous: str | None, limit: Tokens) -> str:
        text = recap(middle, previous, redact=self._redact, limit=limit, removed=len(middle))
        return _RECAP_ID.sub("", text)


_LINE_ID = re.compile(r"^\[m\d+ ", re.MULTILINE)
_RECAP_ID = re.compile(r"(?<=^- )m\d+: | \(m\d+\)", re.MULTILINE)


def _without_ids(request: ModelRequest) -> ModelRequest:
    """Places in a list are no ids that anybody could look up later."""
    [row] = request.transcript
    text = _LINE_ID.sub("[", row.text or "")
    return replace(request, transcript=(msgspec.structs.replace(row, text=text),))
