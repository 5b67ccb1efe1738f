"""Compression of a single trajectory: its result, its metrics, and no loss without a summary."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from agent.model.usage import estimated_text_tokens
from agent.trajectories import TrajectoryCompressor, TrajectoryMetrics, TrajectorySettings, Turn, deterministic_text
from agent.trajectories.compressor import NOTICE, SUMMARY_MARK
from agent.trajectories.summary import shortened_turns
from hermes_state.errors import ModelUnavailable
from hermes_state.redaction import Redactor

KEY = "sk-abcdefghij0123456789"
WORDS = "the register names a boat and the day on which it came in " * 6
SETTINGS = TrajectorySettings(target_max_tokens=900, summary_target_tokens=150, protect_last=4)


def turns_of(exchanges: int = 20, secret: str = "") -> list[dict[str, str]]:
    turns = [{"from": "system", "value": "You keep the register."}]
    for number in range(exchanges):
        turns += [
            {"from": "human", "value": f"What about {number}? {secret}"},
            {"from": "gpt", "value": f'<tool_call>\n{{"name": "look", "arguments": {{"n": {number}}}}}\n</tool_call>'},
            {"from": "tool", "value": f"<tool_response>\n{number} {WORDS}\n</tool_response>"},
            {"from": "gpt", "value": f"It is {number}."},
        ]
    return turns


async def short(turns: Sequence[Turn], target: int, redact: object) -> str:
    return f"{len(turns)} turns about boats."


def test_a_short_conversation_is_returned_unchanged() -> None:
    turns = turns_of(1)
    kept, metrics = TrajectoryCompressor(SETTINGS, short).compress(turns)
    assert kept == turns
    assert (metrics.skipped_under_target, metrics.was_compressed, metrics.ratio) == (True, False, 1.0)
    assert metrics.summary_calls == 0


def test_the_summary_replaces_the_middle_and_the_rest_stays() -> None:
    turns = turns_of()
    kept, metrics = TrajectoryCompressor(SETTINGS, short).compress(turns)
    start, end = metrics.start_index, metrics.end_index
    assert start is not None
    assert end is not None
    assert start == 4, "system, and the first human, gpt and tool turn"
    assert kept[1:start] == turns[1:start]
    assert kept[start] == {"from": "human", "value": f"{SUMMARY_MARK}\n{end - start} turns about boats."}
    assert (kept[start + 1 :], kept[0]["value"]) == (turns[end:], f"{turns[0]['value']}\n\n{NOTICE}")


def test_the_metrics_match_the_result() -> None:
    turns = turns_of()
    kept, metrics = TrajectoryCompressor(SETTINGS, short).compress(turns)
    sizes = [[4 + estimated_text_tokens(turn["value"]) for turn in some] for some in (turns, kept)]
    before, after = map(sum, sizes)
    assert metrics == TrajectoryMetrics(
        turns_before=len(turns),
        turns_after=len(kept),
        tokens_before=before,
        tokens_after=after,
        was_compressed=True,
        start_index=4,
        end_index=metrics.end_index,
        turns_removed=len(turns) - len(kept) + 1,
        tokens_saved=before - after,
        ratio=round(after / before, 4),
        summary_calls=1,
    )
    assert after <= SETTINGS.target_max_tokens


def test_the_metrics_report_a_trajectory_that_stays_too_long() -> None:
    turns = [{"from": "system", "value": WORDS * 15}, *turns_of()[1:]]
    _, metrics = TrajectoryCompressor(SETTINGS, short).compress(turns)
    assert metrics.was_compressed
    assert metrics.still_over_limit


def test_the_notice_is_optional_and_added_once() -> None:
    silent = TrajectorySettings(target_max_tokens=900, summary_target_tokens=150, has_notice=False)
    assert TrajectoryCompressor(silent, short).compress(turns_of())[0][0] == turns_of()[0]
    once, _ = TrajectoryCompressor(SETTINGS, short).compress(turns_of())
    smaller = TrajectorySettings(target_max_tokens=500, summary_target_tokens=100)
    twice, metrics = TrajectoryCompressor(smaller, short).compress(once)
    assert metrics.was_compressed
    assert twice[0]["value"].count(NOTICE) == 1


def test_a_failed_summary_leaves_the_conversation_unchanged_and_is_counted() -> None:
    async def broken(turns: Sequence[Turn], target: int, redact: object) -> str:
        raise ModelUnavailable(f"the server says {KEY} is odd")

    turns = turns_of()
    kept, metrics = TrajectoryCompressor(SETTINGS, broken).compress(turns)
    assert kept == turns
    assert (metrics.summary_calls, metrics.summary_errors, metrics.was_compressed) == (1, 1, False)
    assert metrics.still_over_limit
    assert KEY not in metrics.error


def test_a_summary_that_saves_nothing_is_not_used() -> None:
    async def wordy(turns: Sequence[Turn], target: int, redact: object) -> str:
        return WORDS * 100

    turns = turns_of()
    kept, metrics = TrajectoryCompressor(SETTINGS, wordy).compress(turns)
    assert kept == turns
    assert (metrics.was_compressed, metrics.tokens_saved, metrics.still_over_limit) == (False, 0, True)


def test_a_middle_as_short_as_a_summary_needs_no_call() -> None:
    turns = [
        {"from": "human", "value": WORDS * 15},
        {"from": "gpt", "value": "a"},
        {"from": "human", "value": "b"},
        *[{"from": "gpt", "value": "c"}] * 4,
    ]
    _, metrics = TrajectoryCompressor(SETTINGS, short).compress(turns)
    assert (metrics.summary_calls, metrics.still_over_limit) == (0, True)


async def test_secrets_are_in_neither_the_summary_nor_its_request() -> None:
    seen: list[str] = []

    async def careless(turns: Sequence[Turn], target: int, redact: Redactor) -> str:
        seen.extend(shortened_turns(turns, 10_000, redact))
        return f"They spoke of {KEY} and of hunter-and-gatherer."

    compressor = TrajectoryCompressor(SETTINGS, careless, Redactor(["hunter-and-gatherer"]))
    kept, metrics = await compressor.compress_async(turns_of(secret=KEY))
    assert metrics.was_compressed
    summary = next(turn["value"] for turn in kept if turn["value"].startswith(SUMMARY_MARK))
    assert seen
    for text in (*seen, summary):
        assert KEY not in text
        assert "hunter" not in text


@pytest.mark.parametrize("target", [60, 150, 600, 4_000])
async def test_excerpts_stay_within_the_requested_length(target: int) -> None:
    seen: list[str] = []

    async def excerpts(turns: Sequence[Turn], room: int, redact: Redactor) -> str:
        seen.append(await deterministic_text(turns, room, redact))
        return seen[0]

    wanted = TrajectorySettings(target_max_tokens=900, summary_target_tokens=target)
    _, metrics = await TrajectoryCompressor(wanted, excerpts).compress_async(turns_of(60))
    assert metrics.was_compressed
    assert estimated_text_tokens(seen[0]) <= max(target, 40)


def test_no_text_in_a_summary_ends_the_line() -> None:
    async def odd(turns: Sequence[Turn], target: int, redact: object) -> str:
        return 'one\ntwo "three" \u2028 \ud83d'

    done = asyncio.run(
        TrajectoryCompressor(SETTINGS, odd).compress_line(json.dumps({"conversations": turns_of()}).encode())
    )
    assert b"\n" not in done.line
    assert json.loads(done.line)["conversations"][4]["from"] == "human"
