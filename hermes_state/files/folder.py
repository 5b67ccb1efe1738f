"""Attachment files in a folder. Each path is derived from a hash of the file's content."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hermes_state.attachments import StoredFile

LEFTOVER_MILLIS = 24 * 3_600_000
"""Age in milliseconds (one day) after which an incoming file counts as a leftover. No download takes that long."""


class AttachmentFolder:
    """Attachment files in a folder. A scaled copy of an image has the same path plus a dot and a suffix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new_file(self) -> Path:
        """Create an empty file. Fill it, then pass it to `keep`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="incoming-", dir=self.folder)
        os.close(handle)
        return Path(name)

    def keep(self, fetched: Path, name: str, mime: str | None) -> StoredFile:
        """Move a file made by `new_file` to the path for its content. Files with the same bytes share a path."""
        file = stored_file(fetched, name, mime)
        self._put(fetched, file)
        return file

    def store(self, data: bytes, name: str, mime: str) -> StoredFile:
        """Store bytes as a file. Raises `OSError` if that fails."""
        target = self.new_file()
        try:
            target.write_bytes(data)
            return self.keep(target, name, mime)
        finally:
            with suppress(OSError):  # an unused file is removed later
                target.unlink(missing_ok=True)

    def local(self, path: str) -> Path:
        """Return the local path of a stored file. If the file is missing, this call or opening the path fails."""
        return self.folder / path

    def read(self, path: str) -> bytes:
        return self.local(path).read_bytes()

    def read_copy(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def keep_copy(self, name: str, data: bytes) -> None:
        """Store a scaled copy, completely or not at all. `name` is the path of the original, a dot and a suffix."""
        part = self.new_file()  # not `name` itself, because another node may be writing the same copy
        try:
            part.write_bytes(data)
            part.replace(self.folder / name)
        finally:
            part.unlink(missing_ok=True)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            original = self.folder / path
            for file in (original, *original.parent.glob(f"{original.name}.*")):
                file.unlink(missing_ok=True)

    def remove_leftovers(self, before_ms: int) -> None:
        """Remove leftovers of ended processes: incoming files last changed before `before_ms` (UTC milliseconds)."""
        for path, state in states_of(self.folder.glob("incoming-*")):
            if state.st_mtime * 1000 < before_ms:
                path.unlink(missing_ok=True)

    def _put(self, fetched: Path, file: StoredFile) -> None:
        path = self.folder / file.path
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fetched.replace(path)


def states_of(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each file with its `stat` result. Skip files that no longer exist."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield path, path.stat()


def stored_file(fetched: Path, name: str, mime: str | None) -> StoredFile:
    with fetched.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    path, size = f"{sha256[:2]}/{sha256}", fetched.stat().st_size
    return StoredFile(sha256=sha256, path=path, name=name, mime=mime, size_bytes=size)
