"""The control socket between the command line and the daemon."""

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.operator import socket as control_socket
from gateway.operator.socket import MAX_LINE_BYTES, DaemonNotRunningError, ask, serve_control
from hermes_state.errors import CommandError
from tests.platforms.contract import eventually


async def echo(args: Mapping[str, Any]) -> Any:
    return dict(args)


async def refuse(args: Mapping[str, Any]) -> Any:
    raise CommandError("That code is not valid.")


async def hang(args: Mapping[str, Any]) -> Any:
    await asyncio.Event().wait()


HANDLERS = {"echo": echo, "refuse": refuse, "hang": hang}


async def asked(path: Path, request: str, args: Mapping[str, Any] | None = None, **options: Any) -> Any:
    return await asyncio.to_thread(ask, path, request, args, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


async def test_an_answer_arrives_unchanged(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        assert await asked(path, "echo", {"text": "grüße 🎈", "n": 5}) == {"text": "grüße 🎈", "n": 5}
        assert await asked(path, "echo") == {}


async def test_a_refusal_is_the_daemons_own_sentence(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        with pytest.raises(CommandError, match="That code is not valid"):
            await asked(path, "refuse")


async def test_a_request_of_another_version_is_explained(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        with pytest.raises(CommandError, match="has a different version and lacks this command"):
            await asked(path, "nonsense")


async def test_without_a_daemon_asking_fails(path: Path) -> None:
    with pytest.raises(DaemonNotRunningError):
        await asked(path, "echo")
    async with serve_control(path, HANDLERS):
        pass
    assert list(path.parent.glob("*")) == []
    with pytest.raises(DaemonNotRunningError):
        await asked(path, "echo")


async def test_a_socket_of_a_dead_daemon_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(DaemonNotRunningError):
        await asked(path, "echo")
    async with serve_control(path, HANDLERS):
        assert await asked(path, "echo", {"a": 1}) == {"a": 1}


async def test_the_socket_returns_after_its_folder_was_a_file_for_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "_LOOK_SECONDS", 0.01)
    path = path.parent / "home" / "control.sock"
    path.parent.mkdir()
    async with serve_control(path, HANDLERS):
        path.parent.rename(path.parent.with_name("moved"))
        path.parent.touch()
        await asyncio.sleep(0.1)  # no event reports the check
        path.parent.unlink()
        await eventually(path.exists, "the socket is there again")
        assert await asked(path, "echo", {"a": 1}) == {"a": 1}


async def test_only_the_owner_may_connect(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600


async def test_a_directory_too_deep_for_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    path = deep / "control.sock"
    async with serve_control(path, HANDLERS):
        assert os.listdir(deep) == ["control.sock"]
        assert await asked(path, "echo", {"a": 1}) == {"a": 1}
    assert os.listdir(deep) == []


async def test_a_silent_daemon_is_reported_differently_from_a_missing_one(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        with pytest.raises(CommandError, match="did not answer"):
            await asked(path, "hang", timeout_seconds=0.1)


async def test_a_hanging_request_delays_neither_other_requests_nor_the_shutdown(path: Path) -> None:
    hanging = asyncio.Event()

    async def hang(_args: Mapping[str, Any]) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with serve_control(path, {**HANDLERS, "hang": hang}):
        waiting = asyncio.create_task(asked(path, "hang"))
        await hanging.wait()
        assert await asked(path, "echo", {"n": 1}) == {"n": 1}
    with pytest.raises(CommandError):
        await waiting


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b'{"ask": "echo", "args": 5}\n', b"{}\n", b"\n"])
async def test_an_invalid_request_is_answered_with_a_sentence(path: Path, line: bytes) -> None:
    async with serve_control(path, HANDLERS):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        answer = await reader.readline()
        writer.write(b'{"ask": "echo", "args": {"still": "here"}}\n')
        assert b"still" in await reader.readline()
        writer.close()
    assert b'"ok":false' in answer


async def test_an_endless_request_is_cut_off(path: Path) -> None:
    async with serve_control(path, HANDLERS):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"x" * (MAX_LINE_BYTES + 10))
        assert b'"ok":false' in await reader.readline()
        assert await reader.read() == b""
        writer.close()
