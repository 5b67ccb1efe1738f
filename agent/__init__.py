"""Runs one turn of a conversation: builds the prompt, calls the model and its tools, and returns the answer.

This package does not depend on any chat platform. `agent.turn.Agent` runs a turn that the gateway has opened.

- `agent.model`: calls to models from any provider
- `agent.tools`: functions that a model can call
- `agent.memory`: long-term memory, and the other files whose text is added to prompts
- `agent.context`, `agent.engines`: compression, and the plugin interface for other context engines
- `agent.model.usage`: token estimates
- `agent.handoff`: messages that contain the summary of earlier messages
- `agent.images`: images in prompts
"""
