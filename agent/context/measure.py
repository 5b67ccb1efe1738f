"""Measures prompts and compares their size with the limits of the model's window."""

import asyncio

import msgspec
from msgspec.structs import replace

from agent.context.estimate import Estimator
from agent.context.limits import Limits
from agent.context.model_handle import ModelHandle
from agent.context.state import state_of
from agent.model.base import ModelRequest
from agent.model.catalog import SizeSource
from agent.model.usage import Size, fixed_tokens
from agent.model.wire import WireStyle
from agent.prompt import PromptBuilder
from hermes_state.errors import ContextOverflow
from hermes_state.transcripts import View, ViewCache
from hermes_state.values import (
    ConversationRef,
    EstimatedTokens,
    LineageId,
    MessageId,
    ReportedTokens,
    SessionId,
    Tokens,
)


class MeasuredPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A view, the model request made from it, the size of the request, and the limits at that time."""

    conversation: ConversationRef
    view: View
    request: ModelRequest
    size: Size
    estimated: EstimatedTokens
    limits: Limits
    """Limits of the conversation: those of the model, or lower ones while a smaller window is assumed."""
    model_limits: Limits
    """Limits of the model. A prompt larger than its window is not sent."""
    model: ModelHandle

    @property
    def held_back(self) -> str | None:
        """Reason why automatic compression is held back, or None if it is not."""
        state = state_of(self.view.session.context_state)
        if not self.model.context.enabled:
            return "it is switched off (`compression.enabled`)"
        if state.is_blocked:
            return "the last compressions did not help; the next one runs when a prompt does not fit the input window"
        undone = "a person undid the last compression; the next one runs when a prompt does not fit"
        return undone if state.held_at else None

    def with_style(self, style: WireStyle) -> "MeasuredPrompt":
        request, estimator = replace(self.request, style=style), self.model.profile.estimator
        size = estimator.size(request)
        return replace(self, request=request, size=size, estimated=estimator.prompt(self.view, request, size))

    async def learn_refusal(self, error: ContextOverflow) -> "MeasuredPrompt":
        """Learn the window from a provider's refusal, and return the prompt with the new limits."""
        lineage_id, profile = self.conversation.lineage_id, self.model.profile
        counted = None if error.prompt_tokens is None else ReportedTokens(error.prompt_tokens)
        if counted is not None:
            await profile.learn(self.request, counted, self.view, self.size, was_accepted=False)
        if error.window is not None and error.is_of_account:
            profile.assume_stated(lineage_id, error.window)
        elif error.window is not None:
            is_counted = counted is not None and counted > error.window and self.estimated <= counted * 2
            is_of_input = error.is_of_input
            await profile.learn_window(lineage_id, error.window, is_of_input=is_of_input, is_counted=is_counted)
        elif not (self.size.images or self.model_limits.is_urgent(self.estimated)):
            # Do not guess if images may have had too many bytes, or if the prompt is close to the known limit.
            refused = self.estimated if counted is None else counted
            profile.assume_window(lineage_id, refused, self.view.session.reported_prompt_tokens)
        return replace(self, limits=self.model.limits_for(lineage_id), model_limits=self.model.limits)


class ContextStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a conversation's prompt, and its limits."""

    prompt: EstimatedTokens
    fixed: EstimatedTokens
    """Part of the prompt that compression cannot shorten: the system prompt and the tool schemas."""
    limits: Limits
    window_from: SizeSource
    threshold: Tokens
    compressions: int

    @property
    def is_crowded(self) -> bool:
        """True if the fixed part takes up at least half of the threshold."""
        return self.fixed * 2 >= self.threshold


class _RowsSize(msgspec.Struct, frozen=True):
    session_id: SessionId
    version: int
    next_view_seq: int
    last_id: MessageId
    rows: int
    style: WireStyle
    size: Size

    def is_beginning_of(self, view: View, style: WireStyle) -> bool:
        session, rows = view.session, view.transcript
        is_same = (self.session_id, self.version, self.next_view_seq) == (
            session.id,
            session.version,
            session.next_view_seq,
        )
        return is_same and self.style == style and len(rows) >= self.rows and rows[self.rows - 1].id == self.last_id


class MeasuredPromptBuilder:
    """Builds the next prompt of a conversation and measures it for its model."""

    def __init__(self, *, views: ViewCache, prompts: PromptBuilder) -> None:
        self._views = views
        self._prompts = prompts
        self._measured: dict[LineageId, _RowsSize] = {}

    async def load(self, conversation: ConversationRef, model: ModelHandle) -> MeasuredPrompt:
        return await self.measure(conversation, model, await self._views.load(conversation.lineage_id))

    async def measure(self, conversation: ConversationRef, model: ModelHandle, view: View) -> MeasuredPrompt:
        await model.profile.load()
        if view.session.model not in (None, model.profile.model):  # another model's count cannot be used
            view = replace(view, session=msgspec.structs.replace(view.session, reported_prompt_tokens=None))
        limits, estimator = model.limits, model.profile.estimator
        request = await self._prompts.request_for(
            conversation,
            view,
            maker=model.maker,
            images=model.images,
            input_window=limits.input_window,
            threshold=limits.threshold,
        )
        size = Size(fixed_tokens(request), 0) + await self._rows_size(conversation, view, request, estimator)
        estimated = estimator.prompt(view, request, size)
        return MeasuredPrompt(
            conversation=conversation,
            view=view,
            request=replace(request, max_output_tokens=model.output_limit(estimated, conversation.lineage_id)),
            size=size,
            estimated=estimated,
            limits=model.limits_for(conversation.lineage_id),
            model_limits=limits,
            model=model,
        )

    async def _rows_size(
        self, conversation: ConversationRef, view: View, request: ModelRequest, estimator: Estimator
    ) -> Size:
        rows, style = request.transcript, request.style
        known = self._measured.get(conversation.lineage_id)
        start, size = 0, Size(0, 0)
        if known is not None and known.is_beginning_of(view, style):
            start, size = known.rows, known.size
        if estimator.is_quick(request) or start:
            size += estimator.rows_size(rows[start:], style)
        else:
            size = await asyncio.to_thread(estimator.rows_size, rows, style)
        if len(self._measured) >= 4_096:  # a few hundred bytes per conversation
            self._measured.clear()
        if rows and not style.image_urls:
            session = view.session
            seen = _RowsSize(session.id, session.version, session.next_view_seq, rows[-1].id, len(rows), style, size)
            self._measured[conversation.lineage_id] = seen
        return size
