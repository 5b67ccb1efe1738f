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


def test_every_style_sheet_is_part_of_the_one_that_pages_load() -> None:
    joined = load_assets()["app.css"].content.decode()
    assert all(path.read_text() in joined for path in (STATIC / "styles").iterdir())
