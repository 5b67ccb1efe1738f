"""Runs one turn of a conversation: builds the prompt, calls the model and its tools, and returns the answer.

This package does not depend on any chat platform. `agent.turn.Agent` runs a turn that the gateway has opened.

- `agent.model`: calls to models of any provider
- `agent.tools`: functions that a model may call
- `agent.memory`: notes that are kept across conversations, and other files in prompts
- `agent.context`, `agent.engines`: compression, and the plugin interface for other context engines
- `agent.tokens`, `agent.handoff`, `agent.images`: token estimates, handoff messages, images
"""
