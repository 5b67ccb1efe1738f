"""Fixtures for the intake tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state.store.writer import Store
from tests.gateway.helpers import TestGateway, serving


@pytest.fixture
async def gateway(store: Store, tmp_path: Path) -> AsyncIterator[TestGateway]:
    """Running gateway with default settings."""
    async with serving(store, tmp_path) as gateway:
        yield gateway
