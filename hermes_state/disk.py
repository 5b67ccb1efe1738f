"""Files that are on disk for certain."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Put a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
