"""The guard of the web tools: what strangers have found to get inside, and what has to stay reachable."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.tools.web.addresses import is_public
from agent.tools.web.fetching import FetchSettings, fetch_page
from hermes_state.errors import ToolError
from tests.agent.tools.web.sites import Names

CORPUS: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "fixtures/web/addresses.toml").read_text())


@pytest.mark.parametrize("url", CORPUS["urls"], ids=repr)
async def test_nothing_leads_inside(url: str) -> None:
    opened: list[str] = []

    def guard(address: str) -> bool:
        if is_public(address):
            opened.append(address)
        return False

    given = FetchSettings(resolver=Names(dict(CORPUS["names"])), is_public=guard)
    with pytest.raises(ToolError) as refused:
        await fetch_page(url, given, lambda kind: True)
    assert opened == []
    assert "does not answer as a web server" not in str(refused.value)


@pytest.mark.parametrize(("kind", "expected"), [("private", False), ("public", True)])
def test_addresses_are_told_apart(kind: str, expected: bool) -> None:
    assert [one for one in CORPUS["literals"][kind] if is_public(one) is not expected] == []
