"""Seed for sampling kill points. All workers of a test run share it, and the start of the output shows it."""

import os
import random
from typing import Any

import pytest

CRASH_SEED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    chosen = os.environ.get("HERMES_CRASH_SEED") if worker is None else worker["crash_seed"]
    config.stash[CRASH_SEED] = int(chosen) if chosen else random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # Any: pytest-xdist has no type annotations
    node.workerinput["crash_seed"] = str(node.config.stash[CRASH_SEED])


def pytest_report_header(config: pytest.Config) -> str:
    return f"kill points sampled by: HERMES_CRASH_SEED={config.stash[CRASH_SEED]}"
