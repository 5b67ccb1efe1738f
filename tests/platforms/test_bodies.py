"""Request bodies that stop or never end keep no connection open and do not fill the log."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from yarl import URL

from platforms.http_server import http_server
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.local.harness import LocalHarness

FILE = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nhalf of it'
FIELD = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nhalf of it'
FORMS = {
    "nothing yet": ("multipart/form-data; boundary=x", b""),
    "half a boundary": ("multipart/form-data; boundary=x", b"--"),
    "half a header": ("multipart/form-data; boundary=x", b"--x\r\nContent-Dispo"),
    "half a field": ("multipart/form-data; boundary=x", FIELD),
    "half a file": ("multipart/form-data; boundary=x", FILE),
    "much of a file": ("multipart/form-data; boundary=x", FILE + b"a" * 90_000),
    "a broken file": ("multipart/form-data; boundary=x", FILE + b"\r\n--x\r\nContent-Type"),
    "half a code": ("application/x-www-form-urlencoded", b"text=%E2%8"),
    "half a form": ("application/x-www-form-urlencoded", b"client_id=aaaaaaaaaaaa&text=half"),
}


@pytest.mark.parametrize(("length", "goes"), [(100_000, "closes"), (None, "says no more")])
@pytest.mark.parametrize(("kind", "body"), FORMS.values(), ids=FORMS)
async def test_a_page_closed_during_a_form_leaves_nothing(
    tmp_path: Path,
    intake: RecordingIntake,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    body: bytes,
    goes: str,
    length: int | None,
) -> None:
    if length is None:
        body = b"%x\r\n%b\r\n5\r\nab" % (len(body), body) if body else b"5"
    async with LocalHarness(tmp_path) as local, running(local.adapter, intake):
        await local.sign_in()
        cookie = "; ".join(f"{one.key}={one.value}" for one in local.browser.cookie_jar)
        headers = local.headers({"Content-Type": kind, "Cookie": cookie, "Host": URL(local.root).authority})
        _, writer = await asyncio.open_connection("127.0.0.1", URL(local.root).port)
        writer.write(head("/chat/main/messages", length, headers) + body)
        await writer.drain()
        before = len(asyncio.all_tasks())
        {"closes": writer.close, "resets": writer.transport.abort, "says no more": writer.write_eof}[goes]()
        status, _ = await local.post({"text": "still there", "client_id": "b" * 20})
        assert status == 200
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the handler ends in a later iteration of the event loop
        writer.close()
    gc.collect()  # reports exceptions that were never retrieved
    assert intake.texts == ["still there"]
    assert not list((tmp_path / "spool" / "local").iterdir())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]
    assert "Traceback" not in caplog.text + capsys.readouterr().err


def head(path: str, length: int | None, headers: dict[str, str]) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", size, *(f"{key}: {headers[key]}" for key in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def reading_server() -> AsyncIterator[tuple[int, list[str]]]:
    """Run a server that reads bodies and records the outcome of each."""
    ends: list[str] = []

    async def read(request: web.Request) -> web.Response:
        try:
            ends.append(str(len(await request.read())))
        except Exception as error:
            ends.append(type(error).__name__)
            raise
        return web.Response(text="read")

    app = web.Application()
    app.router.add_post("/", read)
    async with http_server(app, "127.0.0.1", 0, stop_seconds=1, body_seconds=0.2) as port:
        yield port, ends


async def test_a_slow_body_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with reading_server() as (port, ends):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("/", 10_000, {"Host": "a"}))
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await reader.read(100)
        assert time.monotonic() - began < 5
        writer.close()
        assert len(ends) == 1
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_body_that_arrives_in_time_is_read_completely() -> None:
    async with reading_server() as (port, ends):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("/", 12_000, {"Host": "a"}))
        for _ in range(4):  # together longer than the limit
            writer.write(b"a" * 3_000)
            await asyncio.sleep(0.1)
        assert b"200 OK" in await reader.read(200)
        writer.close()
        assert ends == ["12000"]
