"""Copies of images: every file becomes a small PNG or JPEG, or is reported as unreadable."""

import asyncio
import contextlib
import inspect
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageCms

from agent.images import scaling, worker
from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError, copy_name, mime_of
from hermes_state.files.folder import AttachmentFolder
from tests.gateway.helpers import eventually
from tests.pictures import noise, opened, picture, saved

SMALL = ImageLimits(max_side=100, max_bytes=20_000)


@pytest.fixture
def scaler(tmp_path: Path) -> ImageScaler:
    return ImageScaler(AttachmentFolder(tmp_path))


async def scaled(scaler: ImageScaler, folder: Path, data: bytes, limits: ImageLimits | None = None) -> bytes:
    (folder / "one").write_bytes(data)
    return await scaler.scaled(folder / "one", limits or ImageLimits())


@pytest.mark.parametrize("size", [(3_000, 2_000), (2_000, 3_000), (9_000, 100), (2_001, 2_001)])
async def test_the_longest_side_has_2000_pixels(scaler: ImageScaler, tmp_path: Path, size: tuple[int, int]) -> None:
    image = opened(await scaled(scaler, tmp_path, picture(size)))
    assert max(image.size) == 2_000
    longest, shortest = max(size), min(size)
    assert min(image.size) == pytest.approx(shortest * 2_000 / longest, abs=1)


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("RGBA", "WEBP")])
async def test_no_copy_has_more_than_3_500_000_bytes(scaler: ImageScaler, tmp_path: Path, mode: str, kind: str) -> None:
    quickly = {"lossless": True, "method": 0, "quality": 0} if kind == "WEBP" else {"compress_level": 0}
    data = saved(noise((2_000, 2_000), mode), kind, **quickly)
    assert len(data) > 10_000_000
    copy = await scaled(scaler, tmp_path, data)
    assert len(copy) <= 3_500_000
    assert max(opened(copy).size) == 2_000


@pytest.mark.parametrize("max_bytes", [100_000, 5_000, 900])
async def test_a_smaller_limit_holds_for_any_image(scaler: ImageScaler, tmp_path: Path, max_bytes: int) -> None:
    data = saved(noise((800, 600)), "JPEG", quality=95)
    copy = await scaled(scaler, tmp_path, data, ImageLimits(max_side=700, max_bytes=max_bytes))
    assert len(copy) <= max_bytes
    assert max(opened(copy).size) <= 700


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "ICO", "MPO"])
async def test_every_kind_becomes_png_or_jpeg(scaler: ImageScaler, tmp_path: Path, kind: str) -> None:
    copy = await scaled(scaler, tmp_path, picture(kind=kind))
    image = opened(copy)
    assert image.format in ("PNG", "JPEG")
    assert mime_of(copy) == f"image/{image.format.lower()}"
    assert image.convert("RGB").getpixel((20, 20)) == pytest.approx((255, 0, 0), abs=25)


@pytest.mark.parametrize(
    "image",
    [
        Image.new("1", (40, 40), 1),
        Image.new("L", (40, 40), 255),
        Image.new("LA", (40, 40), (255, 255)),
        Image.new("I;16", (40, 40), 65_535),
        Image.new("RGBA", (40, 40), "white"),
        Image.new("P", (40, 40)).convert("RGB", palette=Image.Palette.WEB).point(lambda _: 255).quantize(2),
    ],
    ids=lambda image: str(image.mode),
)
async def test_every_pixel_mode_keeps_white(scaler: ImageScaler, tmp_path: Path, image: Image.Image) -> None:
    copy = opened(await scaled(scaler, tmp_path, saved(image)))
    assert copy.convert("RGB").getpixel((20, 20)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["CMYK", "L"])
async def test_images_from_printers_and_scanners_are_read(scaler: ImageScaler, tmp_path: Path, mode: str) -> None:
    image = Image.new("L", (40, 40), 0)
    image.paste(255, (20, 0, 40, 40))
    data = saved(image.convert("RGB").convert(mode) if mode == "CMYK" else image.convert(mode), "TIFF")
    copy = opened(await scaled(scaler, tmp_path, data)).convert("L")
    dark, light = copy.getpixel((5, 20)), copy.getpixel((35, 20))
    assert dark < 50
    assert light > 205


