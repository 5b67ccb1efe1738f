"""How full a conversation is: the next prompt of a view, measured against the limits of the model's window."""

import asyncio
from dataclasses import dataclass, replace
from typing import Protocol

from agent.context.estimate import Estimator
from agent.context.events import Scene
from agent.context.limits import Limits, LimitSettings, limits_of
from agent.context.profiles import ProfileBook
from agent.model.base import ModelRequest
from hermes_state.lineage import count_compressions
from hermes_state.store import Store
from hermes_state.transcripts import View
from hermes_state.values import EstimatedTokens, Tokens
from hermes_state.views import ViewCache


class Prompts(Protocol):
    """Who makes the prompts that have to fit."""

    async def request_for(self, scene: Scene, view: View) -> ModelRequest:
        """The next model call for this view."""

    def system_for(self, scene: Scene) -> str:
        """The system prompt as it would be assembled today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A view, the model call that it makes, and what that takes."""

    view: View
    request: ModelRequest
    estimated: EstimatedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How full a conversation is."""

    prompt: EstimatedTokens
    fixed: EstimatedTokens
    """Of the prompt, what no compression shortens: the system prompt and the tools' schemas."""
    limits: Limits
    compressions: int

    @property
    def is_crowded(self) -> bool:
        """What cannot shrink takes half of the room before a compression, or more."""
        return self.fixed * 2 >= self.limits.threshold


class Rooms:
    """Measures conversations for one model."""

    def __init__(
        self,
        *,
        store: Store,
        views: ViewCache,
        prompts: Prompts,
        profiles: ProfileBook,
        reserved_output: Tokens,
        settings: LimitSettings,
    ) -> None:
        self._store = store
        self._views = views
        self._prompts = prompts
        self._reserved_output = reserved_output
        self._settings = settings
        self.profiles = profiles

    @property
    def estimator(self) -> Estimator:
        return self.profiles.estimator

    @property
    def limits(self) -> Limits:
        """As they are now: a learned window moves all of them."""
        window = self.profiles.window
        return limits_of(window, min(self._reserved_output, window // 4), self._settings)

    async def load(self, scene: Scene) -> Room:
        """The conversation as it is stored now."""
        return await self.measure(scene, await self._views.load(scene.lineage_id))

    async def measure(self, scene: Scene, view: View) -> Room:
        """A view that is known."""
        await self.profiles.load()
        if view.session.model not in (None, self.profiles.model):  # another model's count says nothing here
            view = replace(view, session=replace(view.session, reported_prompt_tokens=None))
        request = await self._prompts.request_for(scene, view)
        estimator = self.estimator
        if estimator.is_quick(request):
            estimated = estimator.prompt(view, request)
        else:
            estimated = await asyncio.to_thread(estimator.prompt, view, request)
        return Room(view=view, request=request, estimated=estimated)

    async def standing(self, scene: Scene) -> Standing:
        """What people are told when they ask how full their conversation is."""
        room = await self.load(scene)
        return Standing(
            prompt=room.estimated,
            fixed=self.estimator.whole(replace(room.request, transcript=())),
            limits=self.limits,
            compressions=await self._store.read(count_compressions, scene.lineage_id),
        )
