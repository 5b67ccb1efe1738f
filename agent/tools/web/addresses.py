"""Restriction of the web tools to public addresses.

The URL is checked first, and then the IP address of every connection. A host name, a second DNS lookup, a redirect or
an unusual notation of an address cannot evade the second check.
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

# IANA's special-purpose addresses, and 168.63.129.16, at which every Azure machine reaches its platform services. The
# last line has the addresses for protocols such as Teredo, for documentation, and for 6to4.
_PRIVATE = """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
2001::/23 2001:db8::/32 2002::/16 3fff::/20"""
_PRIVATE_NETWORKS = tuple(map(ip_network, _PRIVATE.split()))


def is_public(address: str) -> bool:
    """Return True for an IP address on the public internet, and False for any other string.

    >>> [is_public(one) for one in ("8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::10.0.0.1", "0x7f.1")]
    [True, False, False, False, False]
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if ip in ip_network("64:ff9b::/96"):  # NAT64: IPv4 addresses as seen in IPv6-only networks
        ip = IPv4Address(int(ip) & 0xFFFFFFFF)
    # All assigned public addresses are in 2000::/3. Others are local, multicast, mapped, or do not exist.
    if ip.version == 6 and ip not in ip_network("2000::/3"):
        return False
    return ip.is_global and not any(ip in block for block in _PRIVATE_NETWORKS)


class AddressRejected(OSError):
    """Error for a refused connection to an address that is not on the public internet."""

    def __str__(self) -> str:
        return "a private address"  # never the address itself, which would reveal the internal network


def open_socket(info: tuple[Any, ...], *, is_allowed: Callable[[str], bool]) -> socket.socket:
    """Open a socket for a result of `socket.getaddrinfo`. Raises `AddressRejected` if its address is not allowed."""
    family, kind, protocol, _, address = info
    check_address(str(address[0]), is_allowed=is_allowed)
    return socket.socket(family, kind, protocol)


def check_address(address: str, *, is_allowed: Callable[[str], bool]) -> None:
    """Raise `AddressRejected` unless an IP address is allowed."""
    if not is_allowed(address):
        raise AddressRejected


def host_of(url: "URL") -> str:
    return (url.raw_host or "").rstrip(".").lower()


def checked_url(text: str, hosts: WebSettings) -> "URL":
    """Parse a URL. Raises `ToolError` if requests to this URL are not allowed."""
    from yarl import URL

    text = text.strip()
    try:
        if re.search(r"[\x00-\x20\x7f\\]", text) or len(text) > 4_000:
            raise ValueError
        url = URL(text)
        host, port = host_of(url), url.port
    except ValueError:
        raise ToolError(f"{text[:200]!r} is not a web address") from None
    if url.scheme not in ("http", "https") or not host or port is None:
        raise ToolError(f"{text[:200]!r} does not begin with https:// or http:// and a host")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("web addresses with a user name or password are not allowed")
    if port < 1_024 and port not in (80, 443):
        raise ToolError(f"port {port} is not allowed: below 1024, only 80 and 443 are")
    hosts.check(host)
    return url
