"""No path, link or race condition leads out of a workspace, with any file tool."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings import WorkspaceSettings
from agent.tools.files.file_tools import file_tools
from agent.tools.files.search_files import search_tool
from agent.tools.files.workspace import MAX_DEPTH, WorkspaceStore, parse_path
from agent.tools.registry import ToolRegistry
from hermes_state.errors import ToolError
from hermes_state.turns import RunningTurn
from tests.agent.conftest import Chat
from tests.agent.tools.calls import call
from tests.agent.tools.path_corpus import PATHS, prepare_folder, swapper

SECRET = "the key is 8d5fe0"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "read_file": {},
    "list_files": {},
    "search_files": {"pattern": "key is|root:|HOME="},
    "write_file": {"content": "overwritten"},
    "edit_file": {"old": "key", "new": "overwritten"},
}


class Trap:
    """Workspace surrounded by files that must stay inaccessible."""

    def __init__(self, folder: Path, name: str) -> None:
        self.outside, self.workspace = folder / "outside", folder / "workspaces" / name
        for closed in (
            self.outside,
            folder,
            folder / "workspaces",
            folder / "workspaces" / "8",
            folder / f"{name}-victim",
        ):
            closed.mkdir(exist_ok=True)
            (closed / "secret.txt").write_text(SECRET)
        prepare_folder(self.workspace, self.outside)
        settings = WorkspaceSettings(max_bytes=10_000_000, max_file_bytes=1_000_000)
        workspaces = WorkspaceStore(folder / "workspaces", settings)
        self.tools = ToolRegistry((*file_tools(workspaces), search_tool(workspaces)))
        self._folder = folder

    def closed_files(self) -> dict[Path, str]:
        """Return the state of everything around the workspace."""
        files = [path for path in self._folder.rglob("*") if not path.is_relative_to(self.workspace)]
        return {path: path.read_text() if path.is_file() else "" for path in files}


@pytest.fixture
async def turn(chat: Chat) -> RunningTurn:
    return await chat.start("hello")


@pytest.fixture
def trap(tmp_path: Path, turn: RunningTurn) -> Trap:
    folder = tmp_path / "state"
    folder.mkdir()
    return Trap(folder, str(turn.chat_id))


@pytest.mark.parametrize("path", [path for _, path in PATHS], ids=[name for name, _ in PATHS])
async def test_no_path_leaves_the_workspace(trap: Trap, chat: Chat, turn: RunningTurn, path: str) -> None:
    written = path.format(outside=trap.outside)
    closed = trap.closed_files()
    for name, arguments in ARGUMENTS.items():
        async with asyncio.timeout(20):  # reading a pipe or a device would block
            reply = await call(trap.tools, chat, turn, name, path=written, **arguments)
        assert SECRET not in reply.text, name
        assert "root:" not in reply.text.replace(written, ""), name
        assert "the tool crashed" not in reply.text, name
        assert trap.closed_files() == closed, name


async def test_errors_explain_invalid_paths(trap: Trap, chat: Chat, turn: RunningTurn) -> None:
    for path, told in {
        "../secret.txt": "contains “..”",
        "/etc/passwd": "outside the workspace",
        "link.txt": "is a symbolic link",
        "linked/secret.txt": "“linked” is a symbolic link",
        "hard.txt": "more than one hard link",
        "pipe": "a pipe, a socket or a device",
        "socket": "a pipe, a socket or a device",
        "notes": "is a folder",
        "note.txt/x": "it is not a folder",
        "nothing.txt": "list_files shows",
        "a/" * 41: "the limit is 40",
        "n" * 256: "the limit is 255 bytes",
        "a\0b": "unprintable",
    }.items():
        assert told in (await call(trap.tools, chat, turn, "read_file", path=path)).text, path


async def test_search_and_listing_skip_links_and_special_files(trap: Trap, chat: Chat, turn: RunningTurn) -> None:
    found = await call(trap.tools, chat, turn, "search_files", pattern=".")
    assert found.text == "1 line found in 1 text file.\nnote.txt:1: a note of ours"
    listed = await call(trap.tools, chat, turn, "list_files")
    assert "note.txt 15" in listed.text
    assert "linked (link or special file: no access)" in listed.text
    assert "passwd" not in listed.text


async def test_a_swap_between_check_and_use_opens_nothing(trap: Trap, chat: Chat, turn: RunningTurn) -> None:
    swap = swapper(trap.workspace, trap.outside)
    is_over, swaps = threading.Event(), 0

    def keep_swapping() -> None:
        nonlocal swaps
        while not is_over.is_set():
            swap()
            swaps += 1

    closed, replies = trap.closed_files(), []
    thread = threading.Thread(target=keep_swapping)
    thread.start()
    try:
        for _ in range(40):
            for path in ("swapped/secret.txt", "file.txt"):
                replies += [await call(trap.tools, chat, turn, "read_file", path=path) for _ in range(5)]
                replies.append(await call(trap.tools, chat, turn, "search_files", path="", pattern="key is|decoy"))
                replies.append(await call(trap.tools, chat, turn, "write_file", path=path, content="a decoy\n"))
            replies.append(await call(trap.tools, chat, turn, "write_file", path="swapped/new.txt", content="x"))
    finally:
        is_over.set()
        thread.join()
    assert swaps > 50
    assert any("a decoy" in reply.text for reply in replies)
    assert not any(SECRET in reply.text for reply in replies)
    assert trap.closed_files() == closed


PIECES = st.sampled_from(
    ["..", ".", "/", "//", "\\", "~", "/workspace", "a", " ", "\0", "\u202e", "%2e", "é", "…" * 90]
)


@given(path=st.text() | st.lists(PIECES).map("".join))
def test_every_accepted_path_consists_of_plain_names(path: str) -> None:
    try:
        parts = parse_path(path)
    except ToolError:
        return
    for part in parts:
        assert part not in ("", ".", "..")
        assert not set(part) & {"/", "\\", "\0", "\n"}
        assert len(part.encode()) <= 255
    assert len(parts) <= MAX_DEPTH
