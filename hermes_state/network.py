"""Proxies for outgoing connections: the settings, and the choice of a proxy for an address.

>>> network = NetworkSettings(proxy={"discord": "socks5://10.0.0.2:1080", "default": "http://10.0.0.1:3128"})
>>> print(network.route("discord")("https", "discord.com"))
socks5://10.0.0.2:1080
>>> network.route("model")("http", "127.0.0.1") is None
True

Without the setting, the variables `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` of the environment apply. Hosts in
`NO_PROXY` are always reached directly.
"""

import ipaddress
import itertools
import re
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator

from hermes_state.errors import ConfigError
from hermes_state.setting_types import FrozenBlock, keyed
from hermes_state.settings import Setting

Target: TypeAlias = Literal["telegram", "discord", "model", "web", "mcp", "webhooks"]
DIRECT: Final = "direct"
_OTHERS: Final = "default"
"""Name in `network.proxy` for the targets that it does not list."""
_SCHEMES: Final = {"http": "http", "https": "https", **dict.fromkeys(("socks", "socks5", "socks5h"), "socks5")}
_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080}
_ADDRESS: Final = (
    "must be the address of a proxy, such as http://proxy.example.org:3128 or socks5://127.0.0.1:1080. Write special "
    "characters in a user name or password as codes, such as %40 for @"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Proxy for connections. `str()` leaves out the user name and the password."""

    scheme: str
    """`http`, `https` or `socks5`."""
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Address with the user name and the password."""
        login = quote(self.user, safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        return str(self).replace("://", f"://{login}@", 1) if login else str(self)


Route: TypeAlias = Callable[[str, str], Proxy | None]
"""Returns the proxy for a scheme and a host. None: connect directly."""


def no_proxy(scheme: str, host: str) -> None:
    """Connect to every address without a proxy."""


def parsed_proxy(text: str) -> Proxy:
    """Return the proxy at an address. An address without a scheme is an HTTP proxy.

    Raises `ValueError` if the address is invalid.

    >>> parsed_proxy("proxy.lan:3128").url, parsed_proxy("SOCKS5H://me:a%40b@[::1]").url
    ('http://proxy.lan:3128', 'socks5://me:a%40b@[::1]:1080')
    """
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        scheme, host, port = _SCHEMES.get(parts.scheme), parts.hostname, parts.port
    except ValueError:
        raise ValueError(_ADDRESS) from None
    is_host = host is not None and re.fullmatch(r"[\w.-]+|[0-9a-f:.]+(%\w+)?", host) is not None
    is_alone = parts.path in ("", "/") and not parts.query and not parts.fragment and re.search(r"\s", text) is None
    if scheme is None or host is None or not is_host or port == 0 or not is_alone:
        raise ValueError(_ADDRESS)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Proxy(scheme=scheme, host=host, port=port or _PORTS[scheme], user=user, password=password)


def _address(value: object) -> object:
    if value is False or (isinstance(value, str) and value.strip().lower() in (DIRECT, "off", "none")):
        return DIRECT
    if not isinstance(value, str):
        raise ValueError(_ADDRESS)
    return parsed_proxy(value).url


def _proxy_setting(value: object) -> object:
    """Return an address, or a mapping of targets to addresses. A mapping in an environment variable is JSON."""
    if value is None:
        return None
    is_block = isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{"))
    return _addresses(keyed(value)) if is_block else _address(value)


def _addresses(block: Mapping[object, object]) -> Mapping[str, object]:
    known, found = (*get_args(Target), _OTHERS), {}
    for name, address in block.items():
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{str(name)[:100]!r} is not one of {', '.join(known)}")
        try:
            found[name] = _address(address)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return found


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Proxy for outgoing connections (`docs/how-to/run-behind-a-proxy.md`)."""

    proxy: Annotated[
        str | Annotated[dict[str, str], AfterValidator(FrozenBlock)] | None,
        BeforeValidator(_proxy_setting),
        Setting(default_text="`HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY`", restart=True),
    ] = None
    """Proxy for Telegram, Discord, models, web tools, MCP servers and webhooks, such as
    `http://proxy.example.org:3128`. The address begins with `http`, `https` or `socks5`. `direct` ignores the
    environment. For different proxies, map `telegram`, `discord`, `model`, `web`, `mcp`, `webhooks` and `default` (the
    others) to an address or `direct`. Set it if the machine has no direct connection to the internet."""

    def check(self) -> None:
        """Raise `ConfigError` if the environment names a proxy that cannot be used."""
        for target, scheme in itertools.product(get_args(Target), ("https", "http")):
            self.route(target)(scheme, "check.invalid")

    def route(self, target: Target) -> Route:
        """Return the choice of a proxy for connections to a target. Reads the environment once."""
        variables = urllib.request.getproxies()
        exceptions = re.split(r"[\s,]+", variables.pop("no", ""))
        proxy = self.proxy
        address = proxy.get(target, proxy.get(_OTHERS)) if isinstance(proxy, Mapping) else proxy
        fixed = parsed_proxy(address) if address not in (None, DIRECT) else None
        if address == DIRECT or (fixed is None and not variables):
            return no_proxy

        def proxy_for(scheme: str, host: str) -> Proxy | None:
            host = host.strip("[]").rstrip(".").lower()
            if _is_excepted(host, exceptions):
                return None
            if fixed is not None:
                return fixed
            scheme = {"wss": "https", "ws": "http"}.get(scheme, scheme)
            name = scheme if scheme in variables else "all"
            try:
                return parsed_proxy(variables[name]) if name in variables else None
            except ValueError as error:
                raise ConfigError(f"{name.upper()}_PROXY {error}. Correct it, or set network.proxy") from None

        return proxy_for


def _is_excepted(host: str, exceptions: Sequence[str]) -> bool:
    """Return True if a host is reached directly: a loopback address, or one that an entry of `NO_PROXY` names.

    >>> [_is_excepted("api.example.org", [entry]) for entry in ("example.org", ".example.org", "*", "ple.org")]
    [True, True, True, False]
    >>> [_is_excepted("10.1.2.3", [entry]) for entry in ("10.0.0.0/8", "10.1.2.3:443", "10.", "10.1.2")]
    [True, True, False, False]
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if host == "localhost" or host.endswith(".localhost") or (ip is not None and ip.is_loopback):
        return True
    for entry in exceptions:
        name = re.sub(r"^(\[.*\]|[^:]*):\d+$", r"\1", entry.lower()).strip("[]").removeprefix("*").strip(".")
        if entry == "*" or (name and (host == name or (ip is None and host.endswith(f".{name}")))):
            return True
        with suppress(ValueError):
            if ip is not None and ip in ipaddress.ip_network(name, strict=False):
                return True
    return False
