"""How full a conversation is: the next prompt of a view, measured against the limits of the model's window."""

import asyncio
from dataclasses import dataclass, replace

from agent.context.estimate import Estimator, Size
from agent.context.learned_profile import LearnedProfile
from agent.context.limits import Limits, LimitSettings, limits_of
from agent.model.base import ModelRequest
from agent.model.sizes import SizeSource
from agent.model.wire import WireSettings
from agent.prompt import PromptBuilder
from hermes_state.compressions import count_compressions
from hermes_state.store.view_cache import ViewCache
from hermes_state.store.writer import Store
from hermes_state.transcripts import View
from hermes_state.values import ConversationRef, EstimatedTokens, LineageId, MessageId, SessionId, Tokens

KEPT_SIZES = 4_096
"""Conversations whose size is remembered: a few hundred bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """A view, the model call that it makes, what that takes, and the limits that held when it was measured."""

    view: View
    request: ModelRequest
    size: Size
    estimated: EstimatedTokens
    limits: Limits
    """The conversation's: the model's, unless a smaller window is assumed for it."""
    model_limits: Limits
    """The model's: what is larger than its window is not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStatus:
    """How full a conversation is."""

    prompt: EstimatedTokens
    fixed: EstimatedTokens
    """Of the prompt, what no compression shortens: the system prompt and the tools' schemas."""
    limits: Limits
    window_from: SizeSource
    """Who says how large the window is."""
    threshold: Tokens
    """Where it is compressed by itself."""
    compressions: int

    @property
    def is_crowded(self) -> bool:
        """What cannot shrink takes half of the room before a compression, or more."""
        return self.fixed * 2 >= self.threshold


@dataclass(frozen=True, slots=True)
class _RowsSize:
    """The size of a view's rows, without the rows."""

    session_id: SessionId
    version: int
    last_id: MessageId
    rows: int
    style: WireSettings
    size: Size

    def is_beginning_of(self, view: View, style: WireSettings) -> bool:
        """Whether the view begins with just these rows, shown in the same way."""
        session, rows = view.session, view.transcript
        is_same = (self.session_id, self.version, self.style) == (session.id, session.version, style)
        return is_same and len(rows) >= self.rows and rows[self.rows - 1].id == self.last_id


class PromptMeasure:
    """Measures conversations for one model."""

    def __init__(
        self,
        *,
        store: Store,
        views: ViewCache,
        prompts: PromptBuilder,
        profiles: LearnedProfile,
        settings: LimitSettings,
    ) -> None:
        self._store = store
        self._views = views
        self._prompts = prompts
        self._settings = settings
        self.profiles = profiles
        self._measured: dict[LineageId, _RowsSize] = {}

    @property
    def estimator(self) -> Estimator:
        return self.profiles.estimator

    @property
    def limits(self) -> Limits:
        """The model's, as they are now: a learned window moves all of them."""
        return self._limits_of(self.profiles.window)

    def limits_for(self, lineage_id: LineageId) -> Limits:
        """A conversation's: the model's, unless a smaller window is assumed for it."""
        return self._limits_of(self.profiles.window_for(lineage_id))

    def _limits_of(self, window: Tokens) -> Limits:
        return limits_of(window, self.profiles.capacity.output_in(window), self._settings)

    async def load(self, conversation: ConversationRef) -> MeasuredPrompt:
        """The conversation as it is stored now."""
        return await self.measure(conversation, await self._views.load(conversation.lineage_id))

    async def measure(self, conversation: ConversationRef, view: View) -> MeasuredPrompt:
        """A view that is known."""
        await self.profiles.load()
        if view.session.model not in (None, self.profiles.model):  # another model's count says nothing here
            view = replace(view, session=replace(view.session, reported_prompt_tokens=None))
        limits = self.limits
        request = await self._prompts.request_for(
            conversation,
            view,
            input_window=limits.input_window,
            max_output_tokens=Tokens(limits.context_length - limits.input_window),
        )
        size = self.estimator.fixed_size(request) + await self._rows_size(conversation, view, request)
        return MeasuredPrompt(
            view=view,
            request=request,
            size=size,
            estimated=self.estimator.prompt(view, request, size),
            limits=self.limits_for(conversation.lineage_id),
            model_limits=limits,
        )

    def refreshed(self, prompt: MeasuredPrompt) -> MeasuredPrompt:
        """The same prompt with the limits that hold now, after a window was learned or assumed."""
        return replace(prompt, limits=self.limits_for(prompt.view.session.lineage_id), model_limits=self.limits)

    async def _rows_size(self, conversation: ConversationRef, view: View, request: ModelRequest) -> Size:
        """The rows' size: of a view that has only grown since it was measured, only what is new is looked at."""
        rows, style, estimator = request.transcript, request.style, self.estimator
        known = self._measured.get(conversation.lineage_id)
        start, size = 0, Size(0, 0)
        if known is not None and known.is_beginning_of(view, style):
            start, size = known.rows, known.size
        if estimator.is_quick(request) or start:
            size += estimator.rows_size(rows[start:], style)
        else:
            size = await asyncio.to_thread(estimator.rows_size, rows, style)
        if len(self._measured) >= KEPT_SIZES:
            self._measured.clear()
        if rows and not style.image_urls:
            session = view.session
            seen = _RowsSize(session.id, session.version, rows[-1].id, len(rows), style, size)
            self._measured[conversation.lineage_id] = seen
        return size

    async def standing(self, conversation: ConversationRef) -> ContextStatus:
        """What people are told when they ask how full their conversation is."""
        prompt = await self.load(conversation)
        return ContextStatus(
            prompt=prompt.estimated,
            fixed=self.estimator.whole(replace(prompt.request, transcript=())),
            limits=prompt.limits,
            window_from=self.profiles.source_for(conversation.lineage_id),
            threshold=prompt.limits.threshold,
            compressions=await self._store.read(count_compressions, conversation.lineage_id),
        )
