"""A file of trajectories: order, rejected lines, and how another run continues or refuses."""

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.trajectories import (
    TrajectoryCompressor,
    TrajectoryRejected,
    TrajectoryRunner,
    TrajectorySettings,
    TrajectoryTotals,
    Turn,
)
from agent.trajectories import files as files_module
from agent.trajectories.files import SourceLine, TrajectoryWriter
from hermes_state.errors import CommandError, ModelUnavailable
from tests.agent.trajectories.test_compressor import SETTINGS, short, turns_of


def line_of(number: int, exchanges: int = 20, **keys: object) -> bytes:
    return json.dumps({"id": number, "conversations": turns_of(exchanges), **keys}).encode() + b"\n"


def runner(**changes: Any) -> TrajectoryRunner:
    return TrajectoryRunner(compressor=TrajectoryCompressor(SETTINGS, short), **changes)


def ran(runner: TrajectoryRunner, source: Path, target: Path, *, is_forced: bool = False) -> TrajectoryTotals:
    return asyncio.run(runner.run(source, target, is_forced=is_forced))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + line_of(1) + b"not json\r\n" + line_of(3, exchanges=1).replace(b"\n", b"\r\n") + b"\n"
        b"  \n" + line_of(6) + b'{"conversations": "\xff"}\n' + line_of(8).rstrip(b"\n")
    )
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def beside(target: Path) -> dict[str, bytes]:
    """All files that a run has written."""
    return {path.name: path.read_bytes() for path in sorted(target.parent.glob(f"{target.name}*"))}


def test_lines_keep_their_order_and_other_lines_are_rejected(source: Path, target: Path) -> None:
    told: list[str] = []
    total = ran(runner(on_trouble=told.append), source, target)
    assert [row["id"] for row in read_lines(target)] == [1, 3, 6, 8]
    assert (total.lines, total.trajectories, total.rejected, total.blank) == (8, 4, 2, 2)
    assert (total.was_compressed, total.skipped_under_target) == (3, 1)
    assert (target.parent / "out.jsonl.rejected.jsonl").read_bytes() == b'not json\r\n{"conversations": "\xff"}\n'
    assert [sentence[:22] for sentence in told] == ["line 2 was rejected: i", "line 7 was rejected: i"]


def test_metrics_cover_each_line_and_the_total(source: Path, target: Path) -> None:
    total = ran(runner(), source, target)
    rows = read_lines(target.with_name("out.jsonl.metrics.jsonl"))
    assert [row["line"] for row in rows] == [1, 2, 3, 6, 7, 8]
    assert "UTF-8" in rows[4]["rejected"]
    assert rows[0]["was_compressed"]
    saved = sum(row.get("tokens_saved", 0) for row in rows)
    whole = json.loads(target.with_name("out.jsonl.metrics.json").read_bytes())
    assert whole["is_complete"]
    assert whole["total"]["tokens_saved"] == total.tokens_saved == saved
    assert whole["total"]["ratio"] == round(total.tokens_after / total.tokens_before, 4) < 1
    assert total.tokens_before - total.tokens_after == saved
    assert whole["total"]["turns_removed"] == sum(row.get("turns_removed", 0) for row in rows)


def test_a_repeated_run_changes_nothing_and_continues_if_the_source_has_grown(source: Path, target: Path) -> None:
    source.write_bytes(source.read_bytes() + b"\n")
    ran(runner(), source, target)
    before = beside(target)
    ran(runner(), source, target)
    assert beside(target) == before
    source.write_bytes(source.read_bytes() + line_of(9))
    assert ran(runner(), source, target).trajectories == 5
    assert [row["id"] for row in read_lines(target)] == [1, 3, 6, 8, 9]


async def test_the_number_of_parallel_summaries_is_limited(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"".join(map(line_of, range(30))))
    under_way, most = 0, 0

    async def counted(turns: Sequence[Turn], room: int, redact: object) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        return await short(turns, room, redact)

    many = TrajectoryRunner(compressor=TrajectoryCompressor(SETTINGS, counted), parallel=4)
    await many.run(source, tmp_path / "out.jsonl")
    assert (most, [row["id"] for row in read_lines(tmp_path / "out.jsonl")]) == (4, list(range(30)))


