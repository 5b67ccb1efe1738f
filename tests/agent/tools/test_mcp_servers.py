"""Misbehaving MCP servers: they are limited, their errors are reported, and they end with all their children."""

import asyncio
import base64
import json
import os
import re
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.settings import ServerSettings
from agent.tools.mcp.connection import GOODBYE_SECONDS
from agent.tools.mcp.servers import RETRIES, ImageStore, ServerRegistry
from agent.tools.mcp.settings import RemoteResult, ServerState, ServerStatus
from agent.tools.mcp.stdio import LineReader, find_id, server_environ, weight
from agent.tools.registry import ToolContext, ToolReply
from hermes_state.aio import Backoff
from hermes_state.errors import ToolError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.values import SystemClock, ToolEffect
from tests.agent.conftest import Chat
from tests.fakes.labkit import Server
from tests.pictures import picture
from tests.sandboxes import all_gone, processes_with

LINES = """
import json, os, subprocess, sys, time
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def hear():
    while True:
        said = json.loads(sys.stdin.readline() or sys.exit())
        if "id" in said: return said
def begin(**has):
    asked = hear()
    info = {"name": "odd", "version": "1"}
    say(id=asked["id"], result={"protocolVersion": "2025-06-18", "capabilities": has, "serverInfo": info})
def tools(*names, **more):
    asked = hear()
    listed = [{"name": name, "inputSchema": {"type": "object"}, **more} for name in names]
    say(id=asked["id"], result={"tools": listed})
"""


@asynccontextmanager
async def serving(folder: Path, script: str, **settings: object) -> AsyncIterator[ServerRegistry]:
    """Yield a registry with one server that runs a script."""
    command = {"command": sys.executable, "args": ("-c", LINES + script, str(folder))} if script else {}
    one = ServerSettings(name="odd", **{**command, **settings})
    registry = ServerRegistry(
        ImageStore(files=AttachmentFolder(folder), clock=SystemClock()), SystemClock(), lambda text: text
    )
    async with asyncio.TaskGroup() as group:
        registry.configure([one], group)
        try:
            yield registry
        finally:
            await registry.close()


async def becomes(registry: ServerRegistry, state: ServerState, seconds: float = 20) -> ServerStatus:
    async with asyncio.timeout(seconds):
        while (status := registry.statuses()[0]).state is not state:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return status


@asynccontextmanager
async def connected(folder: Path, script: str, **settings: object) -> AsyncIterator[ServerRegistry]:
    async with serving(folder, script, **settings) as registry:
        await becomes(registry, ServerState.CONNECTED)
        yield registry


async def ask(registry: ServerRegistry, name: str) -> object:
    return await registry.by_name[f"odd__{name}"].run({}, None)  # type: ignore[arg-type]  # no images, so no context


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import no_such_module", "exit code 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("sys.exit(3)", "exit code 3 and wrote nothing to standard error"),
        ("hear(); sys.exit('no database at db:5432')", "exit code 1: no database at db:5432"),
        ("begin(tools={}); tools('look'); sys.exit('the harbour is gone\\n\\n')", "exit code 1: the harbour is gone"),
        ("sys.stderr.write('port 7 is taken'); sys.exit(4)", "exit code 4: port 7 is taken"),
        ("os.kill(os.getpid(), 11)", "signal 11 and wrote nothing"),
    ],
)
async def test_the_error_shows_the_last_output_of_a_program(tmp_path: Path, script: str, words: str) -> None:
    async with serving(tmp_path, script) as registry:
        status = await becomes(registry, ServerState.DOWN)
    assert words in status.error
    assert "Connection closed" not in status.error


async def test_an_endless_line_uses_little_memory_and_is_an_error(tmp_path: Path) -> None:
    script = """
begin(tools={})
tools("look")
asked = hear()
sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":"' % asked["id"])
for _ in range(100): sys.stdout.write("x" * (1 << 20))
print('"}', flush=True)
asked = hear()
sys.stdout.write('{"result":{"content":[' + "[]," * 2_000_000 + '[]]},"jsonrpc":"2.0","id":%d}\\n' % asked["id"])
sys.stdout.flush()
hear()
"""
    async with connected(tmp_path, script) as registry:
        for _ in range(2):
            with pytest.raises(ToolError, match="larger than the limit for a message"):
                await ask(registry, "look")


