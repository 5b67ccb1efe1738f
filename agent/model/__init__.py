"""Model calls: one protocol for every model, and a client that retries, counts and caps them.

A `ChatModel` (base.py) is a model at the end of a route, such as `protocols.chat_completions.ChatCompletionsModel`. It
takes a `ModelRequest`, which holds stored rows (wire.py renders them), and gives a `ModelReply` or raises a kind of
`hermes_state.errors.ModelError`. Callers use it through a `ModelClient` (client.py), which repeats a call as its
`RetryPolicy` and the table in errors.py allow, checks the spending caps, writes failed attempts into the `Ledger`,
prices the call (usage.py, prices.py), and knows by its `CircuitBreaker` when a route is better left alone.
`errors.sentence_for` says to the person what went wrong.

>>> import asyncio
>>> from agent.model.base import ModelRequest
>>> from agent.model.protocols.offline import OfflineModel
>>> request = ModelRequest(system="You are Hermes.", transcript=(), max_output_tokens=None)
>>> reply = asyncio.run(OfflineModel(pause_seconds=0.0).complete(request, on_text=lambda text: None))
>>> reply.finish.value, reply.calls
('stop', ())
"""
