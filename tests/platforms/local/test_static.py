"""Static files of the web chat."""

import hashlib
import re
from pathlib import Path

import platforms.local
from platforms.local.routes import load_assets

STATIC = Path(platforms.local.__file__).parent / "static"
VENDOR = STATIC / "vendor"


def test_vendored_files_match_their_reviewed_checksums() -> None:
    listed = {}
    for line in (VENDOR / "CHECKSUMS").read_text().splitlines():
        digest, name = line.split()
        listed[name] = digest
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert {name: digest for name, digest in found.items() if name != "CHECKSUMS"} == listed


def test_the_stream_extension_has_the_version_of_its_library() -> None:
    versions = {name: re.search(r"\d+\.\d+\.\d+", name) for name in ("htmx", "hx-sse") for name in _starting(name)}
    assert len({found.group() for found in versions.values() if found}) == 1
    [library] = _starting("htmx-")
    version = re.search(r"\d+\.\d+\.\d+", library)
    assert version is not None
    assert f'this.version="{version.group()}"' in (VENDOR / library).read_text()


def test_our_scripts_do_not_evaluate_text() -> None:
    script = "".join(path.read_text() for folder in ("app", "scripts") for path in (STATIC / folder).glob("*.js"))
    assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write", script)


def _starting(prefix: str) -> list[str]:
    return [path.name for path in VENDOR.glob(f"{prefix}*.js")]


def test_the_manifest_and_the_worker_name_files_that_exist() -> None:
    assets = load_assets()
    named = re.findall(
        r"/static/([\w.-]+)", (assets["manifest.webmanifest"].content + assets["worker.js"].content).decode()
    )
    assert set(named) <= set(assets)
    assert {assets[name].mime for name in ("icon.svg", "icon-192.png")} == {"image/svg+xml", "image/png"}


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_code_colours_have_enough_contrast_in_both_themes() -> None:
    light, dark = (STATIC / "styles" / "tokens.css").read_text().split("@media")
    for tokens in (colours(light), colours(dark)):
        ground = luminance(tokens["sunken"])
        for name, colour in tokens.items():
            if name.startswith("code-") or name in ("soft", "ink", "accent"):
                low, high = sorted((ground, luminance(colour)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_every_style_sheet_is_part_of_the_one_that_pages_load() -> None:
    joined = load_assets()["app.css"].content.decode()
    assert all(path.read_text() in joined for path in (STATIC / "styles").iterdir())
