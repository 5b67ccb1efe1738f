"""`ContextCompressor`: the built-in compression as an engine for message lists.

A list becomes rows, the steps of `agent.context` work on them as they do on stored ones, and what they leave becomes a
list again. The rows exist for one call only: their ids are numbers in the list, which nobody can look up, so they are
kept out of every text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from agent.context.cuts import Cut, SkipReason, find_cut, middle_of
from agent.context.deterministic import deterministic_summary
from agent.context.estimate import Estimator
from agent.context.limits import CutSettings, Limits, LimitSettings, limits_of, summary_input_tokens
from agent.context.pruning import prune
from agent.context.summary import SummaryJob, asking_row, checked_summary, summary_request
from agent.engines.contract import ContextEngine, ListMessage
from agent.engines.mapping import INSTRUCTING, call_ids, text_of
from agent.handoff import END_MARKER, escape_markers, framed, unframed
from agent.model.base import ModelReply, ModelRequest
from agent.model.wire import WireSettings, traced_messages
from agent.tokens import RowTokenCache
from hermes_state.errors import ModelError
from hermes_state.redaction import redact
from hermes_state.values import (
    Image,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SystemClock,
    ToolCall,
    Transcript,
)

log = structlog.get_logger()

SIZES_KEPT = 4_096
"""Rows whose sizes are remembered, in rows."""


class ContextCompressor(ContextEngine):
    """The built-in engine on message lists: cut, prune, a summary by model or a deterministic one, one handoff."""

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
        """`summarise`: one model call that is waited for, which raises the kinds of `ModelError`.

        Without it the summary is deterministic. `context_length` is in tokens.
        """
        self._summarise = summarise
        self._estimator = Estimator(sizes=RowTokenCache(SIZES_KEPT))
        self.update_model(model, context_length)

    @property
    def name(self) -> str:
        return "compressor"

    @property
    def limits(self) -> Limits:
        """Limits of the model in use, from the same table as everywhere; `threshold_percent` may have changed since."""
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
        """A list with the middle in one handoff; the same messages when there is nothing to gain.

        `messages` and what is in them are not changed. `current_tokens` is taken for the log only: what is cut
        follows from sizes of messages.
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

    def _sizes(self, rows: "ListTranscript") -> list[int]:
        return self._estimator.each(rows.transcript, _STYLE)

    def _cut(self, rows: "ListTranscript", sizes: Sequence[int]) -> Cut | SkipReason:
        rules = CutSettings(protect_first_n=self.protect_first_n, protect_last_n=max(1, self.protect_last_n))
        return find_cut(rows.transcript, sizes, self.limits, rules)

    def _summary(self, rows: "ListTranscript", cut: Cut, content: int, focus: str | None) -> str:
        """The text of the handoff for a middle of `content` tokens, by a model where there is one that can."""
        limits = self.limits
        upto = min(cut.tail_start, max(0, len(rows.transcript) - self.protect_last_n))
        pruned, _ = prune(rows.transcript, upto=upto, redact=redact)
        middle, earlier = middle_of(pruned, cut)
        previous = earlier.text if earlier is not None else None
        if self._summarise is not None:
            job = SummaryJob(
                rows=middle,
                previous=previous,
                focus=focus,
                target=limits.summary_tokens(content),
                input_limit=summary_input_tokens(self.context_length),
                now=SystemClock().now(),
            )
            try:
                request = _without_ids(summary_request(job, redact))
                return checked_summary(self._summarise(request), job, redact)
            except ModelError as error:
                log.warning("compression.summary_failed", engine=self.name, error=type(error).__name__)
        removed, limit = len(middle), limits.summary_ceiling
        text = deterministic_summary(middle, previous, redact=redact, limit=limit, removed=removed)
        return _ID_IN_RECAP.sub("", text)


# ---- a list as rows, and back


@dataclass(frozen=True, slots=True)
class ListTranscript:
    """A message list as rows, each with the message that it was made from."""

    instructions: list[ListMessage] = field(default_factory=list)
    """Messages that come first and are never compressed."""
    rows: list[Message] = field(default_factory=list)
    originals: dict[MessageId, ListMessage] = field(default_factory=dict)

    @property
    def transcript(self) -> Transcript:
        return tuple(self.rows)

    def compressed(self, cut: Cut, summary: str) -> list[ListMessage]:
        """Head, handoff, what is open, tail: in the order and with the roles that the wire gives them."""
        handoff = msgspec.structs.replace(asking_row(summary, Millis(0)), origin=Origin.SUMMARY)
        head = _without_handoffs(self.rows[: cut.head_end])
        tail = _without_handoffs([*(self.rows[index] for index in cut.kept), *self.rows[cut.tail_start :]])
        traced = traced_messages("", (*head, handoff, *tail), WireSettings())
        messages = list(self.instructions)
        for message, sources in zip(traced.messages, traced.sources, strict=True):
            messages += self._as_given(message, sources)
        return messages

    def _as_given(self, message: ListMessage, sources: Sequence[Message]) -> list[ListMessage]:
        """The given messages in place of the one that the wire makes of them.

        A handoff begins the user message that follows it. Where the wire had to make up a result, or another id for a
        call, its own message stays.
        """
        given: list[ListMessage] = []
        for row in sources:
            if row.origin is Origin.SUMMARY:
                given.append({"role": message["role"], "content": framed(row.text or "")})
                continue
            original = self.originals[row.id]
            follows_handoff = sources[0].origin is Origin.SUMMARY and row is sources[1]
            if follows_handoff and message["role"] == original["role"]:
                handoff, content = given[0]["content"], original.get("content")
                parts = [{"type": "text", "text": handoff}, *content] if isinstance(content, list) else []
                given = [{**original, "content": parts or f"{handoff}\n\n{content or ''}"}]
            else:
                given.append(original)
        return given if given and _ids(given[-1]) == _ids(message) else [message]


