"""Compressor of trajectories: a summary in place of as much of the middle as has to go.

The beginning stays (system prompt, first human, gpt and tool turn), and so do the last turns. Between them turns leave
from the front on, until what has left makes up for the excess and for the summary: what stands nearest to the end is
what the model is to learn.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from agent.context.excerpt import Redact
from agent.tokens import MESSAGE_TOKENS, estimated_text_tokens
from agent.trajectories.format import BOM, Trajectory, TurnRole
from agent.trajectories.metrics import TrajectoryMetrics
from agent.trajectories.summary import Summarise, deterministic_text
from hermes_state.errors import ModelError
from hermes_state.redaction import redact
from hermes_state.text import well_formed

SUMMARY_MARK: Final = "[SUMMARY OF EARLIER TURNS]"
NOTICE: Final = (
    f"Some earlier turns are not shown as they were: a turn that begins with {SUMMARY_MARK} stands for them."
)
HEAD_SHARE: Final = 4
"""The turns between the first ones of each role may take this part of the target, one over it; a first turn that comes
later is not kept for being the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySettings:
    """Settings of the compressor."""

    target_max_tokens: int = 15_250
    """A trajectory of no more tokens stays as it is."""
    summary_target_tokens: int = 750
    protect_last: int = 4
    """Turns at the end that stay."""
    has_notice: bool = True
    """True: the system turn says that there is a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLine:
    """A line, without its end, and what became of its trajectory."""

    line: bytes
    metrics: TrajectoryMetrics


class TrajectoryCompressor:
    """Puts summaries in place of the middle of trajectories that are too long."""

    def __init__(
        self,
        settings: TrajectorySettings | None = None,
        summarise: Summarise = deterministic_text,
        redact: Redact = redact,
    ) -> None:
        self.settings = settings or TrajectorySettings()
        self.summarise = summarise
        self._redact = redact

    def compress(self, turns: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], TrajectoryMetrics]:
        """`compress_async` for whoever has no event loop."""
        return asyncio.run(self.compress_async(turns))

    async def compress_async(
        self, turns: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], TrajectoryMetrics]:
        """Turns of one conversation, compressed where they are too long. Raises `TrajectoryRejected`."""
        done = await self.compress_line(msgspec.json.encode({"conversations": turns}))
        return msgspec.json.decode(done.line)["conversations"], done.metrics

    async def compress_line(self, line: bytes) -> CompressedLine:
        """A line of a file, compressed where it is too long; one that has no summary stays as it is.

        Raises `TrajectoryRejected`.
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
            return kept  # a summary would be as long
        try:
            text = await self.summarise(trajectory.turns[start:end], self._room(), self._redact)
        except ModelError as error:
            failed = {"summary_calls": 1, "summary_errors": 1, "error": self._redact(str(error))}
            return replace(kept, metrics=msgspec.structs.replace(kept.metrics, **failed))
        return self._with_summary(trajectory, sizes, (start, end), well_formed(self._redact(text))) or replace(
            kept, metrics=msgspec.structs.replace(kept.metrics, summary_calls=1, error="the summary saves nothing")
        )

    def _room(self) -> int:
        """Tokens of the summary itself, without what is written around it."""
        around = MESSAGE_TOKENS + estimated_text_tokens(SUMMARY_MARK) + 1
        if self.settings.has_notice:
            around += estimated_text_tokens(NOTICE) + 1
        return max(0, self.settings.summary_target_tokens - around)

    def _with_summary(
        self, trajectory: Trajectory, sizes: Sequence[int], removed: tuple[int, int], text: str
    ) -> CompressedLine | None:
        """The line with the summary in place; None where that makes it no shorter."""
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
    """Turns that a summary takes the place of, as start and end; equal where there is nothing to take.

    A gpt turn and the tool turns that answer it stay together: no tool turn follows the summary.
    """
    tail = _before_results(roles, max(0, len(roles) - max(0, settings.protect_last)))
    start = end = _head_end(roles, sizes, tail, settings.target_max_tokens // HEAD_SHARE)
    wanted = sum(sizes) - settings.target_max_tokens + settings.summary_target_tokens
    while end < tail and (wanted > 0 or roles[end] is TurnRole.TOOL):
        wanted -= sizes[end]
        end += 1
    return start, end


def _head_end(roles: Sequence[TurnRole], sizes: Sequence[int], tail: int, room: int) -> int:
    """End of the beginning that stays: behind the first turns of each role, and behind the results of a call."""
    end = 0
    for first in sorted(roles.index(role) for role in set(roles)):
        room -= sum(sizes[end:first])
        if first >= tail or room < 0:
            break
        end = first + 1
    while end < tail and roles[end] is TurnRole.TOOL:
        end += 1
    return min(end, tail)


def _before_results(roles: Sequence[TurnRole], index: int) -> int:
    """The index, or that of the turn whose results begin or go on there."""
    while 0 < index < len(roles) and roles[index] is TurnRole.TOOL:
        index -= 1
    return index
