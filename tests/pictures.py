"""Images as people send them. They are generated, so that each test names only what is special about its image."""

import io
import random
from typing import Any

from PIL import Image


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the image as a file. `options` are passed to Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(size: tuple[int, int] = (64, 48), colour: str = "red", kind: str = "PNG", **options: Any) -> bytes:
    """Return an image file with one colour."""
    return saved(Image.new("RGB", size, colour), kind, **options)


def noise(size: tuple[int, int], mode: str = "RGB", seed: int = 1) -> Image.Image:
    """Return a random image that no format can compress."""
    return Image.frombytes(mode, size, random.Random(seed).randbytes(size[0] * size[1] * len(mode)))


def opened(data: bytes) -> Image.Image:
    """Return the decoded image of a file."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image
