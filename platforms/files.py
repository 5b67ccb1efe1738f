"""Writes files from the network or the disk, up to a size limit."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from hermes_state.errors import FileSizeExceeded, MessageRejected, PlatformUnavailable
from hermes_state.values import AttachmentKind, IncomingAttachment

CHUNK_BYTES = 256 * 1024
"""Number of bytes to read and write at a time."""
UNREADABLE_QUOTE = IncomingAttachment(kind=AttachmentKind.OTHER, file_ref="", name="the quoted message", is_quoted=True)
"""Placeholder for a quoted message that cannot be read. The gateway tells the sender that it could not read it."""


def kind_of(mime: str | None, other: AttachmentKind) -> AttachmentKind:
    """Return the attachment kind for a media type, or `other` if the type is not image, audio or video."""
    main = (mime or "").partition("/")[0]
    return AttachmentKind(main) if main in ("image", "audio", "video") else other


async def save_stream(chunks: AsyncIterator[bytes], target: Path, max_bytes: int) -> int:
    """Write `chunks` to `target`, and return the size in bytes. On failure no file remains.

    Raises `FileSizeExceeded`, `OSError`, and any error from reading the chunks.
    """
    size = 0
    is_whole = False
    try:
        with await asyncio.to_thread(target.open, "wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise FileSizeExceeded(max_bytes)
                await asyncio.to_thread(file.write, chunk)
        is_whole = True
        return size
    finally:
        if not is_whole:
            with suppress(OSError):  # must not hide the original failure
                await asyncio.to_thread(target.unlink, missing_ok=True)


def copy_file(source: Path, target: Path, max_bytes: int) -> int:
    """Copy `source` to `target`, and return its size in bytes. On failure no file remains. Blocks the calling thread.

    Raises `FileSizeExceeded`, `MessageRejected` if `source` was deleted, and `PlatformUnavailable` if the disk fails.
    """
    try:
        size = source.stat().st_size
        if size > max_bytes:
            raise FileSizeExceeded(max_bytes)
        shutil.copyfile(source, target)
    except OSError as error:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        if isinstance(error, FileNotFoundError) and target.parent.is_dir():
            raise MessageRejected("the file was deleted") from error
        raise PlatformUnavailable(f"the file could not be copied: {error.strerror or error}") from error
    return size
