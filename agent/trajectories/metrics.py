"""Figures of a compression: for one trajectory, and for a whole file. Tokens are estimates."""

from collections.abc import Sequence
from typing import Self

import msgspec


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    turns_before: int = 0
    turns_after: int = 0
    turns_removed: int = 0
    """Turns that the summary replaces."""
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_saved: int = 0
    ratio: float = 1.0
    """Tokens after divided by tokens before."""
    summary_calls: int = 0
    summary_errors: int = 0


class TrajectoryMetrics(_Figures, frozen=True, kw_only=True):
    """Figures of one trajectory."""

    was_compressed: bool = False
    skipped_under_target: bool = False
    """The trajectory was short enough and stays as it is."""
    still_over_limit: bool = False
    start_index: int | None = None
    """First turn that the summary replaces; None without a summary."""
    end_index: int | None = None
    """First turn after the replaced ones."""
    error: str | None = None
    """Reason why a summary that was needed is missing."""

    @classmethod
    def of(cls, before: Sequence[int], after: Sequence[int], **other: object) -> Self:
        """Return the figures for the tokens of each turn, before and after."""
        total, left = sum(before), sum(after)
        sizes = {"turns_before": len(before), "turns_after": len(after), "tokens_before": total, "tokens_after": left}
        return msgspec.convert({**sizes, "tokens_saved": total - left, "ratio": _ratio(total, left), **other}, cls)


class TrajectoryTotals(_Figures, frozen=True, kw_only=True):
    """Figures of a file. Every line is a trajectory, rejected, or blank."""

    lines: int = 0
    trajectories: int = 0
    rejected: int = 0
    blank: int = 0
    was_compressed: int = 0
    skipped_under_target: int = 0
    still_over_limit: int = 0

    def plus(self, metrics: TrajectoryMetrics) -> Self:
        """Return the figures with one more trajectory."""
        common = (set(self.__struct_fields__) & set(metrics.__struct_fields__)) - {"ratio"}
        sums = {key: getattr(self, key) + getattr(metrics, key) for key in common}
        ratio = _ratio(sums["tokens_before"], sums["tokens_after"])
        return msgspec.structs.replace(self.counted("trajectories"), **sums, ratio=ratio)

    def counted(self, kind: str) -> Self:
        """Return the figures with one more line of this kind."""
        return msgspec.structs.replace(self, **{"lines": self.lines + 1, kind: getattr(self, kind) + 1})


def _ratio(before: int, after: int) -> float:
    return round(after / before, 4) if before else 1.0
