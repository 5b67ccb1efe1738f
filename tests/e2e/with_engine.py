"""The production daemon with the engine of examples/lossless_engine, installed as people install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.with_tools import run_with_tools

EXAMPLE = Path(__file__).parents[2] / "examples" / "lossless_engine"
FOLDER = "LAB_PLUGINS"
"""Variable with the folder that packages were installed into."""


def install(source: Path, work: Path) -> Path:
    """Install a package by pip into a folder of its own, without a network; returns the folder."""
    copied, target = work / "source", work / "site"
    shutil.copytree(source, copied)  # a build leaves files beside the source
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index")
    options = ("--no-deps", "--no-build-isolation", "--target", str(target), str(copied))
    done = subprocess.run((*command, *options), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return target


def run_with_engine() -> None:
    """Run the daemon with the packages of that folder, and with the tools of `with_tools`."""
    sys.path.insert(0, os.environ[FOLDER])
    run_with_tools()
