"""Images among the files that people send: told by their bytes, and scaled once when they arrive.

What cannot be looked at is said at once, whatever platform, name or model: refused by a provider later, it would be
refused with every message that follows.
"""

from pathlib import Path, PurePath
from typing import Final

from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError
from gateway.turns.transcription import AttachmentError
from hermes_state.values import AttachmentKind, IncomingAttachment

# fmt: off
IMAGE_SUFFIXES: Final = frozenset((
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif",
    ".jp2", ".ico", ".jxl",
))
# fmt: on
_UNTOLD: Final = (None, "application/octet-stream", "binary/octet-stream")
"""MIME types that say nothing."""


def may_be_image(attachment: IncomingAttachment) -> bool:
    """True where a look at the bytes is worth a download."""
    if attachment.kind is AttachmentKind.IMAGE:
        return True
    if attachment.kind not in (AttachmentKind.DOCUMENT, AttachmentKind.OTHER):
        return False
    mime, suffix = attachment.mime, PurePath(attachment.name.lower()).suffix
    is_untold = attachment.kind is AttachmentKind.DOCUMENT and mime in _UNTOLD
    return is_untold or suffix in IMAGE_SUFFIXES or (mime or "").lower().startswith("image/")


async def scaled_image(
    scaler: ImageScaler, fetched: Path, quoted_name: str, no_image: AttachmentError | None = None
) -> bytes:
    """The copy of a fetched image that models are shown.

    Raises `AttachmentError`; where the file turns out to be no image, it is `no_image` if there is one.
    """
    try:
        return await scaler.scaled(fetched, ImageLimits())
    except OversizedImageError as error:
        raise AttachmentError(
            f"“{quoted_name}” has more pixels than I can look at; please send a smaller copy."
        ) from error
    except UnreadableImageError as error:
        raise no_image or AttachmentError(
            f"“{quoted_name}” is not an image that I can look at; please send it as PNG, JPEG, GIF or WebP."
        ) from error
