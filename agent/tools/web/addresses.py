"""Addresses that the web tools may go to: checks of a URL, and the guard at the socket.

The guard sees what is really connected to, so that a name, its second lookup, a redirect or a number in an odd
spelling leads nowhere that the URL itself might not.
"""

import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from agent.settings import WebSettings
from hermes_state.errors import ToolError

if TYPE_CHECKING:
    from yarl import URL

# By IANA's registries of special-purpose addresses, and 168.63.129.16: Azure's own services, as each machine there
# sees them.
_PRIVATE_V4 = """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3"""
_GLOBAL_V6 = ip_network("2000::/3")
"""All that is assigned: what lies outside is local, multicast, mapped, or not there."""
_PRIVATE_V6 = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
"""Inside of it: Teredo and other protocols' own, documentation, 6to4."""
_PRIVATE = tuple(ip_network(block) for block in f"{_PRIVATE_V4} {_PRIVATE_V6}".split())
_NAT64 = ip_network("64:ff9b::/96")
"""IPv4 addresses as networks without IPv4 see them."""


def is_public(address: str) -> bool:
    """True for an address of the public internet; false for every other one, and for what is no address.

    >>> [is_public(one) for one in ("8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::10.0.0.1", "0x7f.1")]
    [True, False, False, False, False]
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if ip in _NAT64:
        ip = IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip.version == 6 and ip not in _GLOBAL_V6:
        return False
    return ip.is_global and not any(ip in block for block in _PRIVATE)


class AddressRejected(OSError):
    """A connection that was not opened, because its address is not on the public internet."""

    def __str__(self) -> str:
        return "a private address"  # without it: what a name stands for inside is nobody's business


def open_socket(info: tuple[Any, ...], *, is_allowed: Callable[[str], bool]) -> socket.socket:
    """A socket for one answer of a lookup, in the form that `socket.getaddrinfo` gives. Raises `AddressRejected`."""
    family, kind, protocol, _, address = info
    if not is_allowed(str(address[0])):
        raise AddressRejected
    return socket.socket(family, kind, protocol)


MAX_URL_CHARACTERS = 4_000
_WEB_PORTS = (80, 443)
"""Ports below 1024 that web servers have."""
_BROKEN = re.compile(r"[\x00-\x20\x7f\\]")


def host_of(url: "URL") -> str:
    """Host of a URL, as the rules name it."""
    return (url.raw_host or "").rstrip(".").lower()


def checked_url(text: str, hosts: WebSettings) -> "URL":
    """The URL that a text is. Raises `ToolError` for one that must not be asked, whatever its host's address is."""
    from yarl import URL

    text = text.strip()
    try:
        if _BROKEN.search(text) or len(text) > MAX_URL_CHARACTERS:
            raise ValueError
        url = URL(text)
        host, port = host_of(url), url.port
    except ValueError:
        raise ToolError(f"{text[:200]!r} is no address of the web") from None
    if url.scheme not in ("http", "https") or not host or port is None:
        raise ToolError(f"{text[:200]!r} does not begin with https:// or http:// and a host")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("an address with a user name or a password in it is not asked")
    if port < 1_024 and port not in _WEB_PORTS:
        raise ToolError(f"port {port} is none of the web")
    hosts.check(host)
    return url