async def test_orientation_is_applied_and_metadata_is_dropped(scaler: ImageScaler, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "12 Secret Street"
    image = Image.new("RGB", (400, 200), "white")
    image.paste("black", (0, 0, 200, 200))
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        copy = await scaled(scaler, tmp_path, saved(image, kind, exif=exif))
        turned = opened(copy)
        assert turned.size == (200, 400), kind
        assert turned.convert("L").getpixel((100, 50)) < 50, "the left side is now on top"
        assert b"Secret" not in copy
        assert not dict(turned.getexif())
        assert "comment" not in turned.info


async def test_colours_of_another_profile_become_srgb(scaler: ImageScaler, tmp_path: Path) -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = bytearray(lab)
    # The profile of a screen with red and blue swapped: its blue is red on every other screen.
    places = {lab[at : at + 4]: at for at in range(132, 132 + 12 * struct.unpack(">I", lab[128:132])[0], 12)}
    swapped[places[b"rXYZ"] : places[b"rXYZ"] + 4], swapped[places[b"bXYZ"] : places[b"bXYZ"] + 4] = b"bXYZ", b"rXYZ"
    data = picture(colour="blue", icc_profile=bytes(swapped))
    copy = opened(await scaled(scaler, tmp_path, data))
    assert copy.convert("RGB").getpixel((5, 5)) == pytest.approx((255, 0, 0), abs=8)
    assert "icc_profile" not in copy.info


async def test_a_broken_profile_or_orientation_does_not_lose_the_image(scaler: ImageScaler, tmp_path: Path) -> None:
    assert opened(await scaled(scaler, tmp_path, picture(icc_profile=b"nonsense" * 20))).size == (64, 48)
    broken = picture(kind="JPEG", exif=b"Exif\0\0MM\0\x2a\0\0\0\x08\xff\xff" + b"\xff" * 20)
    assert opened(await scaled(scaler, tmp_path, broken)).size == (64, 48)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
async def test_an_animation_becomes_its_first_frame(scaler: ImageScaler, tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (50, 50), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    copy = opened(await scaled(scaler, tmp_path, data))
    assert getattr(copy, "n_frames", 1) == 1
    assert copy.convert("RGB").getpixel((5, 5)) == pytest.approx((255, 0, 0), abs=5)


async def test_transparency_stays_while_the_png_is_small(scaler: ImageScaler, tmp_path: Path) -> None:
    copy = opened(await scaled(scaler, tmp_path, saved(Image.new("RGBA", (50, 50), (255, 0, 0, 0)))))
    assert (copy.mode, copy.getpixel((5, 5))) == ("RGBA", (255, 0, 0, 0))


def _png(width: int, height: int) -> bytes:
    """An image with a header that states its size, and almost nothing else."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1_000_000)), (b"IEND", b"")]
    body = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize(
    "data", [_png(20_000, 20_000), _png(60_000, 60_000), _png(9_500, 9_500)], ids=["400 MP", "3.6 GP", "90 MP"]
)
async def test_a_decompression_bomb_is_detected_by_its_header(scaler: ImageScaler, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(OversizedImageError):
        await scaled(scaler, tmp_path, data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MZ" + b"\0" * 500,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 20,
        b"\xff\xd8\xff\xe0" + b"\0" * 500,
        b"GIF89a" + b"0" * 20,
        b"RIFF0000WEBPVP8 ",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\0\0\0\x20ftypheic" + b"\0" * 99,
        saved(noise((300, 300)), "JPEG")[:5_000],
        saved(noise((300, 300)))[:50_000],
    ],
    ids=["empty", "exe", "svg", "png", "jpeg", "gif", "webp", "eps", "heic", "half a jpeg", "half a png"],
)
async def test_incomplete_images_and_others_are_unreadable(scaler: ImageScaler, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UnreadableImageError) as caught:
        await scaled(scaler, tmp_path, data)
    assert type(caught.value) is UnreadableImageError


async def test_the_memory_of_a_worker_is_bounded(
    scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(inspect.getsource(worker).replace("1 << 30", "190 << 20"))
    monkeypatch.setattr(scaling, "_WORKER", script)
    small = await scaled(scaler, tmp_path, picture((400, 400)))
    assert opened(small).size == (400, 400)
    with pytest.raises(OversizedImageError):
        await scaled(scaler, tmp_path, picture((9_000, 9_000)))


@contextlib.contextmanager
def _worker_that(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    script = folder / "other_worker.py"
    script.write_text(code)
    monkeypatch.setattr(scaling, "_WORKER", script)
    yield


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "import os; os.abort()", "print('x', end=''); 1 / 0"])
async def test_a_worker_that_hangs_or_crashes_does_no_harm(
    scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(scaling, "SCALE_SECONDS", 1.0)
    with _worker_that(code, tmp_path, monkeypatch), pytest.raises(UnreadableImageError):
        await scaled(scaler, tmp_path, picture())


async def test_a_worker_ends_with_its_cancelled_caller(
    scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    code = (
        f"import os, time; path = {str(pid)!r}; open(path + '.part', 'w').write(str(os.getpid())); "
        "os.rename(path + '.part', path); time.sleep(60)"
    )
    with _worker_that(code, tmp_path, monkeypatch):
        task = asyncio.create_task(scaled(scaler, tmp_path, picture()))
        await eventually(pid.exists, "the worker")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_worker_has_no_secret_in_its_environment(
    scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_MODEL__API_KEY", "sk-secret")
    with _worker_that("import os; print(sorted(os.environ))", tmp_path, monkeypatch):
        assert b"HERMES" not in await scaled(scaler, tmp_path, picture())


def test_exit_codes_match_on_both_sides() -> None:
    assert scaling._TOO_LARGE == worker.TOO_LARGE
    assert worker.TOO_LARGE != worker.UNREADABLE


# ---- copies


async def test_a_copy_is_made_once(scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture((300, 200))
    (tmp_path / "one").write_bytes(data)
    copy = await scaler.load("one", SMALL)
    assert (opened(copy).size, (tmp_path / "one").read_bytes()) == ((100, 67), data)
    assert (tmp_path / copy_name("one", SMALL)).stat().st_mode & 0o777 == 0o600
    with _worker_that("1 / 0", tmp_path, monkeypatch):
        assert await scaler.load("one", SMALL) == copy


async def test_an_unreadable_stored_image_is_tried_once(
    scaler: ImageScaler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_bytes(b"pixels")
    assert await scaler.load("one", SMALL) is None
    with _worker_that("print('found')", tmp_path, monkeypatch):
        assert await scaler.load("one", SMALL) is None


async def test_a_missing_image_gives_none(scaler: ImageScaler) -> None:
    assert await scaler.load("one", SMALL) is None


async def test_a_folder_that_cannot_store_copies_does_not_lose_the_image(scaler: ImageScaler, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(picture())
    (tmp_path / f"{copy_name('one', SMALL)}.part").mkdir()
    copy = await scaler.load("one", SMALL)
    assert opened(copy).size == (64, 48)
