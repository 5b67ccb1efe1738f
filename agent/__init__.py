"""One turn of a conversation: the prompt, model calls, tools and the answer.

This package knows no chat service. `agent.turn.Agent` runs a turn that the gateway opened, and returns its answer.

- `agent.model`: calls to models of any provider
- `agent.tools`: functions that a model may call
- `agent.memory`: notes that outlive conversations, and other files in prompts
- `agent.context`, `agent.engines`: compression, and the plugin interface for other context engines
- `agent.tokens`, `agent.handoff`, `agent.images`: token estimates, handoff messages, images
"""
