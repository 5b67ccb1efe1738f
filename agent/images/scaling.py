"""Scaling of images: a worker process for each, and the scaled copies on disk beside their originals.

A copy is named by its original and its limits, so it is made once, whatever route it is sent on, and the bytes of a
prompt stay the same. An empty copy stands for an original that cannot be scaled.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from agent.workers import run_worker
from hermes_state.files.folder import AttachmentFolder

log = structlog.get_logger()

_WORKER: Final = Path(__file__).with_name("worker.py")  # run, never imported: the daemon loads no decoder
_TOO_LARGE: Final = 4
"""Exit code of the worker, as it stands there."""
SCALE_SECONDS: Final = 30.0
"""Longest work on one image, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Largest image that is sent, by default what every known provider takes."""

    max_side: int = 2_000
    """Pixels of the longer side."""
    max_bytes: int = 3_500_000
    """Bytes before base64, which adds a third."""


class UnreadableImageError(Exception):
    """The file is no image of a kind that can be read, or a broken one."""


class OversizedImageError(UnreadableImageError):
    """Scaling the image would take more memory or time than it may."""


class ImageScaler:
    """Scales stored images and keeps the copies. One worker runs at a time, whoever asks."""

    def __init__(self, files: AttachmentFolder) -> None:
        """`files` has the stored images, and the copies."""
        self._files = files
        self._one = asyncio.Lock()

    async def scaled(self, source: Path, limits: ImageLimits) -> bytes:
        """The image in a file as PNG or JPEG within `limits`.

        Raises `UnreadableImageError`, and `OSError` where the file is gone or no worker can be started now.
        """
        await asyncio.to_thread(source.stat)
        async with self._one:
            try:
                code, data = await run_worker(
                    _WORKER, str(source), str(limits.max_side), str(limits.max_bytes), seconds=SCALE_SECONDS
                )
            except TimeoutError:
                raise OversizedImageError from None
        if code == 0 and data:
            return data
        log.info("image.not_scaled", exit_code=code)
        # By a signal: the decoder crashed, or the system needed the memory.
        raise OversizedImageError if code == _TOO_LARGE or code < 0 else UnreadableImageError

    async def load(self, path: str, limits: ImageLimits) -> bytes | None:
        """The copy of a stored image, made now if need be; None where the image is gone or cannot be shown."""
        try:
            return await asyncio.to_thread(self._files.read_copy, copy_name(path, limits)) or None
        except FileNotFoundError:
            pass
        try:
            data = await self.scaled(await asyncio.to_thread(self._files.local, path), limits)
        except UnreadableImageError:
            data = b""
        except OSError as error:
            log.warning("image.not_loaded", error=type(error).__name__)
            return None
        await self.keep(path, limits, data)
        return data or None

    async def keep(self, path: str, limits: ImageLimits, data: bytes) -> None:
        """Store a copy; on a full disk it is made anew the next time."""
        try:
            await asyncio.to_thread(self._files.keep_copy, copy_name(path, limits), data)
        except OSError as error:
            log.warning("image.copy_not_kept", error=type(error).__name__)


def copy_name(path: str, limits: ImageLimits) -> str:
    """Path of the copy of a stored image; all copies of it begin with its own path and a dot."""
    return f"{path}.{limits.max_side}-{limits.max_bytes}"


def mime_of(data: bytes) -> str:
    """Kind of a copy."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
