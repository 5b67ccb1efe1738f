"""A PostgreSQL server of its own: Debian's programs, a private folder, a socket in it and no port."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)
"""Folder of the newest version that is installed; None without one."""


@contextmanager
def running_server() -> Iterator[str]:
    """The address of an empty database, whose server ends with the block."""
    assert PROGRAMS is not None, "PostgreSQL is not installed"
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        _run(PROGRAMS / "initdb", folder, "-U", "hermes", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        _run(PROGRAMS / "pg_ctl", folder, "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://hermes@/postgres?host={folder}"
        finally:
            _run(PROGRAMS / "pg_ctl", folder, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def _run(program: Path, folder: Path, *arguments: str) -> None:
    """Run a program of PostgreSQL, which refuses to be run by root."""
    user = "nobody" if os.geteuid() == 0 else None
    command = [str(program), "-D", str(folder / "data"), *arguments]
    subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)
