"""Static files of the web pages. They are kept in memory, so that a request path never becomes a file path."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
}

_STYLES = (
    "tokens",
    "base",
    "sidebar",
    "stage",
    "meter",
    "entries",
    "condensed",
    "kinds",
    "prose",
    "code",
    "composer",
    "actions",
    "console",
    "lineage",
    "start",
    "plain",
    "phone",
)
"""Style sheets in the order in which `app.css` contains them. Later rules win, so `phone` is last."""


@dataclass(frozen=True, slots=True)
class Asset:
    """Static file with the headers that a browser needs to cache it."""

    content: bytes
    mime: str
    etag: str

    @property
    def charset(self) -> str | None:
        return None if self.mime == "image/png" else "utf-8"


def load_assets() -> Mapping[str, Asset]:
    """Load all static files by name. The style sheets are joined into `app.css`."""
    return {name: _asset(name, content) for name, content in _contents()}


def _contents() -> Iterator[tuple[str, bytes]]:
    for folder in ("app", "vendor", "scripts"):
        for path in sorted((_FOLDER / folder).iterdir()):
            if path.suffix in _TYPES:
                yield path.name, path.read_bytes()
    yield "app.css", b"\n".join((_FOLDER / "styles" / f"{name}.css").read_bytes() for name in _STYLES)


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _TYPES[Path(name).suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
