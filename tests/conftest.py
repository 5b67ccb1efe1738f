"""Fixtures that more than one package's tests use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state.store import Store
from tests.crash.seed import pytest_configure, pytest_configure_node, pytest_report_header

__all__ = ["pytest_configure", "pytest_configure_node", "pytest_report_header", "store"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty database of its own, open for the length of the test."""
    opened = await Store.open(tmp_path / "home" / "state.db")
    try:
        yield opened
    finally:
        await opened.close()
