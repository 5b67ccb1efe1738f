"""The local web chat keeps the contract of all adapters."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.platforms.contract import AdapterContract, AdapterHarness, request
from tests.platforms.local.harness import LocalHarness


class TestLocalContract(AdapterContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[LocalHarness]:
        async with LocalHarness(tmp_path, max_part_units=4000) as harness:
            yield harness

    async def test_a_message_near_the_limit_expects_more(self, harness: AdapterHarness) -> None:
        pytest.skip("a page sends a message of any length in one piece")

    async def test_an_edit_of_a_forgotten_entry_shows_no_other(self, live: AdapterHarness) -> None:
        edit = replace(request(live.direct_chat, "the error", replaces="k-forgotten"), only_edits=True)
        assert await live.adapter.send(edit) == "k-forgotten"
        assert await live.visible(live.direct_chat) == []
