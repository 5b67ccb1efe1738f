"""What a reload can change while the daemon runs."""

from dataclasses import dataclass

from agent.turn import Agent
from gateway.config.settings import Config


@dataclass(slots=True)
class Live:
    """The configuration and the agent in force. A reload replaces both; a running turn keeps what it started with."""

    config: Config
    agent: Agent
