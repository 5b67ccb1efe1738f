"""Image scaling: a worker process scales each image, and the copies are stored on disk next to the originals.

A copy is named after its original and the size limits. So each copy is made only once for all routes, and prompts stay
identical byte for byte. An empty copy marks an original that cannot be scaled.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from agent.workers import run_worker
from hermes_state.attachments import StoredFile
from hermes_state.files.folder import AttachmentFolder

log = structlog.get_logger()

_WORKER: Final = Path(__file__).with_name("worker.py")  # never imported, because the daemon must not load decoders
_TOO_LARGE: Final = 4
"""Exit code `TOO_LARGE` of the worker."""
SCALE_SECONDS: Final = 30.0
"""Time limit for scaling an image, in seconds."""


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits for images that are sent. Every known provider accepts the defaults."""

    max_side: int = 2_000
    """Maximum length of the longer side, in pixels."""
    max_bytes: int = 3_500_000
    """Maximum size in bytes, before base64 adds a third."""


class UnreadableImageError(Exception):
    """The file is not an image in a supported format, or it is corrupt."""


class OversizedImageError(UnreadableImageError):
    """Scaling the image would take too much memory or time."""


class ImageScaler:
    """Scales stored images and keeps the copies. One worker runs at a time."""

    def __init__(self, files: AttachmentFolder) -> None:
        self._files = files
        self._one = asyncio.Lock()

    async def scaled(self, source: Path, limits: ImageLimits) -> bytes:
        """Return a scaled PNG or JPEG. Raises `UnreadableImageError`, or `OSError` if the file or worker is missing."""
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
        log.info("image.scaling_failed", exit_code=code)
        # A negative code means that a signal ended the worker: the decoder crashed, or memory ran out.
        raise OversizedImageError if code == _TOO_LARGE or code < 0 else UnreadableImageError

    async def load(self, path: str, limits: ImageLimits) -> bytes | None:
        """Return a stored image's scaled copy, and make it if needed. Return None for a missing or unreadable image."""
        try:
            return await asyncio.to_thread(self._files.read_copy, copy_name(path, limits)) or None
        except FileNotFoundError:
            pass
        try:
            data = await self.scaled(await asyncio.to_thread(self._files.local, path), limits)
        except UnreadableImageError:
            data = b""
        except OSError as error:
            log.warning("image.load_failed", error=type(error).__name__)
            return None
        await self.keep(path, limits, data)
        return data or None

    async def store(self, data: bytes, name: str) -> StoredFile:
        """Store a JPEG image that is within the default limits as a file and as its own copy.

        Raises `OSError` if the file cannot be stored.
        """
        file = await asyncio.to_thread(self._files.store, data, name, "image/jpeg")
        await self.keep(file.path, ImageLimits(), data)
        return replace(file, size_bytes=2 * len(data))

    async def keep(self, path: str, limits: ImageLimits, data: bytes) -> None:
        """Store a copy. If that fails, for example because the disk is full, the copy is made again the next time."""
        try:
            await asyncio.to_thread(self._files.keep_copy, copy_name(path, limits), data)
        except OSError as error:
            log.warning("image.copy_failed", error=type(error).__name__)


def copy_name(path: str, limits: ImageLimits) -> str:
    """Return the path of a stored image's copy: the image's own path, a dot, and the limits."""
    return f"{path}.{limits.max_side}-{limits.max_bytes}"


def mime_of(data: bytes) -> str:
    """Return the media type of a copy."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
