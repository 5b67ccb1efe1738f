"""The web chat's port is already in use."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from yarl import URL

from hermes_state.errors import PlatformUnavailable
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.local.harness import LocalHarness


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another socket listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        yield port


async def test_the_next_free_port_is_used_if_several_may_be_tried(tmp_path: Path, taken: int) -> None:
    async with (
        LocalHarness(tmp_path, port=taken, port_tries=20) as harness,
        running(harness.adapter, RecordingIntake()),
    ):
        [url] = harness.ready_urls
        assert taken < (URL(url).port or 0) < taken + 20
        await harness.sign_in()


async def test_a_configured_port_is_the_only_one_tried(tmp_path: Path, taken: int) -> None:
    async with LocalHarness(tmp_path, port=taken) as harness:
        with pytest.raises(PlatformUnavailable, match=f"Port {taken} on 127.0.0.1 cannot be opened .*set local.port"):
            await harness.adapter.run(RecordingIntake())
