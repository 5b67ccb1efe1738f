"""Agent: one turn of a conversation, from the prompt over model calls and tools to the answer.

Knows no chat service and writes no reply. `Agent.run` takes a turn that the gateway has opened, builds the prompt,
calls the model, runs the tools it asks for, and returns an `Answer`. Around it:

- `agent.model`: calls to models, whatever the provider
- `agent.tools`: functions that a model may call
- `agent.memory`: notes that outlive conversations, and other files that join a prompt
- `agent.context`: what of a conversation fits into the prompt, and its compression
- `agent.engines`: plugins that compress in another way
- `agent.tokens`, `agent.handoff`, `agent.images`: estimates, the message that stands for what was compressed, images
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.turn import Agent, Answer

__all__ = ["Agent", "Answer"]


def __getattr__(name: str) -> object:
    if name in __all__:  # imported when it is asked for: the command line starts without
        return getattr(import_module("agent.turn"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
