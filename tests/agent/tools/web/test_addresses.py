"""The guard of the web tools: known attacks on internal networks, and addresses that must stay reachable."""

import tomllib
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.tools.web.addresses import is_public
from agent.tools.web.fetching import FetchSettings, fetch_page
from hermes_state.errors import ToolError
from tests.agent.tools.web.sites import Names

CORPUS: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "fixtures/web/addresses.toml").read_text())


@pytest.mark.parametrize("url", CORPUS["urls"], ids=repr)
async def test_no_url_reaches_the_internal_network(url: str) -> None:
    opened: list[str] = []

    def guard(address: str) -> bool:
        if is_public(address):
            opened.append(address)
        return False

    given = FetchSettings(resolver=Names(dict(CORPUS["names"])), is_public=guard)
    with pytest.raises(ToolError) as refused:
        await fetch_page(url, given)
    assert opened == []
    assert "sent an invalid answer" not in str(refused.value)


@given(st.integers(0, 2**32 - 1))
@example(int(IPv4Address("127.0.0.1")))
def test_private_addresses_are_private_in_every_notation(number: int) -> None:
    v4 = IPv4Address(number)
    if not v4.is_global or v4.is_multicast:
        assert not is_public(str(v4))
        assert not is_public(f"64:ff9b::{v4}")
    for prefix in ("::", "::ffff:", "::ffff:0:", "64:ff9b:1::", "fe80::5efe:"):
        assert not is_public(f"{prefix}{v4}")
    assert not is_public(str(IPv6Address(0x2002 << 112 | number << 80)))
    assert not is_public(str(IPv6Address(0x20010000 << 96 | number ^ 0xFFFFFFFF)))


@given(st.integers(0, 2**128 - 1))
def test_pythons_special_addresses_are_not_public(number: int) -> None:
    ip = IPv6Address(number)
    if is_public(str(ip)):
        assert ip.is_global
        assert not any((ip.is_multicast, ip.is_private, ip.is_reserved, ip.ipv4_mapped, ip.sixtofour, ip.teredo))


@pytest.mark.parametrize(("kind", "expected"), [("private", False), ("public", True)])
def test_public_and_private_addresses_are_distinguished(kind: str, expected: bool) -> None:
    assert [one for one in CORPUS["literals"][kind] if is_public(one) is not expected] == []
