"""Fake proxy for outgoing connections: HTTP and SOCKS5 on one port. Every host is this machine, at the same port."""

import asyncio
import base64
import ssl
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.fakes.labkit import FOREVER_SECONDS


class OutgoingProxy:
    """Proxy that notes what it is asked for. `login`: the user name and the password that it requires, with a colon."""

    def __init__(
        self, *, login: str = "", status: int = 200, pieces: int = 1, tls: ssl.SSLContext | None = None
    ) -> None:
        self.asked: list[str] = []
        """One entry for each connection or plain request, such as `CONNECT 8.8.8.8:443` or `SOCKS discord.test:80`."""
        self._login, self._status, self._pieces, self._tls = login, status, pieces, tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, scheme: str, login: str = "") -> str:
        return f"{scheme}://{f'{login}@' if login else ''}127.0.0.1:{self.port}"

    def hosts(self) -> set[str]:
        """Hosts that the proxy was asked for."""
        return {
            (urlsplit(entry.split()[1]).hostname or "") if "//" in entry else entry.split()[1].rpartition(":")[0]
            for entry in self.asked
        }

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(FOREVER_SECONDS):
                first = await reader.readexactly(1)
                await (self._socks if first == b"\x05" else self._http)(first, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _socks(self, _: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x05\x02" if self._login else b"\x05\x00")
        if self._login:
            user = await reader.readexactly((await reader.readexactly(2))[1])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            is_right = f"{user.decode()}:{password.decode()}" == self._login
            writer.write(b"\x01\x00" if is_right else b"\x01\x01")
            if not is_right:
                self.asked.append("LOGIN refused")
                return await writer.drain()
        kind = (await reader.readexactly(4))[3]
        if kind == 1:
            host = ".".join(map(str, await reader.readexactly(4)))
        else:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2))
        self.asked.append(f"SOCKS {host}:{port}")
        writer.write(b"\x05%b\x00\x01\x00\x00\x00\x00\x00\x00" % (b"\x00" if self._status == 200 else b"\x02"))
        if self._status == 200:
            await join(b"", port, reader, writer)
        await writer.drain()
        return None

    async def _http(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = first + await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        method, place, _ = lines[0].split()
        self.asked.append(f"{method} {place}")
        login = f"proxy-authorization: basic {base64.b64encode(self._login.encode()).decode()}".lower()
        is_right = not self._login or login in (line.lower() for line in lines)
        if self._status != 200 or not is_right:
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % (self._status if is_right else 407))
            return await writer.drain()
        if method != "CONNECT":
            parts = urlsplit(place)
            path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            kept = [line for line in lines[1:] if not line.lower().startswith("proxy-")]
            sent = "\r\n".join((f"{method} {path} HTTP/1.1", *kept)).encode()
            return await join(sent, parts.port or 80, reader, writer)
        answer = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: fake\r\n\r\n"
        step = -(-len(answer) // self._pieces)
        for start in range(0, len(answer), step):
            writer.write(answer[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)
        return await join(b"", int(place.rpartition(":")[2]), reader, writer)


async def join(sent: bytes, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass everything on between a client and the server at a port. Only the first request is rewritten."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    far_writer.write(sent)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
        target.close()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, far_writer))
            group.create_task(copy(far_reader, writer))
    except* ConnectionError:
        pass
    finally:
        far_writer.transport.abort()
