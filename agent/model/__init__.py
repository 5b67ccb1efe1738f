"""Model calls: one interface for all models, and a client that retries calls, tracks costs and enforces spending caps.

A `ChatModel` (base.py), such as `protocols.chat_completions.ChatCompletionsModel`, accepts a `ModelRequest` with
message rows, which wire.py renders. It returns a `ModelReply` or raises a `hermes_state.errors.ModelError`.

A `ModelClient` (client.py) checks the spending caps and retries calls as `RetryPolicy` and `errors.REMEDIES` allow. It
calculates costs (usage.py, catalog.py), records failures in the `Ledger`, and has a `CircuitBreaker`.
`errors.sentence_for` turns an error into a message for the user.

>>> import asyncio
>>> from agent.model.base import ModelRequest
>>> from agent.model.protocols.offline import OfflineModel
>>> request = ModelRequest(system="You are Hermes.", transcript=(), max_output_tokens=None)
>>> reply = asyncio.run(OfflineModel(pause_seconds=0.0).complete(request, on_text=lambda text: None))
>>> reply.finish.value, reply.calls
('stop', ())
"""
