"""Pictures as people send them: made anew, so that a test names what is special about its own."""

import io
import random
from typing import Any

from PIL import Image


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The file that an image makes; `options` are Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(size: tuple[int, int] = (64, 48), colour: str = "red", kind: str = "PNG", **options: Any) -> bytes:
    """A file of one colour."""
    return saved(Image.new("RGB", size, colour), kind, **options)


def noise(size: tuple[int, int], mode: str = "RGB", seed: int = 1) -> Image.Image:
    """An image that no format makes small."""
    return Image.frombytes(mode, size, random.Random(seed).randbytes(size[0] * size[1] * len(mode)))


def opened(data: bytes) -> Image.Image:
    """The image in a file, decoded."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image
