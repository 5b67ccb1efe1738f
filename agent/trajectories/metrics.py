"""Figures of what compressing trajectories has changed: of one, and of a whole file."""

from collections.abc import Sequence
from typing import Self

import msgspec


class TrajectoryMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one trajectory. Tokens are estimates."""

    turns_before: int
    turns_after: int
    tokens_before: int
    tokens_after: int
    was_compressed: bool = False
    skipped_under_target: bool = False
    """It was short enough, and is as it was."""
    still_over_limit: bool = False
    start_index: int | None = None
    """First turn that the summary stands for; None where there is none."""
    end_index: int | None = None
    """First turn behind those."""
    turns_removed: int = 0
    """Turns that the summary stands for."""
    tokens_saved: int = 0
    ratio: float = 1.0
    """Tokens after over tokens before."""
    summary_calls: int = 0
    summary_errors: int = 0
    error: str | None = None
    """Reason for which there is no summary, though one was wanted."""

    @classmethod
    def of(cls, before: Sequence[int], after: Sequence[int], **other: object) -> Self:
        """Figures by the tokens of each turn, before and after."""
        total, left = sum(before), sum(after)
        sizes = {"turns_before": len(before), "turns_after": len(after), "tokens_before": total, "tokens_after": left}
        return msgspec.convert({**sizes, "tokens_saved": total - left, "ratio": _ratio(total, left), **other}, cls)


class TrajectoryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a file: every line is a trajectory, rejected, or blank."""

    lines: int = 0
    trajectories: int = 0
    rejected: int = 0
    blank: int = 0
    was_compressed: int = 0
    skipped_under_target: int = 0
    still_over_limit: int = 0
    turns_before: int = 0
    turns_after: int = 0
    turns_removed: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_saved: int = 0
    ratio: float = 1.0
    summary_calls: int = 0
    summary_errors: int = 0

    def plus(self, metrics: TrajectoryMetrics) -> Self:
        """The figures with those of one more trajectory."""
        common = (set(self.__struct_fields__) & set(metrics.__struct_fields__)) - {"ratio"}
        sums = {key: getattr(self, key) + getattr(metrics, key) for key in common}
        return msgspec.structs.replace(
            self.counted("trajectories"), **sums, ratio=_ratio(sums["tokens_before"], sums["tokens_after"])
        )

    def counted(self, kind: str) -> Self:
        """The figures with one more line of this kind."""
        return msgspec.structs.replace(self, **{"lines": self.lines + 1, kind: getattr(self, kind) + 1})


def _ratio(before: int, after: int) -> float:
    return round(after / before, 4) if before else 1.0
