"""What a call costs."""

from dataclasses import dataclass

from hermes_state.values import CanonicalUsage, MicroUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one model: US dollars for a million tokens, which is the same as millionths of a dollar for one."""

    input: float
    output: float
    """Reasoning is paid as output."""
    cache_read: float
    cache_write: float


def cost_of(usage: CanonicalUsage, price: Price | None) -> MicroUsd | None:
    """What a call with this usage costs, rounded up; None where the price is not known."""
    if price is None:
        return None
    exact = (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
    )
    return MicroUsd(int(-(-exact // 1)))
