"""Compression of a trajectory file, line by line and in order. An interrupted run can be continued.

A run writes the compressed lines to OUT and three files next to it: `OUT.metrics.jsonl` (one row for each input line),
`OUT.rejected.jsonl` (rejected lines, byte for byte) and `OUT.metrics.json` (totals and a checkpoint). After an
interruption, the next run truncates the first three files to their sizes in the checkpoint, and continues from there.
"""

import asyncio
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from agent.trajectories.compressor import CompressedLine, TrajectoryCompressor, TrajectoryTotals
from agent.trajectories.format import TrajectoryRejected
from hermes_state.disk import flush
from hermes_state.errors import CommandError

MAX_LINE_BYTES: Final = 67_108_864
"""Maximum size of a line, in bytes. A longer line is rejected and not loaded into memory."""
_COPY_BYTES: Final = 1_048_576
_SUFFIXES: Final = {"out": "", "rejected": ".rejected.jsonl", "metrics": ".metrics.jsonl"}
_encode = msgspec.json.Encoder().encode
Outcome: TypeAlias = CompressedLine | TrajectoryRejected | None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    settings: Mapping[str, object]
    total: TrajectoryTotals = TrajectoryTotals()
    is_complete: bool = False
    read_bytes: int = 0
    read_digest: str = ""
    written_bytes: Mapping[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(_SUFFIXES, 0))


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the source file, and its position."""

    number: int
    start: int
    end: int
    data: bytes | None
    """The line's bytes, or None if the line is too long to be loaded."""
    digest: str = ""
    """Digest of the source file up to the end of this line."""

    @property
    def size(self) -> int:
        return self.end - self.start


