"""Downloads: a file from the network to disk, piece by piece and no larger than allowed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from hermes_state.errors import FileTooLarge

CHUNK_BYTES = 256 * 1024
"""Size of a piece that is read and written at a time, in bytes."""


async def save_stream(chunks: AsyncIterator[bytes], target: Path, max_bytes: int) -> int:
    """Write `chunks` to `target`; returns the size in bytes and leaves nothing behind on failure.

    Raises `FileTooLarge`, `OSError`, and what reading the chunks raises.
    """
    size = 0
    is_whole = False
    try:
        with await asyncio.to_thread(target.open, "wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise FileTooLarge(max_bytes)
                await asyncio.to_thread(file.write, chunk)
        is_whole = True
        return size
    finally:
        if not is_whole:
            with suppress(OSError):  # a file that cannot be removed is not worth hiding the failure
                await asyncio.to_thread(target.unlink, missing_ok=True)
