"""How much of a random world a run sees: a sample under `make test`, far more under `make fuzz`."""

import hypothesis

# Without deadlines: how long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("fuzz", hypothesis.settings.get_profile("default"), max_examples=20_000)
hypothesis.settings.load_profile("default")

FUZZ_SECONDS = 0
"""Timeout of a test under `make fuzz`, in seconds: none."""


def sample(few: int, many: int) -> int:
    """Number of random cases of a test: `few` under `make test`, `many` under `make fuzz`."""
    return many if hypothesis.settings().max_examples >= 20_000 else few
