"""Fixture with a server for tests of the web tools."""

from collections.abc import AsyncIterator

import pytest

from tests.agent.tools.web.sites import Site, serving


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with serving(made.handle) as made.port:
        yield made