async def test_lines_without_a_summary_are_unchanged_and_reported(tmp_path: Path) -> None:
    async def down(turns: Sequence[Turn], room: int, redact: object) -> str:
        raise ModelUnavailable("down")

    source, told = tmp_path / "in.jsonl", []
    source.write_bytes(line_of(1) + line_of(2, exchanges=1))
    broken = TrajectoryRunner(compressor=TrajectoryCompressor(SETTINGS, down), on_trouble=told.append)
    total = await broken.run(source, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == source.read_bytes()
    assert (total.summary_errors, total.still_over_limit, told) == (1, 1, ["line 1 was not compressed: down"])


def test_too_long_lines_are_rejected_unread(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_LINE_BYTES", 300)
    long = b'{"conversations": "' + b"x" * 5_000 + b'"}\n'
    fits = b'{"conversations": []' + b" " * 278 + b"}\n"
    assert len(fits) == 300
    source.write_bytes(long + fits + long.rstrip())
    total = ran(runner(), source, target)
    assert (total.rejected, total.trajectories) == (2, 1)
    assert target.with_name("out.jsonl.rejected.jsonl").read_bytes() == long + long.rstrip()


class Unreadable(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError("input/output error")


def test_a_partly_written_line_is_written_once(source: Path, tmp_path: Path) -> None:
    whole, target = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    ran(runner(), source, whole)
    settings = json.loads(whole.with_name("whole.jsonl.metrics.json").read_bytes())["settings"]
    writer = TrajectoryWriter(source, target, settings, is_forced=False)
    line = SourceLine(number=1, start=0, end=9, data=None)
    with pytest.raises(OSError, match="input/output"):
        writer.put(line, TrajectoryRejected("too long"), Unreadable())
    writer.checkpoint()
    writer.close()
    ran(runner(), source, target)
    assert list(beside(target).values()) == list(beside(whole).values())


def test_files_of_other_programs_are_not_overwritten(source: Path, target: Path) -> None:
    for name in ("out.jsonl", "out.jsonl.rejected.jsonl", "out.jsonl.metrics.jsonl"):
        target.with_name(name).write_text("mine")
        with pytest.raises(CommandError, match="--force"):
            ran(runner(), source, target)
        assert beside(target) == {name: b"mine"}
        target.with_name(name).unlink()
    target.write_text("mine")
    ran(runner(), source, target, is_forced=True)
    assert len(read_lines(target)) == 4


@pytest.mark.parametrize("name", ["in.jsonl", "link.jsonl", "same.jsonl"])
def test_the_source_cannot_be_the_target(name: str, source: Path) -> None:
    (source.parent / "link.jsonl").symlink_to(source)
    (source.parent / "same.jsonl").hardlink_to(source)
    before = source.read_bytes()
    for is_forced in (False, True):
        with pytest.raises(CommandError, match="the output would overwrite"):
            ran(runner(), source, source.parent / name, is_forced=is_forced)
    assert source.read_bytes() == before
    ran(runner(), source, source.parent / "out.jsonl")
    with pytest.raises(CommandError, match="the output would overwrite"):
        ran(runner(), source.parent / "out.jsonl.rejected.jsonl", source.parent / "out.jsonl", is_forced=True)


def test_a_run_continues_only_with_the_same_settings_and_source(source: Path, target: Path) -> None:
    ran(runner(), source, target)
    others = TrajectoryCompressor(TrajectorySettings(target_max_tokens=100), short)
    with pytest.raises(CommandError, match="another target_max_tokens and another summary_target_tokens"):
        ran(TrajectoryRunner(compressor=others), source, target)
    with pytest.raises(CommandError, match="another summary"):
        ran(runner(summary_name="gpt-5"), source, target)
    source.write_bytes(source.read_bytes().replace(b"not json", b"now json"))
    with pytest.raises(CommandError, match="has changed"):
        ran(runner(), source, target)
    target.write_bytes(b"")
    source.write_bytes(source.read_bytes().replace(b"now json", b"not json"))
    with pytest.raises(CommandError, match="shorter"):
        ran(runner(), source, target)


async def test_two_runs_cannot_write_the_same_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line_of(1))
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(turns: Sequence[Turn], room: int, redact: object) -> str:
        reached.set()
        await goes_on.wait()
        return await short(turns, room, redact)

    first = asyncio.create_task(TrajectoryRunner(compressor=TrajectoryCompressor(SETTINGS, slow)).run(source, target))
    await reached.wait()
    for is_forced in (False, True):
        with pytest.raises(CommandError, match="another process"):
            await runner().run(source, target, is_forced=is_forced)
    goes_on.set()
    assert (await first).trajectories == 1
    assert len(read_lines(target)) == 1