class TrajectoryWriter:
    """Writes OUT and the files next to it. OUT is locked until `close`."""

    def __init__(self, source: Path, target: Path, settings: Mapping[str, object], *, is_forced: bool) -> None:
        """Open the files at the last checkpoint, or create them.

        Raises `CommandError` if another process is writing them, or if they belong to a run with other settings.
        """
        self._checkpoint_path = target.with_name(f"{target.name}.metrics.json")
        self._paths = {name: target.with_name(target.name + suffix) for name, suffix in _SUFFIXES.items()}
        for path in filter(Path.exists, (self._checkpoint_path, *self._paths.values())):
            if path.samefile(source):
                raise CommandError(f"the output would overwrite {source}; choose another output file")
            if not (is_forced or self._checkpoint_path.exists()) and path.stat().st_size:
                raise CommandError(f"{path} exists and was not written by this command; --force overwrites it")
        with ExitStack() as opened:
            self._files: dict[str, BinaryIO] = {}
            for name, path in self._paths.items():
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                self._files[name] = opened.enter_context(os.fdopen(descriptor, "wb"))
            try:
                fcntl.flock(self._files["out"], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another process is writing {target}") from None
            is_new = is_forced or not self._checkpoint_path.exists()
            self.state = Checkpoint(settings=settings) if is_new else self._load(settings)
            for name, file in self._files.items():
                if file.seek(0, os.SEEK_END) < self.state.written_bytes[name]:
                    raise CommandError(f"{self._paths[name]} is shorter than its checkpoint says; --force starts over")
            self.checkpoint(is_complete=self.state.is_complete)
            for name, file in self._files.items():
                file.truncate(file.seek(self.state.written_bytes[name]))
            self._opened = opened.pop_all()

    def _load(self, settings: Mapping[str, object]) -> Checkpoint:
        try:
            state = msgspec.json.decode(self._checkpoint_path.read_bytes(), type=Checkpoint)
        except (OSError, msgspec.DecodeError) as error:
            raise CommandError(f"{self._checkpoint_path} cannot be read ({error}); --force starts over") from error
        if changed := [key for key, value in settings.items() if state.settings.get(key) != value]:
            others = " and another ".join(changed)
            raise CommandError(f"{self._paths['out']} was started with another {others}; --force starts over")
        return state

    def put(self, line: SourceLine, outcome: Outcome, source: BinaryIO) -> None:
        """Add the outcome of the next line. A rejected line is copied from `source`."""
        total = self.state.total
        match outcome:
            case CompressedLine():
                self._files["out"].write(outcome.line + b"\n")
                self._files["metrics"].write(b'{"line":%d,%b\n' % (line.number, _encode(outcome.metrics)[1:]))
                total = total.plus(outcome.metrics)
            case TrajectoryRejected():
                self._files["metrics"].write(_encode({"line": line.number, "rejected": str(outcome)}) + b"\n")
                _copy(line, source, self._files["rejected"])
                total = total.counted("rejected")
            case None:
                total = total.counted("blank")
        # Count the bytes last, so that the next run cuts off a line that was only partly written.
        self.state = msgspec.structs.replace(
            self.state,
            total=total,
            read_bytes=line.end,
            read_digest=line.digest,
            written_bytes={name: file.tell() for name, file in self._files.items()},
        )
        # A process that is killed loses at most a second of work, including paid summaries.
        if time.monotonic() - self._saved_at >= 1.0:
            self.checkpoint()

    def checkpoint(self, *, is_complete: bool = False) -> None:
        """Flush all files to disk, then save the state that contains their lengths."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = msgspec.structs.replace(self.state, is_complete=is_complete)
        unfinished = self._checkpoint_path.with_name(f"{self._checkpoint_path.name}.unfinished")
        unfinished.write_bytes(msgspec.json.format(_encode(self.state)) + b"\n")
        flush(unfinished)
        os.replace(unfinished, self._checkpoint_path)
        flush(self._checkpoint_path.parent)
        self._saved_at = time.monotonic()

    def close(self) -> None:
        """Close the files and release the lock. Remove the file of rejected lines if it is empty."""
        with self._opened:
            if not self.state.written_bytes["rejected"]:
                self._paths["rejected"].unlink(missing_ok=True)


class TrajectoryRunner(msgspec.Struct, kw_only=True):
    """Compresses a file of trajectories into another file."""

    compressor: TrajectoryCompressor
    parallel: int = 8
    on_read: Callable[[int], None] = lambda _bytes: None
    """Receives the size of each finished line in bytes. The first call reports the bytes that earlier runs finished."""
    on_trouble: Callable[[str], None] = lambda _sentence: None
    """Receives a sentence about each rejected line and each trajectory whose summary failed."""
    summary_name: str = "none"
    """Name of the summary model. A run can only be continued with the same model."""

    async def run(self, source: Path, target: Path, *, is_forced: bool = False) -> TrajectoryTotals:
        """Write `target` from `source`, or continue after the last checkpoint. Each run ends with a checkpoint.

        Raises `CommandError`, and any error of a summary that is not a `ModelError`.
        """
        settings = {**msgspec.to_builtins(self.compressor.settings), "summary": self.summary_name}
        writer = TrajectoryWriter(source, target, settings, is_forced=is_forced)
        with closing(writer), source.open("rb") as file:
            lines = _lines_after(file, writer.state)
            if lines is None:
                raise CommandError(f"{source} has changed since {target} was started; --force starts over")
            self.on_read(writer.state.read_bytes)
            is_complete = False
            try:
                async with asyncio.TaskGroup() as group:
                    await self._compress_lines(lines, group, writer, file)
                is_complete = True
            except BaseExceptionGroup as errors:  # the first error has cancelled all other tasks
                raise errors.exceptions[0] from errors
            finally:
                writer.checkpoint(is_complete=is_complete)
            return writer.state.total

    async def _compress_lines(
        self, lines: Iterator[SourceLine], group: asyncio.TaskGroup, writer: TrajectoryWriter, source: BinaryIO
    ) -> None:
        pending: deque[tuple[SourceLine, asyncio.Task[Outcome]]] = deque()

        async def finish_first() -> int:
            line, task = pending.popleft()
            outcome = await task
            writer.put(line, outcome, source)
            if isinstance(outcome, TrajectoryRejected):
                self.on_trouble(f"line {line.number} was rejected: {outcome}")
            elif outcome is not None and outcome.metrics.summary_errors:
                self.on_trouble(f"line {line.number} was not compressed: {outcome.metrics.error}")
            self.on_read(line.size)
            return line.size

        ahead = 0
        for line in lines:
            pending.append((line, group.create_task(self._outcome(line))))
            ahead += line.size
            # Limit the total size of the lines that wait for earlier lines.
            while len(pending) >= max(1, self.parallel) or ahead > 67_108_864:
                ahead -= await finish_first()
        while pending:
            await finish_first()

    async def _outcome(self, line: SourceLine) -> Outcome:
        if line.data is None:
            return TrajectoryRejected(f"it has {line.size:,} bytes, but the limit is {MAX_LINE_BYTES:,}")
        if not line.data.strip():
            return None
        try:
            return await self.compressor.compress_line(line.data)
        except TrajectoryRejected as error:
            return error


def read_lines(file: BinaryIO, number: int = 0, digest: blake2b | None = None) -> Iterator[SourceLine]:
    """Yield the lines of a file from its current position. `number` and `digest` describe the preceding lines."""
    start, digest = file.tell(), digest or blake2b(digest_size=16)
    while data := file.readline(MAX_LINE_BYTES + 1):
        number, is_held, end = number + 1, len(data) <= MAX_LINE_BYTES, start + len(data)
        digest.update(data)
        while not is_held and data and not data.endswith(b"\n"):
            data = file.readline(_COPY_BYTES)
            digest.update(data)
            end += len(data)
        held = data if is_held else None
        yield SourceLine(number=number, start=start, end=end, data=held, digest=digest.hexdigest())
        start = end


def _lines_after(source: BinaryIO, state: Checkpoint) -> Iterator[SourceLine] | None:
    """Return the lines that earlier runs have not read, or None if the lines already read have changed."""
    digest, left, last = blake2b(digest_size=16), state.read_bytes, b"\n"
    while left and (last := source.read(min(left, _COPY_BYTES))):
        digest.update(last)
        left -= len(last)
    if state.read_bytes and digest.hexdigest() != state.read_digest:
        return None
    has_longer_line = not last.endswith(b"\n") and source.read(1)
    return None if has_longer_line else read_lines(source, state.total.lines, digest)


def _copy(line: SourceLine, source: BinaryIO, target: BinaryIO) -> None:
    """Copy a line, byte for byte. The position in `source` does not change."""
    place = source.tell()
    source.seek(line.start)
    for start in range(line.start, line.end, _COPY_BYTES):
        target.write(source.read(min(_COPY_BYTES, line.end - start)))
    source.seek(place)
