"""Worlds for end-to-end tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.protocols import CHAT_COMPLETIONS, PROTOCOLS, ModelProtocol, chosen
from tests.e2e.with_engine import EXAMPLE, install
from tests.e2e.world import World, world_in


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_marked = metafunc.definition.get_closest_marker("each_protocol") is not None
    if is_marked and "protocol" in metafunc.fixturenames and chosen(metafunc.config) is None:
        metafunc.parametrize("protocol", PROTOCOLS.values(), ids=str)


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> ModelProtocol:
    """What the gateway and its model speak."""
    return chosen(pytestconfig) or CHAT_COMPLETIONS


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    """Telegram and a model, the gateway not started yet."""
    async with world_in(tmp_path, protocol) as made:
        yield made


@pytest.fixture
async def discord_world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    """Discord and a model, the gateway not started yet."""
    async with world_in(tmp_path, protocol, telegram=False, discord=True) as made:
        yield made


@pytest.fixture(scope="session")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example engine was installed into."""
    return install(EXAMPLE, tmp_path_factory.mktemp("lossless"))
