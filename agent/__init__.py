"""Agent: one turn of a conversation, from the prompt over model calls and tools to the answer.

It knows no chat service. `agent.turn.Agent` runs a turn that the gateway has opened, and returns its answer. Around it:

- `agent.model`: calls to models of any provider
- `agent.tools`: functions that a model may call
- `agent.memory`: notes that outlive conversations, and other files in prompts
- `agent.context`, `agent.engines`: the part of a conversation in the prompt, its compression, and plugins for that
- `agent.tokens`, `agent.handoff`, `agent.images`: estimates, the message that replaces compressed ones, images
"""
