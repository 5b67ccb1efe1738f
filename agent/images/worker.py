"""Image worker: scales one image in a separate process with limits on memory and time.

Strangers can send harmful image files, so the daemon decodes no images. `python worker.py FILE MAX_SIDE MAX_BYTES`
writes a PNG or JPEG to standard output, because every provider accepts these two kinds. Only the first frame of an
animation is kept. Colours are converted to sRGB, and the image is rotated as its metadata specifies. Then all metadata
is removed, because it can reveal where a person lives.
"""

import contextlib
import io
import resource
import sys
import warnings
import zlib
from pathlib import Path
from typing import Final

from PIL import AvifImagePlugin, Image, ImageCms, ImageOps

UNREADABLE: Final = 3
"""Exit code if the file is not an image in a supported format, or is corrupt."""
TOO_LARGE: Final = 4
"""Exit code if the image would take too much memory or time."""
# Formats to decode. EPS files are programs, other formats are rare, and each additional decoder is a risk.
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "ICO")


def main(path: str, max_side: int, max_bytes: int) -> int:
    """Write the scaled image to standard output and return the exit code."""
    # Limit the memory (some decoders hold an image twice), the CPU seconds, and the bytes written to files.
    for bound, most in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 30), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some limits; the caller also limits the time
            resource.setrlimit(bound, (most, most))
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each thread needs memory, and a machine can have many cores
    Image.MAX_IMAGE_PIXELS = 89_478_485  # a pixel needs three or four bytes
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        sys.stdout.buffer.write(scaled(_with_checksums(Path(path).read_bytes()), max_side, max_bytes))
    except (MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return TOO_LARGE
    except Exception:  # noqa: BLE001  # decoders may raise anything for broken bytes
        return UNREADABLE
    return 0


def _with_checksums(data: bytes) -> bytes:
    """Return a PNG file with correct checksums. Browsers ignore wrong checksums, but Pillow refuses them."""
    whole, start = bytearray(data), 8
    while data.startswith(b"\x89PNG") and start + 12 <= len(data):
        end = start + 8 + int.from_bytes(data[start : start + 4])
        whole[end : end + 4] = zlib.crc32(data[start + 4 : end]).to_bytes(4)
        start = end + 4
    return bytes(whole)


def scaled(data: bytes, max_side: int, max_bytes: int) -> bytes:
    """Return the image in `data` as PNG or JPEG with at most `max_side` pixels per side and `max_bytes` bytes."""
    with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
        may_be_png = opened.format not in ("JPEG", "MPO", "JPEG2000", "AVIF")
        image: Image.Image = opened
        if image.mode.startswith("I;16"):
            image = image.point(lambda value: value / 256).convert("L")
        # Convert only if needed, because Pillow can scale an unconverted JPEG while it loads the file.
        if image.mode not in ("L", "RGB", "RGBA", "CMYK") or "transparency" in image.info:
            image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
        with contextlib.suppress(Exception):  # the metadata can be broken even if the image is not
            ImageOps.exif_transpose(image, in_place=True)
        mode, profile = "RGBA" if image.mode == "RGBA" else "RGB", image.info.get("icc_profile")
        if profile:  # an image without a profile is treated as sRGB
            with contextlib.suppress(ImageCms.PyCMSError, OSError, ValueError):  # a broken profile is ignored
                source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
                target = ImageCms.createProfile("sRGB")
                image = ImageCms.profileToProfile(image, source, target, outputMode=mode) or image
        image = image.convert(mode)
    while True:
        image.info.clear()  # otherwise comments and profiles would be saved again
        copy = _encoded(image, max_bytes, may_be_png=may_be_png)
        if len(copy) <= max_bytes or max(image.size) == 1:
            return copy
        width, height = (max(1, side * 3 // 4) for side in image.size)
        image.thumbnail((width, height), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, max_bytes: int, *, may_be_png: bool) -> bytes:
    """Return a PNG if it is small, or else the best JPEG that fits. If none fits, return the smallest JPEG."""
    if (may_be_png or image.mode == "RGBA") and len(data := _saved(image, "PNG")) <= max_bytes // 3:
        return data
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    for quality in (85, 70, 50):
        data = _saved(image, "JPEG", quality=quality)
        if len(data) <= max_bytes:
            break
    return data


def _saved(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
