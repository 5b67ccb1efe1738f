"""Images of a transcript as data URLs, for models that see."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path

from hermes_state.values import Image, Transcript

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Largest sum of all images of one request, in bytes; providers refuse bodies of 50 MB, and base64 adds a third."""


async def load_image_urls(transcript: Transcript, folder: Path) -> Mapping[int, str]:
    """Data URLs by attachment id, the newest images first until `MAX_IMAGE_BYTES`; missing files are left out."""
    images = [image for row in reversed(transcript) for image in row.body.images]
    return await asyncio.to_thread(_read, images, folder) if images else {}


def _read(images: list[Image], folder: Path) -> dict[int, str]:
    urls: dict[int, str] = {}
    bytes_left = MAX_IMAGE_BYTES
    for image in images:
        try:
            data = (folder / image.path).read_bytes()
        except OSError:  # removed by retention, or by hand: the model is told that it cannot see it
            continue
        bytes_left -= len(data)
        if bytes_left < 0:
            break
        urls[image.attachment_id] = f"data:{image.mime};base64,{base64.b64encode(data).decode()}"
    return urls
