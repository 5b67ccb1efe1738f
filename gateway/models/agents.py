"""The agents of all models in use: one for each, made when its model is first chosen.

They share what belongs to conversations and not to a model: the store, the views, the drafts that are on their way.
"""

from collections.abc import Callable

from agent.model.client import ModelClient, OpenCircuit
from agent.turn import Agent
from gateway.config.routes import RouteConfig


class Agents:
    """See the module. A change of the configuration brings another set, which follows this one."""

    def __init__(
        self,
        configured: RouteConfig,
        make: Callable[[RouteConfig], Agent],
        line_of: Callable[[RouteConfig], ModelClient] | None = None,
    ) -> None:
        """`configured`: the route of `model`, whose agent is made at once. Raises what `make` raises for it.

        `line_of`: the line to any model, for what is asked of one without an agent; by default that of its agent.
        """
        self._make = make
        self.line_of = line_of or (lambda route: self.of(route).line)
        self.configured = make(configured)
        self._made = {configured: self.configured}

    def of(self, route: RouteConfig) -> Agent:
        """The agent that speaks to the model of a route. Raises `ConfigError` where it cannot be made."""
        agent = self._made.get(route)
        if agent is None:
            agent = self._made[route] = self._make(route)
            agent.context.follow(self.configured.context)
        return agent

    def rest_of(self, route: RouteConfig) -> OpenCircuit | None:
        """Whether a route is left alone for now; one that nobody has used yet is not."""
        agent = self._made.get(route)
        return agent.line.breaker.open if agent is not None else None

    def in_use(self) -> list[tuple[RouteConfig, Agent]]:
        """Those that were made so far, the configured one first."""
        return list(self._made.items())

    def follow(self, before: "Agents") -> None:
        """Take over the conversations of agents with other settings; turns that run may still use those."""
        for agent in self._made.values():
            agent.context.follow(before.configured.context)

    async def close(self) -> None:
        """Give up what is still being written."""
        for agent in self._made.values():
            await agent.close()
