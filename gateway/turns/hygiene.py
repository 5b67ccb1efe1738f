"""Hygiene: the gateway's own look at a conversation, before it hands a turn to the agent.

It stands far above the agent's threshold, for conversations that have grown beyond it while no agent looked: over
night, by a switch to a smaller model, by one huge message.
"""

from agent.turn import Agent, scene_of
from hermes_state.journal import RunningTurn


async def tidy(agent: Agent, turn: RunningTurn) -> None:
    """Compress the turn's conversation if it stands at the far end of the window.

    Keeps the turn waiting for `hygiene.hold_seconds` at most where it could also begin.
    """
    await agent.context.tidy(scene_of(turn))
