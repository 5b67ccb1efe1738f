"""The web chat behind reverse proxies with TLS, configured as docs/how-to/web-chat-from-a-phone.md shows."""

import asyncio
import os
import re
import secrets
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from tests.e2e.world import World
from tests.platforms.local.harness import Listener

pytestmark = pytest.mark.proxies

NAME = "chat.example.org"

PAGE = (Path(__file__).parents[2] / "docs/how-to/web-chat-from-a-phone.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the block of the page in this language."""
    found = re.search(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, language
    return found[1]


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """Replace the parts of a block that cannot be the same on this machine, each exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, upstream: int, header: str = "") -> str:
    """Return nginx's configuration with the block of the page in it."""
    server = replaced(
        block("nginx"),
        ("443 ssl", f"127.0.0.1:{port} ssl"),
        ("/etc/ssl/chat.example.org.pem", f"{folder}/certificate.pem"),
        ("/etc/ssl/chat.example.org.key", f"{folder}/key.pem"),
        ("proxy_pass http://127.0.0.1:8765;", f"{header} proxy_pass http://127.0.0.1:{upstream};"),
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    head = f"user root;\npid {folder}/nginx.pid;\nerror_log {folder}/proxy.log;\nevents {{}}\n"
    return f"{head}http {{\naccess_log off;\n{folders}{server}}}\n"


def caddy(folder: Path, port: int, upstream: int, header: str = "") -> str:
    """Return Caddy's configuration with the block of the page in it."""
    certificate = f"bind 127.0.0.1\n  tls {folder}/certificate.pem {folder}/key.pem"
    site = replaced(
        block("caddy"),
        (f"{NAME} {{", f"https://{NAME}:{port} {{\n  {certificate}"),
        ("reverse_proxy 127.0.0.1:8765", f"{header}reverse_proxy 127.0.0.1:{upstream}"),
    )
    return f"{{\nadmin off\nauto_https disable_redirects\nstorage file_system {folder}/caddy\n}}\n{site}"


@dataclass(frozen=True)
class Kind:
    """A reverse proxy and how it is configured."""

    command: tuple[str, ...]
    config: Callable[[Path, int, int, str], str]
    header: str = ""

    @property
    def keeps_name(self) -> bool:
        """The gateway sees the name that the browser asked for."""
        return bool(self.header) or self.command[0] == "caddy"


_NGINX_COMMAND = ("nginx", "-g", "daemon off;", "-c")
PROXIES = {
    "nginx": Kind(_NGINX_COMMAND, nginx),
    "nginx-with-host": Kind(_NGINX_COMMAND, nginx, "proxy_set_header Host $host;"),
    "caddy": Kind(("caddy", "run", "--adapter", "caddyfile", "--config"), caddy),
}


class _Loopback(AbstractResolver):
    """Finds every name on this machine."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        found = ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        return [found]

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Site:
    """The web chat as a browser reaches it."""

    origin: str
    browser: aiohttp.ClientSession

    async def fetch(self, method: str, path: str, **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
        async with self.browser.request(method, self.origin + path, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer


def make_certificate(folder: Path) -> None:
    """Write `certificate.pem` and `key.pem` for the name."""
    words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={NAME}".split()
    files = ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)


@asynccontextmanager
async def served(kind: Kind, folder: Path, behind: int) -> AsyncIterator[Site]:
    """A running proxy in front of the port `behind`."""
    port = World.free_port()
    await asyncio.to_thread(make_certificate, folder)
    config = folder / "proxy.conf"
    config.write_text(kind.config(folder, port, behind, kind.header))
    with (folder / "proxy.log").open("ab") as log:
        proxy = await asyncio.create_subprocess_exec(
            *kind.command, str(config), stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "HOME": str(folder)}
        )
    trust = ssl.create_default_context(cafile=folder / "certificate.pem")
    connector = aiohttp.TCPConnector(resolver=_Loopback(), ssl=trust)
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession(connector=connector) as browser:
            while True:
                assert proxy.returncode is None, (folder / "proxy.log").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)  # a process of another program has no event to wait for
                    continue
                writer.close()
                break
            yield Site(f"https://{NAME}:{port}", browser)
    finally:
        if proxy.returncode is None:
            proxy.terminate()
        await proxy.wait()


@pytest.fixture(params=PROXIES.values(), ids=PROXIES)
def kind(request: pytest.FixtureRequest) -> Kind:
    """One proxy after the other."""
    found: Kind = request.param
    return found


async def test_behind_a_proxy_a_person_signs_in_writes_and_sees_the_answer_grow(
    world: World, kind: Kind, tmp_path: Path
) -> None:
    port = world.free_port()
    async with served(kind, tmp_path, port) as site:
        local = {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(port)}
        await world.gateway.start(**local, HERMES_LOCAL__PUBLIC_URL=f"{site.origin}/")
        url = await world.gateway.printed_url()
        assert url.startswith(f"{site.origin}/?token=")
        status, page, _ = await site.fetch("GET", url.removeprefix(site.origin))
        assert (status, "Signing in" in page) == (200, True)

        token = {TOKEN_HEADER: url.partition("token=")[2], "Origin": site.origin}
        status, key, answer = await site.fetch("POST", "/sign-in", **token)
        assert status == 200
        [cookie] = answer.cookies.values()
        assert (cookie["secure"], cookie["httponly"], cookie["samesite"]) == (True, True, "Strict")

        own = {KEY_HEADER: key, "Origin": site.origin, "HX-Request": "true"}
        await world.script(match="a story", text="Once upon a time, the end.", chunk_chars=4, pause_after=4)
        async with site.browser.get(f"{site.origin}/chat/main/stream", headers=own) as stream:
            assert stream.status == 200
            listener = Listener(stream)
            await listener.next()
            form = {"text": "tell me a story", "client_id": secrets.token_hex(16)}
            async with site.browser.post(f"{site.origin}/chat/main/messages", data=form, headers=own) as posted:
                assert posted.status == 200, await posted.text()
            assert "the end" not in await listener.until("Once upon"), "the beginning arrives before the end is written"
            await world.release()
            await listener.until("the end.")


async def test_behind_a_proxy_that_it_does_not_know_the_page_says_what_to_set(
    world: World, kind: Kind, tmp_path: Path
) -> None:
    port = world.free_port()
    async with served(kind, tmp_path, port) as site:
        await world.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=str(port))
        token = {TOKEN_HEADER: (await world.gateway.printed_url()).partition("token=")[2]}
        if kind.keeps_name:
            status, text, _ = await site.fetch("GET", "/")
            assert (status, NAME in text, "local.public_url" in text) == (403, True, True)
        status, text, _ = await site.fetch("POST", "/sign-in", **token, Origin=site.origin)
        assert (status, NAME in text, "local.public_url" in text) == (403, True, True)
        assert re.search(r'"event": ?"local.request_refused"', world.gateway.log_text())
