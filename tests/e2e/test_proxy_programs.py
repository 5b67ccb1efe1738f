"""Every service over TLS through real proxy programs: tinyproxy for HTTP and microsocks for SOCKS5."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_mcp import listening
from tests.e2e.test_outgoing_proxies import ANY_ADDRESS, LOGIN, PASSWORD, Behind, behind_in
from tests.e2e.world import STARTED_ANEW, World
from tests.fakes.outgoing_proxy import OutgoingProxy, join

pytestmark = pytest.mark.proxies


def tinyproxy(folder: Path, port: int) -> Sequence[str]:
    user, _, password = LOGIN.partition(":")
    config = folder / "tinyproxy.conf"
    config.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 600\nLogLevel Connect\nBasicAuth {user} {password}\n")
    return "tinyproxy", "-d", "-c", str(config)


def microsocks(folder: Path, port: int) -> Sequence[str]:
    user, _, password = LOGIN.partition(":")
    return "microsocks", "-i", "127.0.0.1", "-p", str(port), "-u", user, "-P", password


PROGRAMS = {"http": tinyproxy, "socks5": microsocks}


@asynccontextmanager
async def program(scheme: str, folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """Run a proxy, and yield its address and its log."""
    port, log = World.free_port(), folder / "program.log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(*PROGRAMS[scheme](folder, port), stdout=output, stderr=output)
    try:
        await listening(port)
        yield f"{scheme}://{LOGIN}@127.0.0.1:{port}", log
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate and its key for this machine, which the gateway trusts."""
    path = tmp_path / "all.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = f"subjectAltName=IP:{ANY_ADDRESS},IP:127.0.0.1"
    subprocess.run(
        ["openssl", *words, "-addext", names, "-keyout", tmp_path / "key.pem", "-out", path],
        check=True,
        capture_output=True,
    )
    return path


def context_of(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@pytest.fixture
async def behind(tmp_path: Path, protocol: ModelProtocol, certificate: Path) -> AsyncIterator[Behind]:
    """A world whose services speak TLS."""
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(behind_in(tmp_path, protocol, program=STARTED_ANEW))
        context = context_of(certificate)
        for name, port in made.ports.items():
            server = await asyncio.start_server(partial(join, b"", port), ANY_ADDRESS, ssl=context)
            stack.callback(server.close)
            made.ports[name] = server.sockets[0].getsockname()[1]
        made.is_secure = True
        made.world.gateway.environ["SSL_CERT_FILE"] = str(certificate)
        yield made


async def use_everything(behind: Behind, address: str) -> None:
    """Use each service through a proxy, and check what `doctor` says."""
    await behind.use_everything(
        ANY_ADDRESS, ANY_ADDRESS, HERMES_NETWORK__PROXY=address, HERMES_WEB__PRIVATE_HOSTS=ANY_ADDRESS
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "doctor", "--online"),
        env=behind.world.gateway.environ | {"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    doctor = output.decode()
    for words in ("The Telegram token works.", "The Discord token works.", "The model's server answers"):
        assert words in doctor, doctor
    assert PASSWORD not in doctor + behind.world.gateway.log_text()


@pytest.mark.parametrize("scheme", PROGRAMS)
async def test_every_service_is_reached_through_a_real_program(behind: Behind, scheme: str, tmp_path: Path) -> None:
    async with program(scheme, tmp_path) as (address, log):
        await use_everything(behind, address)
        await behind.world.gateway.stop()
    text = log.read_text()
    assert [name for name, port in behind.ports.items() if f"{ANY_ADDRESS}:{port}" not in text] == []


async def test_every_service_is_reached_through_a_proxy_that_speaks_tls(behind: Behind, certificate: Path) -> None:
    async with OutgoingProxy(login=LOGIN, tls=context_of(certificate)) as proxy:
        await use_everything(behind, proxy.url("https", LOGIN))
        await behind.world.gateway.stop()
    assert {entry.split()[1] for entry in proxy.asked} == {f"{ANY_ADDRESS}:{port}" for port in behind.ports.values()}


@pytest.mark.parametrize("scheme", PROGRAMS)
async def test_a_real_program_that_refuses_the_password_is_named(world: World, scheme: str, tmp_path: Path) -> None:
    async with program(scheme, tmp_path) as (address, _):
        await world.gateway.spawn(
            HERMES_NETWORK__PROXY=address.replace(PASSWORD, "wrong-7-pass"),
            HERMES_TELEGRAM__BASE_URL="https://telegram.test",
        )
        await world.gateway.wait_for_log("check network.proxy")
        await world.gateway.kill()
    assert "wrong-7-pass" not in world.gateway.log_text()
