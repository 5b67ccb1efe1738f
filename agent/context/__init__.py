"""Context windows: what a model sees of a conversation, and what is compressed so that it fits.

A `ContextController` keeps conversations inside the window of whatever model answers them. It measures the next prompt
(measure.py) against the limits of the model's window (limits.py), and decides when to compress; hygiene and `/compress`
ask it, too. An `Engine` prepares a compression (job.py has all its values): the built-in `Compressor` cuts the
transcript (cuts.py), prunes tool results (pruning.py), and asks a model for one summary (summary.py) or makes one by
rule (deterministic.py). A transaction commits it (commit.py); until then it is pending (pending.py). A `ModelHandle` (model_handle.py) is a model that
answers, with what is learned of it; a conversation's strikes and cooldowns are its `ContextState` (state.py).

>>> from agent.context.limits import LimitSettings, limits_of
>>> limits = limits_of(128_000, 8_000, LimitSettings())
>>> limits.threshold, limits.hygiene, limits.input_window
(64000, 108000, 120000)
>>> limits.is_over_threshold(64_500), limits.is_urgent(64_500)
(True, False)
"""
