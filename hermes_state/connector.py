"""aiohttp connector that reaches each address directly or through its proxy.

Only this module uses private names of aiohttp's connector: the library has no SOCKS, and it always lets an HTTP proxy
resolve the names of hosts.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from python_socks import ProxyError as SocksError
from python_socks import ProxyType
from yarl import URL

from hermes_state.imports import ssl_context
from hermes_state.network import NetworkSettings, Proxy, Route, Target, no_proxy


class ProxyFault(aiohttp.ClientProxyConnectionError):
    """Error for a tunnel that a proxy did not open. Nothing was sent to the server."""


def proxy_fault(error: BaseException | None) -> str | None:
    """Return a sentence without secrets about an error of a proxy, or None for other errors."""
    if not isinstance(error, aiohttp.ClientProxyConnectionError):
        return None
    own = str(error.os_error) if isinstance(error, ProxyFault) else ""
    reason = own or f"it cannot be reached: {error.os_error.strerror or 'no answer'}"
    return f"the proxy did not open a connection ({reason}); check network.proxy"


def socks_options(proxy: Proxy) -> dict[str, Any]:  # the library's own types
    """Return the arguments of python_socks's classes. The proxy resolves the names of hosts."""
    login = {"username": proxy.user, "password": proxy.password} if proxy.user else {}
    return {"proxy_type": ProxyType.SOCKS5, "host": proxy.host, "port": proxy.port, "rdns": True, **login}


def connector_for(
    network: NetworkSettings, target: Target, *, check: Callable[[str], None] | None = None, **options: Any
) -> aiohttp.TCPConnector:
    """Return a connector for a session. `check` refuses IP addresses, asked from a proxy, by raising `OSError`.

    `options`: arguments of aiohttp's connector.
    """
    route = network.route(target)
    return aiohttp.TCPConnector(**options) if route is no_proxy else _ProxyConnector(route, check, **options)


class _ProxyConnector(aiohttp.TCPConnector):
    """Connector that chooses a proxy for each connection.

    With `check`, this connector resolves names, and asks a proxy only for checked IP addresses. Without it, the proxy
    resolves names. A request with neither TLS nor `check` goes to an HTTP proxy without a tunnel, because most of these
    proxies do not allow tunnels to port 80.
    """

    def __init__(self, route: Route, check: Callable[[str], None] | None, **options: Any) -> None:
        super().__init__(**options)
        self._route, self._check = route, check

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - aiohttp's own types
        proxy = self._route(req.url.scheme, req.url.raw_host)
        if proxy is not None and proxy.scheme == "http" and not req.is_ssl() and self._check is None:
            req.update_proxy(URL(str(proxy)), None, None)
            req.headers.update(_login(proxy))
        return await super().connect(req, traces, timeout)

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:  # noqa: ASYNC109
        host, port, proxy = req.url.raw_host, req.url.port, self._route(req.url.scheme, req.url.raw_host)
        if proxy is None or req.proxy is not None:
            return await super()._create_connection(req, traces, timeout)
        try:
            found = [host] if self._check is None else [one["host"] for one in await self._resolve_host(host, port)]
        except OSError as error:
            raise aiohttp.ClientConnectorDNSError(req.connection_key, error) from error
        through = [one for one in found if self._check is None or self._route(req.url.scheme, one) is not None]
        if not through:
            return await super()._create_connection(req, traces, timeout)  # every address is reached directly
        fault: aiohttp.ClientError | None = None
        for address in through:
            try:
                if self._check is not None:
                    self._check(address)
                async with asyncio.timeout(timeout.sock_connect or 30.0):
                    return await self._tunnel(proxy, address, port, req)
            except ssl.CertificateError as error:
                raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
            except ssl.SSLError as error:
                raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
            except (TimeoutError, EOFError, asyncio.LimitOverrunError, UnicodeError, SocksError, _Refused) as error:
                words = {
                    TimeoutError: "it did not answer in time",
                    asyncio.IncompleteReadError: "it ended the connection",
                }
                fault = ProxyFault(req.connection_key, OSError(words.get(type(error), str(error))))
            except OSError as error:
                fault = aiohttp.ClientConnectorError(req.connection_key, error)
        assert fault is not None
        raise fault

    async def _tunnel(self, proxy: Proxy, host: str, port: int, req: Any) -> ResponseHandler:
        """Return a connection to a host through a proxy, with TLS if the URL of the request demands it."""
        try:
            writer = await (_socks_tunnel if proxy.scheme == "socks5" else _http_tunnel)(proxy, host, port)
        except ssl.SSLError as error:
            raise _Refused(f"{error.reason}; does its address begin with http, not https?") from error
        except OSError as error:
            reason = getattr(error.__cause__ or error, "strerror", None)  # python_socks repeats the address
            raise _Refused(f"it cannot be reached: {reason or 'no answer'}") from error
        try:
            if (context := self._get_ssl_context(req)) is not None:
                await writer.start_tls(context, server_hostname=(req.server_hostname or req.url.raw_host).rstrip("."))
        except BaseException:
            writer.transport.abort()
            raise
        protocol = _Tunnel(asyncio.get_running_loop(), writer)
        writer.transport.set_protocol(protocol)
        protocol.connection_made(writer.transport)
        return protocol


def _login(proxy: Proxy) -> dict[str, str]:
    login = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {login}"} if proxy.user else {}


class _Refused(Exception):
    """Error for a proxy that cannot be reached or refuses. Its text is the reason."""


class _Tunnel(ResponseHandler):
    """Protocol that keeps the stream of its tunnel, because a stream closes its connection when it is collected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: asyncio.StreamWriter) -> None:
        super().__init__(loop)
        self._stream = stream


async def _socks_tunnel(proxy: Proxy, host: str, port: int) -> asyncio.StreamWriter:
    from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

    return (await SocksProxy(**socks_options(proxy)).connect(host, port)).writer


async def _http_tunnel(proxy: Proxy, host: str, port: int) -> asyncio.StreamWriter:
    context = ssl_context() if proxy.scheme == "https" else None
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=context, limit=32_768)
    try:
        place = f"{f'[{host}]' if ':' in host else host}:{port}"
        fields = {"Host": place, **_login(proxy)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"CONNECT {place} HTTP/1.1\r\n{head}\r\n".encode())
        answer = re.match(rb"HTTP/1\.[01] (\d{3})", await reader.readuntil(b"\r\n\r\n"))
        status = "no HTTP" if answer is None else f"HTTP status {answer[1].decode()}"
        if status != "HTTP status 200":
            needs_login = status == "HTTP status 407"
            raise _Refused("it requires a user name and a password" if needs_login else f"it answered with {status}")
    except BaseException:
        writer.transport.abort()
        raise
    return writer