def _without_handoffs(rows: Sequence[Message]) -> list[Message]:
    return [row for row in rows if row.origin is not Origin.SUMMARY]


def rows_of(messages: Sequence[ListMessage]) -> ListTranscript:
    """A list of any provenance as rows; what is no message is left out. Lists know no times: all is of now."""
    rows, now = ListTranscript(), SystemClock().now()
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role in INSTRUCTING and not rows.rows:
            rows.instructions.append(message)
        elif role is not None:
            for row, original in _rows(message, now):
                row = msgspec.structs.replace(row, id=MessageId(len(rows.rows) + 1), seq=len(rows.rows) + 1)
                rows.rows.append(row)
                rows.originals[row.id] = original
    return rows


def _rows(message: ListMessage, now: Millis) -> Iterator[tuple[Message, ListMessage]]:
    """One row, or two for a handoff that stands in one message with what people said after it."""
    role = message["role"]
    if role in ("user", "assistant") and not call_ids(message):
        handoff, rest = _split(message.get("content"))
        text = unframed(handoff)
        if text is not None:
            yield _row(text, now, origin=Origin.SUMMARY), {**message, "content": handoff}
            if not rest:
                return
            message = {**message, "content": rest}
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    images = sum(isinstance(part, dict) and "image" in str(part.get("type", "")) for part in parts)
    text, body = text_of(content), MessageBody(calls=tuple(_calls(message)), images=(_IMAGE,) * images)
    if role == "assistant":
        yield _row(text, now, body=body, role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT), message
    elif role == "tool":
        call_id = str(message.get("tool_call_id") or "")
        yield _row(text, now, body=body, role=MessageRole.TOOL, origin=Origin.TOOL, tool_call_id=call_id), message
    else:
        is_said = role == "user" and bool(text.strip() or images)  # a blank message asks for nothing
        yield _row(text, now, body=body, origin=Origin.HUMAN if is_said else Origin.SYSTEM), message


def _split(content: object) -> tuple[str, Any]:
    """A handoff, and what stands behind its end in the same message."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    end = next((index for index, part in enumerate(parts) if END_MARKER in text_of([part])), None)
    if end is None:
        return text_of(content), None
    before, _, behind = str(parts[end]["text"]).partition(END_MARKER)
    handoff = "\n".join([*(text_of([part]) for part in parts[:end]), before]) + END_MARKER
    behind = behind.removeprefix("\n\n")
    if not isinstance(content, list):
        return handoff, behind
    return handoff, [*([{**parts[end], "text": behind}] if behind else []), *parts[end + 1 :]]


def _row(text: str, now: Millis, **changes: Any) -> Message:
    return msgspec.structs.replace(asking_row(text, now), **changes)


def _calls(message: ListMessage) -> Iterator[ToolCall]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            function = call.get("function")
            named = function if isinstance(function, dict) else {}
            name, arguments = str(named.get("name") or ""), str(named.get("arguments") or "")
            yield ToolCall(id=str(call.get("id") or ""), name=name, arguments=arguments)


def _ids(message: ListMessage) -> object:
    return call_ids(message) or message.get("tool_call_id")


_IMAGE = Image(attachment_id=0, mime="", path="")
_STYLE = WireSettings(image_urls={_IMAGE.attachment_id: ""})

# ---- ids under which nothing can be looked up

_ID_IN_REQUEST = re.compile(
    r"(?<=^\[)m\d+ "
    r"|(?<=\[pruned) m\d+(?=: )|(?<=: the same result) as m\d+(?=, which came later\])|; history_open reads them(?=\])",
    re.MULTILINE,
)
_ID_IN_RECAP = re.compile(r"(?<=^- )m\d+: | \(m\d+\)", re.MULTILINE)


def _without_ids(request: ModelRequest) -> ModelRequest:
    [row] = request.transcript
    text = _ID_IN_REQUEST.sub("", row.text or "")
    return replace(request, transcript=(msgspec.structs.replace(row, text=text),))