async def test_children_of_a_server_end_with_it_even_if_they_ignore_signals(tmp_path: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
begin(tools={})
tools("look")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]])
time.sleep(1000)
"""
    async with connected(tmp_path, script):
        async with asyncio.timeout(10):
            while len(processes_with(str(tmp_path))) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert await all_gone(str(tmp_path))


def open_pipes() -> int:
    """Return the pipes and sockets of this process."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(path.readlink().name)
    return sum(link.startswith(("pipe:", "socket:")) for link in links)


async def test_a_server_that_floods_its_output_blocks_nothing(tmp_path: Path) -> None:
    script = """
begin(tools={})
tools("look")
while True: sys.stdout.write("{}\\n{\\nnot json\\n" * 1000)
"""
    loop, lags = asyncio.get_running_loop(), []
    before = open_pipes()
    async with connected(tmp_path, script):
        for _ in range(50):
            began = loop.time()
            await asyncio.sleep(0.01)
            lags.append(loop.time() - began)
    assert sorted(lags)[len(lags) // 2] < 0.1
    async with asyncio.timeout(5):
        while open_pipes() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # pipes are closed in a later iteration of the event loop


async def test_lists_are_read_in_pages_and_denied_tools_are_not_offered(tmp_path: Path) -> None:
    script = """
begin(tools={})
asked = hear()
say(id=asked["id"], result={"tools": [{"name": "look", "inputSchema": {}}, 7, {}], "nextCursor": "2"})
told = "Reads\\u202e this\\u0007."
tools("look_far", "drop", "a tool/with: signs", description=told, annotations={"readOnlyHint": True})
hear()
"""
    async with connected(tmp_path, script, deny=("drop*",), effects={"look_*": "executes"}) as registry:
        tools = registry.by_name
        assert set(tools) == {"odd__look", "odd__look_far", "odd__a_tool_with__signs"}
        assert tools["odd__look_far"].effect is ToolEffect.EXECUTES
        assert tools["odd__a_tool_with__signs"].effect is ToolEffect.WRITES
        assert tools["odd__look_far"].description == "Reads this ."
        assert tools["odd__look"].shown is not None
        shown = tools["odd__look"].shown({"a": "`b`\x1b[0m"})
        assert "`look`" in shown
        assert "`odd`" in shown
        assert "\x1b" not in shown


async def test_pages_of_megabytes_use_little_memory(tmp_path: Path) -> None:
    script = """
begin(tools={}, resources={})
for number in range(40):
    asked = hear()
    if asked["method"] != "tools/list": break
    tool = {"name": f"look_{number}", "description": "x" * 1_000_000, "inputSchema": {"x-more": "y" * 1_000_000}}
    listed = [tool, {**tool, "name": "z" * 1_000_000}]
    say(id=asked["id"], result={"tools": listed, "nextCursor": "next"[: 39 - number]})
asked = hear()
for number in range(20):
    uri = f"file:///{number}/" + "x" * 4_000_000
    say(id=asked["id"], result={"resources": [{"name": "a", "uri": uri}], "nextCursor": "next"})
    asked = hear()
say(id=asked["id"], result={"resources": []})
hear()
"""
    tracemalloc.start()
    try:
        async with serving(tmp_path, script) as registry:
            status = await becomes(registry, ServerState.CONNECTED, 41)
            assert tracemalloc.get_traced_memory()[1] < 80 << 20  # all at once would use 280 MB
            assert (len(status.catalog.tools), len(status.catalog.resources)) == (40, 20)
    finally:
        tracemalloc.stop()


async def test_requests_for_unsupported_features_are_declined(tmp_path: Path) -> None:
    script = """
begin(tools={})
tools("look")
asked = hear()
answers = []
for number, method in enumerate(("sampling/createMessage", "roots/list", "elicitation/create", "made/up")):
    say(id=f"s{number}", method=method, params={"messages": [], "maxTokens": 1, "message": "", "requestedSchema": {}})
    answers.append("error" in hear())
say(id=asked["id"], result={"content": [{"type": "text", "text": repr(answers)}]})
hear()
"""
    async with connected(tmp_path, script) as registry:
        assert await ask(registry, "look") == "[True, True, True, True]"


async def test_redirects_to_other_hosts_and_compressed_answers_are_refused(tmp_path: Path) -> None:
    reached: list[str] = []

    async def other(request: web.Request) -> web.Response:
        reached.append(request.headers.get("X-Key", ""))
        return web.json_response({})

    async def redirecting(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"{elsewhere.url}/mcp")

    async def packed(request: web.Request) -> web.Response:
        response = web.json_response({"jsonrpc": "2.0", "id": 0, "result": "x" * 100_000})
        response.enable_compression(force=web.ContentCoding.gzip)
        return response

    async def heavy(request: web.Request) -> web.Response:
        values = '{"jsonrpc": "2.0", "id": 0, "result": {"a": [' + "[]," * 1_000_000 + "[]]}}"
        return web.Response(text=values, content_type="application/json")

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(200):  # outside of event streams, blank lines end nothing
                await response.write(b" " * (1 << 20) + b"\n\n")
        return response

    apps = [web.Application() for _ in range(5)]
    for app, handler in zip(apps, (other, redirecting, packed, heavy, endless), strict=True):
        app.router.add_route("*", "/mcp", handler)
    async with (
        Server(apps[0]) as elsewhere,
        Server(apps[1]) as here,
        Server(apps[2]) as packing,
        Server(apps[3]) as big,
        Server(apps[4]) as spaced,
    ):
        large = "larger than the limit"
        for url, reason in (
            *((here.url, "not followed"), (packing.url, "compressed")),
            *((big.url, large), (spaced.url, large)),
        ):
            async with serving(tmp_path, "", url=f"{url}/mcp", headers={"X-Key": "secret-1"}) as registry:
                status = await becomes(registry, ServerState.DOWN)
                assert reason in status.error
    assert reached == []


async def test_a_hanging_call_is_cancelled_and_does_not_delay_the_end(tmp_path: Path) -> None:
    told: list[str] = []
    called, cancelled, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            if request.method == "DELETE":
                told.append("goodbye")
                await never.wait()
            return web.Response(status=405)
        asked = await request.json()
        told.append(asked["method"])
        result: dict[str, object] = {"tools": [{"name": "hang", "inputSchema": {"type": "object"}}]}
        if asked["method"] == "initialize":
            info = {"name": "slow", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif asked["method"] == "notifications/cancelled":
            cancelled.set()
        elif asked["method"] == "tools/call":
            called.set()
            await never.wait()
        if "id" not in asked:
            return web.Response(status=202)
        answered = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        return web.json_response(answered, headers={"mcp-session-id": "s1"})

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    async with Server(app) as here:
        try:
            async with connected(tmp_path, "", url=f"{here.url}/mcp") as registry:
                call = asyncio.create_task(ask(registry, "hang"))  # type: ignore[arg-type]
                await called.wait()
                call.cancel()
                async with asyncio.timeout(5):
                    await cancelled.wait()
                before = time.monotonic()
            assert time.monotonic() - before < GOODBYE_SECONDS + 2
        finally:
            never.set()
    assert told[-1] == "goodbye"


def test_pauses_between_attempts_grow_to_five_minutes() -> None:
    assert [RETRIES.after(failures) for failures in (1, 5, 50)] == [1.0, 16.0, 300.0]
    assert isinstance(RETRIES, Backoff)


def test_a_server_does_not_inherit_secrets_and_its_own_are_redacted() -> None:
    own = {"PATH": "/bin", "HOME": "/root", "OPENAI_API_KEY": "k", "HERMES_HOME": "/h", "CREDENTIALS_DIRECTORY": "/c"}
    assert server_environ(own, {"KEY": "v", "PATH": "/opt"}) == {"PATH": "/opt", "HOME": "/root", "KEY": "v"}
    settings = ServerSettings(name="a", command="b", env={"K": "secret-1"}, headers={"H": "secret-2"})
    assert "secret" not in repr(settings)


def test_the_operators_settings_override_the_servers_hints() -> None:
    assert ServerSettings(name="a").effect_of("drop_all", claims_to_read=True) is ToolEffect.WRITES
    assert ServerSettings(name="a", trust_hints=True).effect_of("drop_all", claims_to_read=True) is ToolEffect.READ_ONLY
    server = ServerSettings(name="a", trust_hints=True, effects={"drop_*": "executes", "*": "reads"})
    assert server.effect_of("drop_all", claims_to_read=True) is ToolEffect.EXECUTES


@given(pieces=st.lists(st.binary(max_size=30), max_size=20))
def test_lines_do_not_depend_on_the_split(pieces: list[bytes]) -> None:
    reader = LineReader()
    found = [line for piece in pieces for line, is_whole in reader.feed(piece) if is_whole]
    assert found == b"".join(pieces).split(b"\n")[:-1]


@given(line=st.binary(min_size=600, max_size=5_000), size=st.integers(1, 700), number=st.integers(0, 10**6))
def test_both_ends_of_a_too_large_line_are_kept(line: bytes, size: int, number: int) -> None:
    whole = b'{"id":%d,"result":"' % number + line.replace(b"\n", b" ").replace(b'"', b"'") + b'"}'
    reader = LineReader(max_weight=2_000)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    [(kept, is_whole)] = [found for piece in (*pieces, b"\n") for found in reader.feed(piece)]
    assert not is_whole
    assert len(kept) <= 512
    assert whole.startswith(kept[:250])
    assert whole.endswith(kept[-200:])
    assert (find_id(kept), list(reader.feed(b"next\n"))) == (number, [(b"next", True)])


def test_many_small_values_weigh_more_than_their_text() -> None:
    assert weight(b"[]," * 1_000) > 5 * weight(b"xxx" * 1_000)
    assert json.dumps("x" * (7 << 20)).encode().count(b",") == 0


def test_results_are_converted_to_text() -> None:
    content = [
        {"type": "text", "text": "one\x1b[0m"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "a:b", "blob": "AAAA", "mimeType": "image/tiff"}},
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
    ]
    result = RemoteResult(content=content, structured={"n": 1}, is_error=False)
    assert result.text.splitlines() == [
        "one\\u001b[0m",
        "[audio, audio/wav]",
        "[resource a:b, image/tiff: not shown]",
        "[image, image/png]",
    ]
    assert result.images == []
    assert RemoteResult(content=[], structured={"n": 10**30}, is_error=False).text == f'{{"n": {10**30}}}'
    long = RemoteResult(content=[{"type": "text", "text": "x" * 2_000_000}], structured=None, is_error=False)
    assert long.text.endswith("[cut here: the result had 2,000,000 characters]")
    assert len(long.text) < 1_000_000
    assert os.linesep not in RemoteResult(content=[], structured=None, is_error=False).text


@pytest.mark.parametrize(("sees_images", "shown"), [(True, 4), (False, 0)])
async def test_images_that_are_not_shown_are_counted(chat: Chat, tmp_path: Path, sees_images: bool, shown: int) -> None:
    def image(data: bytes, mime: str = "image/png") -> dict[str, Any]:
        return {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": mime}

    odd = image(picture((2, 9)), "image/jpg"), image(picture((3, 9)), "IMAGE/PNG"), image(picture((4, 9)))
    odd[0]["data"] = "data:image/jpg;base64," + odd[0]["data"]
    odd[2]["data"] = "\n".join(re.findall(".{1,20}", odd[2]["data"]))
    good = [image(picture()), *odd, image(picture())]  # the limit is four images
    bad = [image(picture()[:40]), image(b"<svg/>", "image/svg+xml"), {**image(b""), "data": "no base64!"}]
    store = ImageStore(files=AttachmentFolder(tmp_path / "files"), clock=SystemClock())
    context = replace(ToolContext.of(await chat.start("hello"), chat.store), sees_images=sees_images)
    output = await store.output(RemoteResult(content=[*good, *bad], structured=None, is_error=False), context)
    assert isinstance(output, ToolReply)
    assert len(output.images) == shown
    assert output.text.endswith(f"[not shown to you: {8 - shown} images]")


async def test_a_reload_during_shutdown_starts_nothing(tmp_path: Path) -> None:
    one = ServerSettings(name="odd", command=sys.executable, args=("-c", "input()", str(tmp_path)))
    registry = ServerRegistry(
        ImageStore(files=AttachmentFolder(tmp_path), clock=SystemClock()), SystemClock(), lambda text: text
    )
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        await registry.close()
        registry.configure([one], group)
        assert registry.statuses() == []


async def test_without_the_sdk_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)  # as if the SDK were not installed
    async with serving(tmp_path, "begin()") as registry:
        status = await becomes(registry, ServerState.DOWN)
    assert "`make mcp`" in status.error
    assert not processes_with(str(tmp_path))


async def test_a_flood_of_server_requests_starts_few_tasks(tmp_path: Path) -> None:
    asks = """
begin(tools={})
tools("look")
number = 0
while True:
    for number in range(number, number + 1000):
        print('{"jsonrpc":"2.0","id":%d,"method":"ping"}' % (number + 1_000_000))
    sys.stdout.flush()
"""
    async with connected(tmp_path, asks):
        most = 0
        for _ in range(200):
            await asyncio.sleep(0.01)
            most = max(most, len(asyncio.all_tasks()))
        assert most < 200
