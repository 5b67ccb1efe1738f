"""Context windows: the part of a conversation that a model sees, and the compression that makes it fit.

A `ContextController` keeps conversations inside the windows of their models. It measures the next prompt (measure.py),
compares it with the limits (limits.py), and decides when to compress. An `Engine` prepares a compression (job.py). The
built-in `Compressor` cuts the transcript (cuts.py), prunes tool results (pruning.py), and asks a model for a summary
(summary.py) or builds a record without a model (deterministic.py). A compression is pending (pending.py) until a
transaction commits it (commit.py). `ModelHandle` is a model with everything that the gateway has learned about it.
`ContextState` stores strikes (useless compressions) and cooldowns (pauses after failures).

>>> from agent.context.limits import LimitSettings, limits_of
>>> limits = limits_of(128_000, 8_000, LimitSettings())
>>> limits.threshold, limits.hygiene, limits.input_window
(64000, 108000, 120000)
>>> limits.is_over_threshold(64_500), limits.is_urgent(64_500)
(True, False)
"""
