"""Model calls: one protocol for every model, and a client that retries, counts and caps them.

A `ChatModel` (base.py), such as `protocols.chat_completions.ChatCompletionsModel`, takes a `ModelRequest` with stored
rows (wire.py renders them), and returns a `ModelReply` or raises a `hermes_state.errors.ModelError`. A `ModelClient`
(client.py) repeats calls as `RetryPolicy` and `errors.REMEDIES` allow, checks the spending caps, records failures in
the `Ledger`, prices calls (usage.py, catalog.py), and has a `CircuitBreaker`. `errors.sentence_for` tells the person.

>>> import asyncio
>>> from agent.model.base import ModelRequest
>>> from agent.model.protocols.offline import OfflineModel
>>> request = ModelRequest(system="You are Hermes.", transcript=(), max_output_tokens=None)
>>> reply = asyncio.run(OfflineModel(pause_seconds=0.0).complete(request, on_text=lambda text: None))
>>> reply.finish.value, reply.calls
('stop', ())
"""
