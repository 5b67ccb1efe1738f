"""Hygiene: the gateway's own check of a conversation, before it hands a turn to the agent.

It acts at 85 % of the context window (`hygiene.threshold`), far above the agent's own threshold, for conversations that
have grown beyond that while no agent looked: over night, by a switch to a smaller model, by one huge message. A
conversation of very many messages (5,000) is compressed whatever its size.
"""

from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import ModelHandle
from agent.turn import Agent
from hermes_state.turns import RunningTurn

MIN_HYGIENE_MESSAGES = 4
"""Messages below which a conversation is left to the agent, however large they are."""


async def check(agent: Agent, turn: RunningTurn, model: ModelHandle) -> MeasuredPrompt | None:
    """Compress the turn's conversation if it stands at the far end of the window.

    Returns the prompt that was measured, for the turn to begin with; None where the conversation may have changed.
    Keeps the turn waiting for at most 10 seconds where it could also begin.
    """
    context, conversation = agent.context, turn.conversation
    prompt = await context.measure(conversation, model)
    messages, limit = len(prompt.view.transcript), model.context.hard_message_limit
    is_large = messages >= MIN_HYGIENE_MESSAGES and prompt.estimated >= prompt.limits.hygiene
    if not (is_large or messages >= limit) or context.pending.is_pending(conversation.lineage_id):
        return prompt
    await context.compress_before_turn(prompt, message_limit=None if is_large else limit)
    return None
