"""Compression of a file of trajectories: line by line, in order, and to be continued where it was interrupted.

Beside OUT lie `OUT.metrics.jsonl`, what became of each line, `OUT.rejected.jsonl`, the lines that are no trajectories,
byte for byte, and `OUT.metrics.json`: the figures in total, and how far the run has come. That one is the checkpoint.
It is replaced as a whole, after what it speaks of is on disk; what the other files hold beyond it is cut off by the
next run, which reads on behind the last line that it counts.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from agent.trajectories.compressor import CompressedLine, TrajectoryCompressor
from agent.trajectories.format import TrajectoryRejected
from agent.trajectories.metrics import TrajectoryTotals
from hermes_state.disk import flush
from hermes_state.errors import CommandError

MAX_LINE_BYTES: Final = 67_108_864
"""Longest line that is read as a trajectory; a longer one is rejected without being held in memory."""
MAX_AHEAD_BYTES: Final = 67_108_864
"""Lines that wait for those before them take no more than this, beside the one that is read last."""
CHECKPOINT_SECONDS: Final = 1.0
"""Time between two checkpoints, in seconds: as much work, paid summaries too, is lost when the process is killed."""
_COPY_BYTES: Final = 1_048_576
_SUFFIXES: Final = {"out": "", "rejected": ".rejected.jsonl", "metrics": ".metrics.jsonl"}

_encode = msgspec.json.Encoder().encode


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run at a checkpoint, and the figures so far."""

    settings: Mapping[str, object]
    total: TrajectoryTotals = TrajectoryTotals()
    is_complete: bool = False
    read_bytes: int = 0
    """Bytes of the source that every line of the other files comes from."""
    read_digest: str = ""
    written_bytes: Mapping[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(_SUFFIXES, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of the source, by its place; `data` is None where it is too long to be held."""

    number: int
    start: int
    end: int
    data: bytes | None


class TrajectoryWriter:
    """OUT and the files beside it. Whoever begins holds OUT's lock until `close`."""

    def __init__(self, source: Path, target: Path, settings: Mapping[str, object], *, is_forced: bool) -> None:
        """Raises `CommandError` where there is something that this run has not begun, or another one goes on."""
        self._state_file = _beside(target, ".metrics.json")
        self._paths = {name: _beside(target, suffix) for name, suffix in _SUFFIXES.items()}
        for path in (self._state_file, *self._paths.values()):
            if path.exists() and path.samefile(source):
                raise CommandError(f"{source} would be overwritten: name another file for what comes of it")
        has_state = self._state_file.exists()
        if not (has_state or is_forced) and (found := next(filter(os.path.lexists, self._paths.values()), None)):
            raise CommandError(f"{found} exists, and no run of this command has begun it; --force overwrites it")
        self._files: dict[str, BinaryIO] = {}
        self.state = RunState(settings=settings)
        if not has_state:
            self._save()
        try:
            self._open()
            if is_forced:
                self._save()
            self.state = self._load(settings)
            self._digest = self._digest_of(source)
            for name, file in self._files.items():
                self._cut(name, file)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for name, path in self._paths.items():
            self._files[name] = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
            if name == "out":
                try:
                    fcntl.flock(self._files[name], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise CommandError(f"another process is writing {path}") from None

    def _load(self, settings: Mapping[str, object]) -> RunState:
        try:
            state = msgspec.json.decode(self._state_file.read_bytes(), type=RunState)
        except (OSError, msgspec.DecodeError) as error:
            raise CommandError(f"{self._state_file} cannot be read ({error}); --force begins anew") from error
        if changed := [key for key, value in settings.items() if state.settings.get(key) != value]:
            raise CommandError(
                f"{self._paths['out']} was begun with another {' and another '.join(changed)}; --force begins anew"
            )
        return state

    def _digest_of(self, source: Path) -> blake2b:
        """Digest of what was read before, which has to be what is there."""
        digest, left, last = blake2b(digest_size=16), self.state.read_bytes, b"\n"
        with source.open("rb") as file:
            while left and (piece := file.read(min(left, _COPY_BYTES))):
                digest.update(piece)
                left -= len(piece)
                last = piece
            has_grown_inside = not last.endswith(b"\n") and file.read(1)
        if self.state.read_bytes and (digest.hexdigest() != self.state.read_digest or has_grown_inside):
            raise CommandError(f"{source} has changed since {self._paths['out']} was begun; --force begins anew")
        return digest

    def _cut(self, name: str, file: BinaryIO) -> None:
        written = self.state.written_bytes[name]
        if file.seek(0, os.SEEK_END) < written:
            raise CommandError(f"{self._paths[name]} is shorter than it was; --force begins anew")
        file.truncate(written)
        file.seek(written)

    def put(self, line: SourceLine, outcome: CompressedLine | TrajectoryRejected | None, source: BinaryIO) -> None:
        """Add what became of the next line; None: it is blank. `source` is at no particular place."""
        total = self.state.total
        if isinstance(outcome, CompressedLine):
            self._files["out"].write(outcome.line + b"\n")
            self._files["metrics"].write(b'{"line":%d,%b\n' % (line.number, _encode(outcome.metrics)[1:]))
            total = total.plus(outcome.metrics)
        elif outcome is not None:
            self._files["metrics"].write(_encode({"line": line.number, "rejected": str(outcome)}) + b"\n")
            total = total.counted("rejected")
        else:
            total = total.counted("blank")
        digest = self._digest.copy()
        for piece in _pieces(line, source):
            digest.update(piece)
            if isinstance(outcome, TrajectoryRejected):
                self._files["rejected"].write(piece)
        self._digest = digest
        # Last, and all of it at once: whatever broke off before this line's end is cut off by the next run.
        self.state = msgspec.structs.replace(
            self.state,
            total=total,
            is_complete=False,
            read_bytes=line.end,
            read_digest=digest.hexdigest(),
            written_bytes={name: file.tell() for name, file in self._files.items()},
        )

    def checkpoint(self, *, is_complete: bool = False) -> None:
        """Put everything on disk, and then say so."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = msgspec.structs.replace(self.state, is_complete=is_complete)
        self._save()

    def _save(self) -> None:
        unfinished = _beside(self._state_file, ".unfinished")
        unfinished.write_bytes(msgspec.json.format(_encode(self.state)) + b"\n")
        flush(unfinished)
        os.replace(unfinished, self._state_file)
        flush(self._state_file.parent)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        rejected = self._paths["rejected"]
        with contextlib.suppress(FileNotFoundError):
            if self.state.is_complete and not rejected.stat().st_size:
                rejected.unlink()


@dataclass(slots=True, kw_only=True)
class TrajectoryRunner:
    """Compresses a file of trajectories into another one."""

    compressor: TrajectoryCompressor
    parallel: int = 8
    """Trajectories that are summarised at one time."""
    on_read: Callable[[int], None] = lambda _bytes: None
    """Told of each line that is done, by its bytes; first of all of those that an earlier run has done."""
    on_rejected: Callable[[int, str], None] = lambda _number, _reason: None
    on_failed: Callable[[int, str], None] = lambda _number, _reason: None
    """Told the number of a trajectory that has no summary and stays as it is, and why."""
    summary_name: str = "none"
    """Name of what writes summaries: a run goes on with the same alone."""
    _saved_at: float = field(default=0.0, init=False)

    async def run(self, source: Path, target: Path, *, is_forced: bool = False) -> TrajectoryTotals:
        """Write `target` from `source`, or go on where the last run was interrupted.

        Lines that are no trajectories are put aside, and so is nothing else. Whatever ends the run, cancellation too,
        leaves a checkpoint. Raises `CommandError`, and what the summaries raise beside `ModelError`.
        """
        settings = {**msgspec.to_builtins(self.compressor.settings), "summary": self.summary_name}
        writer = TrajectoryWriter(source, target, settings, is_forced=is_forced)
        with contextlib.closing(writer), source.open("rb") as file, source.open("rb") as copied:
            self._saved_at = time.monotonic()
            self.on_read(file.seek(writer.state.read_bytes))
            try:
                async with asyncio.TaskGroup() as group:
                    await self._compress_lines(read_lines(file, writer.state.total.lines), group, writer, copied)
            except BaseExceptionGroup as errors:  # the first one has cancelled the others
                writer.checkpoint()
                raise errors.exceptions[0] from errors
            except BaseException:
                writer.checkpoint()
                raise
            writer.checkpoint(is_complete=True)
            return writer.state.total

    async def _compress_lines(
        self, lines: Iterator[SourceLine], group: asyncio.TaskGroup, writer: TrajectoryWriter, copied: BinaryIO
    ) -> None:
        pending: deque[tuple[SourceLine, asyncio.Task[CompressedLine | TrajectoryRejected | None]]] = deque()
        ahead = 0
        for line in lines:
            pending.append((line, group.create_task(self._outcome(line))))
            ahead += line.end - line.start
            while len(pending) >= max(1, self.parallel) or ahead > MAX_AHEAD_BYTES:
                ahead -= await self._finish(*pending.popleft(), writer, copied)
        while pending:
            await self._finish(*pending.popleft(), writer, copied)

    async def _outcome(self, line: SourceLine) -> CompressedLine | TrajectoryRejected | None:
        if line.data is None:
            return TrajectoryRejected(f"it has {line.end - line.start:,} bytes; at most {MAX_LINE_BYTES:,} are read")
        if not line.data.strip():
            return None
        try:
            return await self.compressor.compress_line(line.data)
        except TrajectoryRejected as error:
            return error

    async def _finish(
        self,
        line: SourceLine,
        task: asyncio.Task[CompressedLine | TrajectoryRejected | None],
        writer: TrajectoryWriter,
        copied: BinaryIO,
    ) -> int:
        """Write what became of a line, in its turn; returns the line's bytes."""
        outcome = await task
        writer.put(line, outcome, copied)
        if isinstance(outcome, TrajectoryRejected):
            self.on_rejected(line.number, str(outcome))
        elif outcome is not None and outcome.metrics.summary_errors:
            self.on_failed(line.number, outcome.metrics.error or "")
        self.on_read(line.end - line.start)
        if time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS:
            writer.checkpoint()
            self._saved_at = time.monotonic()
        return line.end - line.start


def read_lines(file: BinaryIO, number: int = 0) -> Iterator[SourceLine]:
    """The lines of a file from where it is on, of which `number` came before."""
    start = file.tell()
    while data := file.readline(MAX_LINE_BYTES + 1):
        number, is_held, end = number + 1, len(data) <= MAX_LINE_BYTES, start + len(data)
        while not is_held and data and not data.endswith(b"\n"):
            data = file.readline(_COPY_BYTES)
            end += len(data)
        yield SourceLine(number=number, start=start, end=end, data=data if is_held else None)
        start = end


def _pieces(line: SourceLine, source: BinaryIO) -> Iterator[bytes]:
    if line.data is not None:
        yield line.data
        return
    source.seek(line.start)
    for start in range(line.start, line.end, _COPY_BYTES):
        yield source.read(min(_COPY_BYTES, line.end - start))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
