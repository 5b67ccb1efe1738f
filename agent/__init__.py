"""Runs one turn of a conversation: builds the prompt, calls the model and its tools, and returns the answer.

This package does not depend on any chat platform. `agent.turn.Agent` runs a turn that the gateway has opened.

- `agent.model`: calls to models from any provider
- `agent.tools`: functions that a model can call
- `agent.memory`: notes that outlive a conversation, and other files that prompts contain
- `agent.context`, `agent.engines`: compression, and the plugin interface for other context engines
- `agent.model.usage`, `agent.handoff`, `agent.images`: token estimates, handoff messages, images
"""
