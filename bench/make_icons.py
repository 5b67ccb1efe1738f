"""Draw the icons of the installed web chat: `python -m bench.make_icons`. They look like `icon.svg`."""

from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

FOLDER: Final = Path(__file__).parent.parent / "platforms" / "local" / "static" / "app"
GREEN, WHITE = "#2f6f5e", "#ffffff"
LINES: Final = (((11, 9), (11, 23)), ((21, 9), (21, 23)), ((11, 16), (21, 16)))
"""Strokes of the letter H in a square of 32 units. They stay inside the circle that every launcher shows."""


def draw(size: int) -> Image.Image:
    scale = size * 4 / 32
    image = Image.new("RGB", (size * 4, size * 4), GREEN)
    pen = ImageDraw.Draw(image)
    for line in LINES:
        points = [(x * scale, y * scale) for x, y in line]
        pen.line(points, WHITE, round(3.2 * scale))
        for x, y in points:
            pen.circle((x, y), 1.6 * scale, WHITE)
    return image.resize((size, size), Image.Resampling.LANCZOS).quantize(32)


if __name__ == "__main__":
    for side in (192, 512):
        draw(side).save(FOLDER / f"icon-{side}.png", optimize=True)
