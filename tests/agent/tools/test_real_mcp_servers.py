"""MCP servers that others wrote, from PyPI and npm. `make test-mcp` installs them into `build/mcp`."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.tools.mcp.servers import ServerRegistry
from agent.tools.mcp.settings import ServerState
from agent.tools.offers import schema_tokens
from tests.agent.tools.test_mcp_servers import becomes, serving
from tests.platforms.telegram.harness import free_port

pytestmark = [pytest.mark.mcp, pytest.mark.timeout(120)]

BUILD = Path(__file__).parents[3] / "build" / "mcp"
PYTHON, OLD, NODE = BUILD / "venv" / "bin", BUILD / "old" / "bin", BUILD / "node_modules" / ".bin"
"""Programs from PyPI, those that need the SDK's first version, and programs from npm."""


@asynccontextmanager
async def connected(folder: Path, **settings: Any) -> AsyncIterator[ServerRegistry]:
    async with serving(folder, "", seconds=30, **settings) as registry:
        status = await becomes(registry, ServerState.CONNECTED, 60)
        assert status.catalog.faults == ()
        assert 0 < sum(map(schema_tokens, status.tools.values())) < 20_000
        yield registry


async def ask(registry: ServerRegistry, name: str, arguments: Mapping[str, Any]) -> str:
    return str(await registry.by_name[f"odd__{name}"].run(dict(arguments), None))  # type: ignore[arg-type]  # no images


async def test_time(tmp_path: Path) -> None:
    async with connected(tmp_path, command=str(PYTHON / "mcp-server-time")) as registry:
        zones = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "T21:00:00+09:00" in await ask(registry, "convert_time", zones)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit = ["git", *identity, "commit", "-q", "--allow-empty", "-m", "first boat"]
    subprocess.run(commit, cwd=tmp_path, check=True)
    return tmp_path


async def test_git(repository: Path, tmp_path: Path) -> None:
    command = {"command": str(PYTHON / "mcp-server-git"), "args": ("--repository", str(repository))}
    async with connected(tmp_path, **command) as registry:
        assert "first boat" in await ask(registry, "git_log", {"repo_path": str(repository)})


async def test_sqlite(tmp_path: Path) -> None:
    command = {"command": str(OLD / "mcp-server-sqlite"), "args": ("--db-path", str(tmp_path / "boats.db"))}
    async with connected(tmp_path, **command) as registry:
        await ask(registry, "create_table", {"query": "CREATE TABLE boats (name TEXT)"})
        await ask(registry, "write_query", {"query": "INSERT INTO boats VALUES ('Ada')"})
        assert "Ada" in await ask(registry, "read_query", {"query": "SELECT * FROM boats"})
        assert "memo" in (await ask(registry, "read_resource", {"uri": "memo://insights"})).lower()
        assert "boats" in await ask(registry, "get_prompt", {"name": "mcp-demo", "arguments": {"topic": "boats"}})


async def test_fetch(tmp_path: Path) -> None:
    page = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<html><body><article><h1>Tides</h1><p>High at noon.</p></article></body></html>"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        page.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tides"
        command = {"command": str(PYTHON / "mcp-server-fetch"), "args": ("--ignore-robots-txt", "--allow-private-ips")}
        async with connected(tmp_path, **command) as registry:
            assert "High at noon" in await ask(registry, "fetch", {"url": url})
    assert page.is_set()


async def test_filesystem(tmp_path: Path) -> None:
    (tmp_path / "boats.txt").write_text("Ada lies at pier 7.")
    command = {"command": str(NODE / "mcp-server-filesystem"), "args": (str(tmp_path),)}
    async with connected(tmp_path, **command) as registry:
        path = str(tmp_path / "boats.txt")
        assert "pier 7" in await ask(registry, "read_text_file", {"path": path})


async def test_memory(tmp_path: Path) -> None:
    settings = {"command": str(NODE / "mcp-server-memory"), "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}}
    async with connected(tmp_path, **settings) as registry:
        boat = {"name": "Ada", "entityType": "boat", "observations": ["lies at pier 7"]}
        await ask(registry, "create_entities", {"entities": [boat]})
        assert "pier 7" in await ask(registry, "search_nodes", {"query": "Ada"})


async def use_everything(registry: ServerRegistry) -> None:
    assert "Ahoy" in await ask(registry, "echo", {"message": "Ahoy"})
    async with asyncio.timeout(20):  # the server adds some of them later
        while "odd__read_resource" not in registry.by_name:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    uri = registry.statuses()[0].catalog.resources[0]
    assert uri in await ask(registry, "read_resource", {"uri": uri})
    prompts = registry.statuses()[0].catalog.prompts
    name = next(one.partition("(")[0] for one in prompts if one.endswith("()"))
    assert await ask(registry, "get_prompt", {"name": name})


async def test_everything(tmp_path: Path) -> None:
    async with connected(tmp_path, command=str(NODE / "mcp-server-everything"), args=("stdio",)) as registry:
        await use_everything(registry)


async def test_everything_over_streamable_http(tmp_path: Path) -> None:
    port = free_port()
    environ = {"PATH": os.environ["PATH"], "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(NODE / "mcp-server-everything", "streamableHttp", env=environ)
    try:
        async with connected(tmp_path, url=f"http://127.0.0.1:{port}/mcp") as registry:
            await use_everything(registry)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
