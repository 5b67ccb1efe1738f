"""Fixtures for end-to-end tests."""

from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.e2e.chats import PLATFORMS, Chat, chat_on
from tests.e2e.protocols import CHAT_COMPLETIONS, PROTOCOLS, ModelProtocol, chosen
from tests.e2e.with_engine import EXAMPLE, install
from tests.e2e.world import Program, World, world_in
from tests.processes import run_gateway


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_marked = metafunc.definition.get_closest_marker("each_protocol") is not None
    if is_marked and "protocol" in metafunc.fixturenames and chosen(metafunc.config) is None:
        metafunc.parametrize("protocol", PROTOCOLS.values(), ids=str)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of all platform and protocol pairs of a test, run only three, with each platform and each protocol once.

    The pairs differ from test to test. `--protocol` runs every platform over one protocol.
    """
    if chosen(config) is None:
        left_out = [item for item in items if not _is_sampled(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_sampled(item)]


def _is_sampled(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    protocol = spec.params.get("protocol") if spec is not None else None
    platform = next((value for value in spec.params.values() if value in PLATFORMS), None) if spec is not None else None
    if protocol is None or platform is None:
        return True
    others = spec.id.replace(platform, "").replace(protocol.name, "")
    shift = crc32((item.nodeid.partition("[")[0] + others).encode())
    return bool((PLATFORMS.index(platform) + list(PROTOCOLS).index(protocol.name) + shift) % len(PLATFORMS) == 0)


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> ModelProtocol:
    """Protocol between the gateway and its model."""
    return chosen(pytestconfig) or CHAT_COMPLETIONS


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    """Program of the gateway: `PROGRAM` of the test's module, or the production daemon."""
    found: Program = getattr(request.module, "PROGRAM", run_gateway)
    return found


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol, program: Program) -> AsyncIterator[World]:
    """A world with Telegram and a model. The gateway is not started yet."""
    async with world_in(tmp_path, protocol, program=program) as made:
        yield made


@pytest.fixture
async def discord_world(tmp_path: Path, protocol: ModelProtocol, program: Program) -> AsyncIterator[World]:
    """A world with Discord, without rate limits, and a model. The gateway is not started yet."""
    async with world_in(tmp_path, protocol, telegram=False, discord=True, program=program) as made:
        await made.dc.post("config", {"rate_limits": False})
        yield made


@pytest.fixture
async def both(tmp_path: Path, protocol: ModelProtocol, program: Program) -> AsyncIterator[World]:
    """A world with Telegram, Discord and a model. The gateway is not started yet."""
    async with world_in(tmp_path, protocol, discord=True, program=program) as made:
        await made.dc.post("config", {"rate_limits": False})
        yield made


@pytest.fixture(params=PLATFORMS)
async def chat(
    request: pytest.FixtureRequest, tmp_path: Path, protocol: ModelProtocol, program: Program
) -> AsyncIterator[Chat]:
    """A person's chat on each platform in turn. The gateway is not started yet."""
    async with chat_on(request.param, tmp_path, protocol, program=program) as made:
        yield made


@pytest.fixture(scope="session")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example engine, and return its folder."""
    return install(EXAMPLE, tmp_path_factory.mktemp("lossless"))
