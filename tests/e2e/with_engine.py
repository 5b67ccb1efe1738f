"""The production daemon with the engine of examples/lossless_engine, installed as people install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.with_tools import run_with_tools

EXAMPLE = Path(__file__).parents[2] / "examples" / "lossless_engine"
FOLDER = "LAB_PLUGINS"
"""Environment variable with the folder of installed packages."""


def install(source: Path, work: Path) -> Path:
    """Install a package with pip into a separate folder, without a network. Return the folder."""
    copied, target = work / "source", work / "site"
    shutil.copytree(source, copied)  # a build leaves files next to the source
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index")
    options = ("--no-deps", "--no-build-isolation", "--target", str(target), str(copied))
    done = subprocess.run((*command, *options), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return target


def run_with_engine() -> None:
    """Run the daemon with the installed packages and the tools of `with_tools`."""
    sys.path.insert(0, os.environ[FOLDER])
    run_with_tools()
