"""Compressor for trajectories: a summary replaces as much of the middle as needed.

The first turn of each role and the last turns stay. Of the other turns, the earliest are removed first, because a model
learns most from the turns near the end.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from agent.context.excerpt import Redact
from agent.model.usage import MESSAGE_TOKENS, estimated_text_tokens
from agent.trajectories.format import BOM, Trajectory, TurnRole
from agent.trajectories.summary import Summarise, deterministic_text
from hermes_state.errors import ModelError
from hermes_state.redaction import redact
from hermes_state.text import well_formed

SUMMARY_MARK: Final = "[SUMMARY OF EARLIER TURNS]"
NOTICE: Final = f"Some earlier turns are not shown: a turn that begins with {SUMMARY_MARK} replaces them."
HEAD_SHARE: Final = 4
"""Divisor of the target size. Turns between the roles' first turns are kept if they fit into this part of it."""


class TrajectorySettings(msgspec.Struct, frozen=True, kw_only=True):
    target_max_tokens: int = 15_250
    """Target size in tokens. Trajectories that are not larger stay unchanged."""
    summary_target_tokens: int = 750
    protect_last: int = 4
    has_notice: bool = True
    """True to add a sentence about the summary to the system turn."""


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    turns_before: int = 0
    turns_after: int = 0
    turns_removed: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_saved: int = 0
    ratio: float = 1.0
    """Tokens after the compression, divided by tokens before it."""
    summary_calls: int = 0
    summary_errors: int = 0


class TrajectoryMetrics(_Figures, frozen=True, kw_only=True):
    was_compressed: bool = False
    skipped_under_target: bool = False
    still_over_limit: bool = False
    start_index: int | None = None
    """Index of the first turn that the summary replaces. None if nothing was replaced."""
    end_index: int | None = None
    error: str | None = None
    """Reason why no summary could be made, although one was needed."""

    @classmethod
    def of(cls, before: Sequence[int], after: Sequence[int], **other: object) -> Self:
        total, left = sum(before), sum(after)
        sizes = {"turns_before": len(before), "turns_after": len(after), "tokens_before": total, "tokens_after": left}
        return msgspec.convert({**sizes, "tokens_saved": total - left, "ratio": _ratio(total, left), **other}, cls)


class TrajectoryTotals(_Figures, frozen=True, kw_only=True):
    """Totals for a file. Every line counts as a trajectory, as rejected, or as blank."""

    lines: int = 0
    trajectories: int = 0
    rejected: int = 0
    blank: int = 0
    was_compressed: int = 0
    skipped_under_target: int = 0
    still_over_limit: int = 0

    def plus(self, metrics: TrajectoryMetrics) -> Self:
        common = (set(self.__struct_fields__) & set(metrics.__struct_fields__)) - {"ratio"}
        sums = {key: getattr(self, key) + getattr(metrics, key) for key in common}
        ratio = _ratio(sums["tokens_before"], sums["tokens_after"])
        return msgspec.structs.replace(self.counted("trajectories"), **sums, ratio=ratio)

    def counted(self, kind: str) -> Self:
        return msgspec.structs.replace(self, **{"lines": self.lines + 1, kind: getattr(self, kind) + 1})


def _ratio(before: int, after: int) -> float:
    return round(after / before, 4) if before else 1.0


class CompressedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its newline, and the metrics of its trajectory."""

    line: bytes
    metrics: TrajectoryMetrics


class TrajectoryCompressor(msgspec.Struct, frozen=True):
    """Replaces the middle of long trajectories with summaries."""

    settings: TrajectorySettings = TrajectorySettings()
    summarise: Summarise = deterministic_text
    redact: Redact = redact

    def compress(self, turns: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], TrajectoryMetrics]:
        """Compress the turns of a conversation. Must not run in an event loop.

        Raises `TrajectoryRejected` if a turn is invalid.
        """
        return asyncio.run(self.compress_async(turns))

    async def compress_async(
        self, turns: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], TrajectoryMetrics]:
        """Compress the turns of a conversation. Raises `TrajectoryRejected` if a turn is invalid."""
        done = await self.compress_line(msgspec.json.encode({"conversations": turns}))
        return msgspec.json.decode(done.line)["conversations"], done.metrics

    async def compress_line(self, line: bytes) -> CompressedLine:
        """Compress a line, or return it unchanged if no summary can be made.

        Raises `TrajectoryRejected` if the line is invalid.
        """
        line = line.removeprefix(BOM).strip()
        trajectory = Trajectory.parse(line)
        sizes = [turn.tokens for turn in trajectory.turns]
        is_over = sum(sizes) > self.settings.target_max_tokens
        start, end = select([turn.role for turn in trajectory.turns], sizes, self.settings) if is_over else (0, 0)
        kept = CompressedLine(
            line=line,
            metrics=TrajectoryMetrics.of(sizes, sizes, skipped_under_target=not is_over, still_over_limit=is_over),
        )
        if sum(sizes[start:end]) <= self.settings.summary_target_tokens:
            return kept  # a summary would not save anything
        try:
            text = await self.summarise(trajectory.turns[start:end], self._room(), self.redact)
        except ModelError as error:
            failed = {"summary_calls": 1, "summary_errors": 1, "error": self.redact(str(error))}
            return replace(kept, metrics=msgspec.structs.replace(kept.metrics, **failed))
        return self._with_summary(trajectory, sizes, (start, end), well_formed(self.redact(text))) or replace(
            kept,
            metrics=msgspec.structs.replace(
                kept.metrics, summary_calls=1, error="the summary would not save any tokens"
            ),
        )

    def _room(self) -> int:
        around = MESSAGE_TOKENS + estimated_text_tokens(SUMMARY_MARK) + 1
        if self.settings.has_notice:
            around += estimated_text_tokens(NOTICE) + 1
        return max(0, self.settings.summary_target_tokens - around)

    def _with_summary(
        self, trajectory: Trajectory, sizes: Sequence[int], removed: tuple[int, int], text: str
    ) -> CompressedLine | None:
        """Return the line with the summary, or None if the summary saves nothing."""
        start, end = removed
        turns = [*trajectory.turns[:start], trajectory.human(f"{SUMMARY_MARK}\n{text}"), *trajectory.turns[end:]]
        if self.settings.has_notice:
            for index, turn in enumerate(turns[:start]):
                if turn.role is TurnRole.SYSTEM and NOTICE not in turn.text:
                    turns[index] = turn.saying(f"{turn.text}\n\n{NOTICE}".strip())
                    break
        after = [turn.tokens for turn in turns]
        if sum(after) >= sum(sizes):
            return None
        metrics = TrajectoryMetrics.of(
            sizes,
            after,
            was_compressed=True,
            start_index=start,
            end_index=end,
            turns_removed=end - start,
            still_over_limit=sum(after) > self.settings.target_max_tokens,
            summary_calls=1,
        )
        return CompressedLine(line=trajectory.encoded(turns), metrics=metrics)


def select(roles: Sequence[TurnRole], sizes: Sequence[int], settings: TrajectorySettings) -> tuple[int, int]:
    """Return the start and end index of the turns to replace with a summary. The two are equal if nothing is replaced.

    A gpt turn and the tool turns after it stay together, so the summary is never followed by a tool turn.
    """
    tail = max(0, len(roles) - max(0, settings.protect_last))
    while 0 < tail < len(roles) and roles[tail] is TurnRole.TOOL:
        tail -= 1
    start = end = _head_end(roles, sizes, tail, settings.target_max_tokens // HEAD_SHARE)
    wanted = sum(sizes) - settings.target_max_tokens + settings.summary_target_tokens
    while end < tail and (wanted > 0 or roles[end] is TurnRole.TOOL):
        wanted -= sizes[end]
        end += 1
    return start, end


def _head_end(roles: Sequence[TurnRole], sizes: Sequence[int], tail: int, room: int) -> int:
    """Return the end index of the head: the first turn of each role, the turns between, and the tool turns after them.

    A first turn is left out if it is in the tail, or if the turns before it need more than `room`.
    """
    end = 0
    for first in sorted(roles.index(role) for role in set(roles)):
        room -= sum(sizes[end:first])
        if first >= tail or room < 0:
            break
        end = first + 1
    while end < tail and roles[end] is TurnRole.TOOL:
        end += 1
    return min(end, tail)
