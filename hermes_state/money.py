"""Money as people read it."""

from hermes_state.values import MicroUsd

MICROS = 1_000_000
"""In a dollar."""


def dollars(amount: MicroUsd) -> str:
    """`$12.34`; small amounts keep two digits that say something: `$0.0042`. Nothing that was spent reads as none."""
    value = amount / MICROS
    if amount == 0 or abs(value) >= 0.995:
        return f"${value:,.2f}"
    if abs(value) >= 0.0995:
        return f"${value:.3f}"
    return f"${value:.4f}" if abs(value) >= 0.0001 else "<$0.0001"


def micro_usd(value: float) -> MicroUsd:
    """From dollars."""
    return MicroUsd(round(value * MICROS))
