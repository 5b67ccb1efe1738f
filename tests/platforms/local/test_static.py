"""Static files of the web chat."""

import hashlib
import re
from pathlib import Path

import platforms.local

STATIC = Path(platforms.local.__file__).parent / "static"
OWN = {"app.css", "app.js", "enter.js", "CHECKSUMS"}


def test_vendored_files_match_their_reviewed_checksums() -> None:
    listed = {}
    for line in (STATIC / "CHECKSUMS").read_text().splitlines():
        digest, name = line.split()
        listed[name] = digest
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.iterdir()}
    assert {name: digest for name, digest in found.items() if name not in OWN} == listed


def test_the_stream_extension_has_the_version_of_its_library() -> None:
    versions = {name: re.search(r"\d+\.\d+\.\d+", name) for name in ("htmx", "hx-sse") for name in _starting(name)}
    assert len({found.group() for found in versions.values() if found}) == 1
    [library] = _starting("htmx-")
    version = re.search(r"\d+\.\d+\.\d+", library)
    assert version is not None
    assert f'this.version="{version.group()}"' in (STATIC / library).read_text()


def test_our_scripts_do_not_evaluate_text() -> None:
    script = "".join((STATIC / name).read_text() for name in OWN if name.endswith(".js"))
    assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write", script)


def _starting(prefix: str) -> list[str]:
    return [path.name for path in STATIC.glob(f"{prefix}*.js")]
