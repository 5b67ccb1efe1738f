"""What a reload can change while the daemon runs."""

from dataclasses import dataclass, field

from agent.turn import Agent
from gateway.config.settings import Config
from gateway.models.agents import Agents
from gateway.models.selection import route_of
from gateway.turns.fallbacks import FallbackState


@dataclass(slots=True)
class Runtime:
    """The configuration and the agents in force. A reload replaces both; a running turn keeps what it started with."""

    config: Config
    agents: Agents
    stand_ins: FallbackState = field(default_factory=FallbackState)

    def agent_for(self, choice: str | None) -> Agent:
        """The agent of the model that a conversation has chosen; of the configured one where that is gone."""
        route = route_of(self.config.model, choice)
        return self.agents.configured if choice is None or route is None else self.agents.of(route)
