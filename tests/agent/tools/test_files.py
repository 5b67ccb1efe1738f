"""Reading, writing, editing, listing and searching files of a workspace."""

import asyncio
import contextlib
import hashlib
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.settings import WorkspaceSettings
from agent.tools.files.file_tools import file_tools
from agent.tools.files.search_files import search_tool
from agent.tools.files.workspace import MAX_DEPTH, WorkspaceStore
from agent.tools.registry import ToolContext, ToolRegistry
from agent.turn import Answer
from hermes_state.tool_runs import ToolRunState
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatKey, Image, ToolCall
from tests.agent.conftest import Chat
from tests.agent.tools.calls import call
from tests.hermes_state.rows import CALL
from tests.sampling import Test
from tests.sandboxes import small_disk

NOTED = Answer(text="Noted.", call=CALL, reported_prompt_tokens=None)


@dataclass
class Desk:
    """Chat with a turn, its workspace and the file tools."""

    chat: Chat
    turn: RunningTurn
    folder: Path
    tools: ToolRegistry

    async def call(self, name: str, *, state: ToolRunState = ToolRunState.DONE, **arguments: Any) -> str:
        """Make a call that must succeed, and return the text of the reply."""
        reply = await call(self.tools, self.chat, self.turn, name, **arguments)
        assert reply.state is state, reply.text
        return reply.text

    async def fail(self, name: str, **arguments: Any) -> str:
        """Make a call that must fail, and return the text of the reply."""
        return await self.call(name, state=ToolRunState.FAILED, **arguments)


@pytest.fixture
async def desk(tmp_path: Path, chat: Chat) -> Desk:
    settings = WorkspaceSettings(max_bytes=1_000_000, max_file_bytes=400_000)
    workspaces = WorkspaceStore(tmp_path / "workspaces", settings)
    turn = await chat.start("hello")
    folder = tmp_path / "workspaces" / str(turn.chat_id)
    return Desk(chat, turn, folder, ToolRegistry((*file_tools(workspaces), search_tool(workspaces))))


# ---- reading


async def test_a_written_file_is_read_back_with_line_numbers(desk: Desk) -> None:
    told = await desk.call("write_file", path="notes/plan.md", content="one\ntwo\n")
    assert told == "Wrote 8 bytes to “notes/plan.md”: a new file."
    assert await desk.call("read_file", path="notes/plan.md") == "“notes/plan.md”, lines 1-2 of 2.\n1\tone\n2\ttwo"
    assert await desk.call("read_file", path="/workspace/notes/plan.md", offset=2) == (
        "“notes/plan.md”, lines 2-2 of 2.\n2\ttwo"
    )
    assert stat.S_IMODE((desk.folder / "notes" / "plan.md").stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.folder.stat().st_mode) == 0o700


async def test_a_long_file_is_read_in_parts_without_a_gap(desk: Desk) -> None:
    lines = [f"line {number} " + "x" * (number % 150) for number in range(1, 3_001)]
    await desk.call("write_file", path="long.txt", content="\n".join(lines))
    offset, seen = 1, list[str]()
    while True:
        text = await desk.call("read_file", path="long.txt", offset=offset, limit=5_000)
        head, *rows = text.split("\n")
        seen += [row.partition("\t")[2] for row in rows]
        assert len(text) < 41_000
        if "Continue with" not in head:
            break
        offset = len(seen) + 1
        assert f"Continue with offset {offset}." in head
    assert seen == lines
    assert "has only 3,000 lines" in await desk.fail("read_file", path="long.txt", offset=3_001)


async def test_an_endless_line_is_read_in_parts_without_a_gap(desk: Desk) -> None:
    line = "".join(chr(ord("a") + number % 26) for number in range(100_003))
    await desk.call("write_file", path="data.json", content=f"{line}\nlast\n")
    column, seen, calls = 1, "", 0
    while "continue with offset" in (text := await desk.call("read_file", path="data.json", limit=1, column=column)):
        seen += text.split("\n")[1].removeprefix("1\t")
        column, calls = len(seen) + 1, calls + 1
        assert f"continue with offset 1 and column {column}]" in text
    assert (seen + text.split("\n")[1].removeprefix("1\t"), calls) == (line, 3)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("ž\n".encode("utf-8-sig"), "1\tž"),
        ("één\n".encode("cp1252"), "was read as Windows-1252.\n1\téén"),
        ("žluť\n".encode("utf-16"), "1\tžluť"),
        (b"one\r\ntwo\r\n", "1\tone\n2\ttwo"),
        (b"", "is empty."),
        (b"x" * 65_535 + "é".encode(), "[line 1 has 65,536 characters"),
    ],
)
async def test_texts_of_other_encodings_are_read(desk: Desk, data: bytes, told: str) -> None:
    await desk.call("list_files")
    (desk.folder / "text.txt").write_bytes(data)
    assert told in await desk.call("read_file", path="text.txt")


async def test_binary_and_too_large_files_are_neither_read_nor_edited(desk: Desk) -> None:
    await desk.call("list_files")
    (desk.folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert "is not a text file: it has 16 bytes" in await desk.fail("read_file", path="image.png")
    (desk.folder / "large.txt").write_bytes(b"x" * 400_001)
    assert "above the limit of 400,000" in await desk.fail("read_file", path="large.txt")
    os.truncate(desk.folder / "large.txt", 5_000_001)
    assert "larger than the limit of 400,000 bytes" in await desk.fail("edit_file", path="large.txt", old="a", new="b")


async def test_a_stored_result_is_read_by_its_recall_id(desk: Desk) -> None:
    await desk.chat.finish(desk.turn, NOTED)
    turn = await desk.chat.start("\n".join(f"row {number}" for number in range(1, 2_001)))
    desk.turn = turn
    stored = (await desk.chat.said(turn))[-1].id
    text = await desk.call("read_file", path=f"m{stored}", offset=1_990, limit=3)
    assert text.startswith(f"“m{stored}”, lines 1990-1992 of 2000. Continue with offset 1993.")
    found = await desk.call("search_files", path=f" M{stored} ", pattern=r"^row 17\d\d$")
    assert found.startswith("20 lines found in 1 text file.")
    assert f"M{stored}:1700: row 1700" in found
    await desk.call("write_file", path=f"m{stored}", content="a file of that name")
    assert "a file of that name" in await desk.call("read_file", path=f"./m{stored}")


async def test_images_of_a_stored_message_are_shown_with_its_beginning(desk: Desk) -> None:
    await desk.chat.finish(desk.turn, NOTED)
    image = Image(attachment_id=1, mime="image/png", path="ab/abc")
    turn = await desk.chat.start_with_images("look\nhere", image)
    stored = (await desk.chat.said(turn))[-1].id
    reply = await call(desk.tools, desk.chat, turn, "read_file", path=f"m{stored}")
    assert "(1 image, shown after this result to models that can see)" in reply.text
    assert reply.images == (image,)
    assert (await call(desk.tools, desk.chat, turn, "read_file", path=f"m{stored}", offset=2)).images == ()


async def test_stored_messages_of_another_chat_are_not_read(desk: Desk) -> None:
    other = Chat(desk.chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="43"))
    stored = (await other.said(await other.start("the code word is xylophone")))[-1].id
    for name, more in (("read_file", {}), ("search_files", {"pattern": "x"})):
        assert "has no stored message" in await desk.fail(name, path=f"m{stored}", **more)


async def test_chats_have_separate_files(desk: Desk) -> None:
    await desk.call("write_file", path="a.txt", content="xylophone")
    other = Chat(desk.chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="43"))
    turn, mine = await other.start("hello"), str(desk.turn.chat_id)
    for path in ("a.txt", f"{mine}/a.txt", f"../{mine}/a.txt", f"/workspace/../{mine}/a.txt"):
        assert (await call(desk.tools, other, turn, "read_file", path=path)).state is ToolRunState.FAILED
    assert (await call(desk.tools, other, turn, "list_files")).text == "The workspace is empty."
    assert "0 lines found" in (await call(desk.tools, other, turn, "search_files", pattern="xylo")).text


async def test_results_fit_into_a_small_window(desk: Desk) -> None:
    await desk.call("write_file", path="long.txt", content="word " * 60_000)
    asked = ToolCall(id="c", name="read_file", arguments='{"path": "long.txt", "column": 2}')
    for size, most in ((4_000, 4_200), (2_000, 2_200), (100_000, 40_200)):
        context = replace(ToolContext.of(desk.turn, desk.chat.store), result_size=size)
        reply = await desk.tools.run(asked, desk.tools.check(asked), context)
        assert most - 200 <= len(reply.text) <= most


# ---- writing


async def test_writing_replaces_a_file_and_keeps_its_mode(desk: Desk) -> None:
    await desk.call("write_file", path="run.sh", content="echo one")
    (desk.folder / "run.sh").chmod(0o755)
    assert "the old content was replaced" in await desk.call("write_file", path="run.sh", content="echo two")
    assert (desk.folder / "run.sh").read_text() == "echo two"
    assert stat.S_IMODE((desk.folder / "run.sh").stat().st_mode) == 0o755
    assert os.listdir(desk.folder) == ["run.sh"]


async def test_a_failed_write_does_not_change_the_file(desk: Desk) -> None:
    await desk.call("write_file", path="a.txt", content="one")
    assert "the limit is 400,000 bytes" in await desk.fail("write_file", path="a.txt", content="x" * 400_001)
    assert "give the path of a file in it" in await desk.fail("write_file", path="", content="x")
    (desk.folder / "sub").mkdir()
    assert "is a folder" in await desk.fail("write_file", path="sub", content="x")
    assert ((desk.folder / "a.txt").read_text(), sorted(os.listdir(desk.folder))) == ("one", ["a.txt", "sub"])


async def test_the_next_write_removes_the_leftover_of_a_crash(desk: Desk) -> None:
    await desk.call("list_files")
    draft = desk.folder / f".{hashlib.sha256(b'b.txt').hexdigest()[:16]}.draft"
    draft.write_text("half of")
    await desk.call("write_file", path="b.txt", content="one")
    assert os.listdir(desk.folder) == ["b.txt"]


async def test_a_full_workspace_accepts_no_more_data(desk: Desk) -> None:
    for name in ("a", "b"):
        await desk.call("write_file", path=name, content="x" * 400_000)
    refused = await desk.fail("write_file", path="c", content="x" * 300_000)
    assert "the workspace is full" in refused
    assert "of 1,000,000 bytes" in refused
    await desk.call("write_file", path="a", content="x")
    await desk.call("write_file", path="c", content="x" * 300_000)


async def test_parallel_calls_lose_no_change(desk: Desk) -> None:
    await desk.call("write_file", path="list.txt", content="\n".join(f"- item {number} -" for number in range(20)))
    await asyncio.gather(
        *(desk.call("edit_file", path="list.txt", old=f"item {n} -", new=f"done {n} -") for n in range(20))
    )
    assert "item" not in (desk.folder / "list.txt").read_text()


# ---- editing


async def test_an_edit_replaces_the_only_occurrence_or_names_the_lines(desk: Desk) -> None:
    await desk.call("write_file", path="a.py", content="pass\nx\npass\n\npass\n")
    told = await desk.call("edit_file", path="a.py", old="x", new="yz")
    assert told == "Replaced 1 occurrence in “a.py”, starting at line 2. The file now has 19 bytes."
    refused = await desk.fail("edit_file", path="a.py", old="pass", new="...")
    assert "3 times, at lines 1, 3, 5" in refused
    assert "Replaced 3 occurrences" in await desk.call("edit_file", path="a.py", old="pass", new="...", all=True)
    assert (desk.folder / "a.py").read_text() == "...\nyz\n...\n\n...\n"


async def test_line_ends_and_encoding_are_kept(desk: Desk) -> None:
    await desk.call("list_files")
    for name, data, changed in (
        ("crlf.txt", b"one\r\ntwo\r\nthree\r\n", b"one\r\n2\r\n3\r\n"),
        ("bom.txt", "\ufeffone\ntwo\nthree\n".encode(), "\ufeffone\n2\n3\n".encode()),
        ("old.txt", "één\ntwo\nthree\n".encode("cp1252"), "één\n2\n3\n".encode("cp1252")),
    ):
        (desk.folder / name).write_bytes(data)
        await desk.call("edit_file", path=name, old="two\nthree", new="2\n3")
        assert (desk.folder / name).read_bytes() == changed
    assert "encoding cannot represent the new text" in await desk.fail("edit_file", path="old.txt", old="2", new="→")


@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("def  f(x):\n  return x", "differ only in spaces, quotation marks or line ends:\n3\t'def f(x):'"),
        ("name = “Ann”", "only in spaces, quotation marks"),
        ("def g(x):\n    return y", "The most similar lines:\n3\t'def f(x):'"),
        ("nothing of the kind at all", "No line is similar"),
        ("", "old is empty"),
        ("import os", "old and new are the same"),
    ],
)
async def test_a_missing_text_is_answered_with_similar_lines(desk: Desk, old: str, told: str) -> None:
    await desk.call("write_file", path="a.py", content='import os\nname = "Ann"\ndef f(x):\n\treturn x\n')
    assert told in await desk.fail("edit_file", path="a.py", old=old, new="import os")


async def test_a_mismatch_in_a_huge_file_is_explained_quickly(desk: Desk) -> None:
    line = "abcdefgh " * 40
    await desk.call("write_file", path="huge.txt", content="\n".join(f"{line}{number}" for number in range(1_000)))
    async with asyncio.timeout(10):
        await desk.fail("edit_file", path="huge.txt", old="hgfedcba " * 40, new="x")


# ---- listing and searching


async def test_a_listing_shows_sizes_to_a_depth(desk: Desk) -> None:
    assert await desk.call("list_files") == "The workspace is empty."
    await desk.call("write_file", path="a/b/c/d.txt", content="x" * 1_234)
    await desk.call("write_file", path="z.txt", content="x")
    assert (await desk.call("list_files")).split("\n")[1:] == ["a/", "a/b/", "a/b/c/", "z.txt 1"]
    assert (await desk.call("list_files", path="a/b", depth=2)).endswith("\na/b/c/\na/b/c/d.txt 1,234")
    assert "is not a folder" in await desk.fail("list_files", path="z.txt")


async def test_a_listing_is_bounded_and_names_are_one_line(desk: Desk) -> None:
    await desk.call("list_files")
    for number in range(600):
        (desk.folder / f"{number:03}").touch()
    (desk.folder / "000 a\nb").touch()
    os.close(os.open(bytes(desk.folder) + b"/000 \xff", os.O_CREAT))
    rows = (await desk.call("list_files")).split("\n")
    assert len(rows) == 501
    assert "(first 500;" in rows[0]
    assert {"000 a�b 0", "000 � 0"} <= set(rows)


_LOOKS_AROUND = """
import asyncio, sys
from pathlib import Path
from agent.settings import WorkspaceSettings
from agent.tools.files.workspace import WorkspaceStore
async def main():
    workspace = WorkspaceStore(Path(sys.argv[1]), WorkspaceSettings(max_bytes=1_000_000, max_file_bytes=1_000)).of(1)
    with workspace.lock:
        workspace.write(("new.txt",), b"x")
    print(["/".join(entry.parts) for entry in workspace.walk()])
asyncio.run(main())
"""


@pytest.mark.parametrize("mode", [0o600, 0o300, 0o000], ids=["no search", "no reading", "nothing"])
def test_a_folder_without_permission_is_listed_but_not_entered(tmp_path: Path, mode: int) -> None:
    closed = tmp_path / "1" / "closed"
    closed.mkdir(parents=True)
    (closed / "inside.txt").write_text("x")
    (tmp_path / "1" / "open.txt").write_text("x")
    closed.chmod(mode)
    # Root has access to everything, unless it gives up the capability.
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
    try:
        found = subprocess.run(
            [*words, sys.executable, "-c", _LOOKS_AROUND, str(tmp_path)], capture_output=True, text=True, check=False
        )
    finally:
        closed.chmod(0o700)
    assert found.stdout == "['closed', 'new.txt', 'open.txt']\n", found.stderr


async def test_a_walk_through_a_thousand_nested_folders_ends(desk: Desk) -> None:
    await desk.call("list_files")
    handle = os.open(desk.folder, os.O_RDONLY)
    for _ in range(1_000):
        os.mkdir("d", dir_fd=handle)
        handle, above = os.open("d", os.O_RDONLY, dir_fd=handle), handle
        os.close(above)
    os.close(handle)
    assert (await desk.call("list_files", depth=10)).count("\n") == 10
    assert "0 lines found" in await desk.call("search_files", pattern="x")
    await desk.call("write_file", path="d/" * (MAX_DEPTH - 1) + "x", content="x")
    (desk.folder / ("d/" * (MAX_DEPTH - 1)) / "x").unlink()
    _flatten(desk.folder)


def _flatten(folder: Path) -> None:
    """Remove folders that are too deep for a recursive function."""
    while (folder / "d" / "d").exists():
        (folder / "d" / "d").rename(folder / "e")
        (folder / "d").rmdir()
        (folder / "e").rename(folder / "d")


@pytest.fixture
def has_no_rg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setenv("PATH", "/nonexistent")


def SEARCHES(test: Test) -> Test:
    """Run a test with ripgrep, and with Python alone."""
    both = pytest.mark.parametrize("has_no_rg", [False, True], ids=["ripgrep", "python"], indirect=True)
    return pytest.mark.usefixtures("has_no_rg")(both(test))


@SEARCHES
async def test_search_finds_lines_by_expression_glob_and_case(desk: Desk) -> None:
    await desk.call("write_file", path="src/a.py", content="import os\nprint(os.sep)\n")
    await desk.call("write_file", path="src/deep/b.ts", content="// IMPORT\n")
    await desk.call("write_file", path=".git/config", content="import hidden\n")
    assert await desk.call("search_files", pattern="^import") == (
        "1 line found in 2 text files.\nsrc/a.py:1: import os"
    )
    assert "src/deep/b.ts:1: // IMPORT" in await desk.call("search_files", pattern="import", ignore_case=True)
    assert "1 text file." in await desk.call("search_files", pattern="import", glob="*.ts")
    assert "1 text file." in await desk.call("search_files", pattern="import", glob="src/**/*.ts")
    assert "src/a.py:2:" in await desk.call("search_files", pattern="(os.", literal=True)
    assert "src/a.py:2:" in await desk.call("search_files", path="src/a.py", pattern=r"sep\)")
    assert ".git/config:1:" in await desk.call("search_files", path=".git", pattern="hidden")
    assert "“gone” does not exist" in await desk.fail("search_files", path="gone", pattern="x")
    told = await desk.fail("search_files", pattern="(unclosed")
    assert "the pattern is invalid" in told
    assert "literal" in told


@SEARCHES
async def test_matches_are_bounded_and_the_rest_is_announced(desk: Desk) -> None:
    for number in range(220):
        await desk.call("write_file", path=f"f{number:03}", content="hit\n" * 30)
    text = await desk.call("search_files", pattern="hit")
    assert text.count("\n") == 100
    assert "use a narrower path, glob or pattern" in text


@SEARCHES
async def test_a_match_in_an_endless_line_is_shown_with_its_column(desk: Desk) -> None:
    await desk.call("write_file", path="a.json", content="x" * 50_000 + "needle" + "x" * 300_000)
    text = await desk.call("search_files", pattern="needle")
    assert "a.json:1 (column 50001): xxx" in text
    assert len(text) < 600
    assert "needle" in await desk.call("read_file", path="a.json", column=50_001)


def _searchers() -> list[Path]:
    """Return the folders in `/proc` of all search processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            command = (path / "cmdline").read_bytes()
            if b"(a+)+$" in command and b"\0-I\0-S\0-c" in command and not command.startswith(b"/bin/sh"):
                found.append(path)
    return found


async def test_an_expression_that_never_ends_is_killed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("agent.tools.files.search_files._SEARCH_SECONDS", 1.0)
    await desk.call("write_file", path="a.txt", content="a" * 60 + "!\n")
    async with asyncio.timeout(10):
        assert "ended early" in await desk.call("search_files", pattern="(a+)+$")
    assert not await asyncio.to_thread(_searchers)


@SEARCHES
async def test_a_file_that_is_too_large_is_skipped(tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.tools.files.search_files._SEARCH_SECONDS", 100.0)
    workspaces = WorkspaceStore(tmp_path, WorkspaceSettings(max_bytes=4 << 30, max_file_bytes=2 << 30))
    turn, tools = await chat.start("hello"), ToolRegistry([search_tool(workspaces)])
    folder = workspaces.folder_of(turn.chat_id)
    for name in ("a.txt", "n.txt", "z.txt"):
        (folder / name).write_text("needle")
    (folder / "huge.txt").write_bytes(b"x" * 2_000)
    os.truncate(folder / "huge.txt", 600 << 20)  # an endless line in a sparse file
    text = (await call(tools, chat, turn, "search_files", pattern="needle|pin")).text
    head, *rows = text.splitlines()
    assert head == "3 lines found in 3 text files. Skipped because searching needs too much memory: “huge.txt”."
    assert sorted(rows) == ["a.txt:1: needle", "n.txt:1: needle", "z.txt:1: needle"]


async def test_a_search_has_a_memory_limit_and_is_killed_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    await desk.call("write_file", path="a.txt", content="a" * 60 + "!\n")
    search = asyncio.create_task(desk.call("search_files", pattern="(a+)+$"))
    async with asyncio.timeout(10):
        while not (found := await asyncio.to_thread(_searchers)):  # noqa: ASYNC110  # it has no event to wait for
            await asyncio.sleep(0.01)
    bounds = (found[0] / "limits").read_text()
    assert re.search(r"^Max address space +536870912 +536870912 ", bounds, re.MULTILINE)
    assert (found[0] / "oom_score_adj").read_text() == "1000\n"
    search.cancel()
    await asyncio.wait({search})
    assert not await asyncio.to_thread(_searchers)


@SEARCHES
async def test_a_search_leaves_no_open_handle(desk: Desk) -> None:
    for number in range(150):
        await desk.call("write_file", path=f"f{number}", content="x")
    counts = []
    for _ in range(3):
        await desk.call("search_files", pattern="x")
        await desk.call("list_files")
        await desk.call("read_file", path="f1")
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] == counts[2]


async def test_a_search_with_too_many_matches_ends_early(desk: Desk) -> None:
    await desk.call("write_file", path="f", content="x")
    for number in range(80):
        (desk.folder / f"{number}").write_text(f"{'y' * 290}\n" * 100)
    async with asyncio.timeout(10):
        text = await desk.call("search_files", pattern="y")
    assert "a narrower path" in text
    assert len(text) < 41_000


async def test_parallel_searches_keep_few_files_open(desk: Desk) -> None:
    for number in range(120):
        await desk.call("write_file", path=f"f{number}", content="x")
    most, before = 0, len(os.listdir("/proc/self/fd"))
    searches = [asyncio.create_task(desk.call("search_files", pattern="x")) for _ in range(12)]
    while not all(search.done() for search in searches):
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
        await asyncio.sleep(0)
    assert all("found in" in search.result() for search in searches)
    assert 100 <= most < 240


@pytest.mark.parametrize("options", ["size=32m", "size=64m,nr_inodes=600"], ids=["bytes", "files"])
async def test_file_tools_leave_disk_space_for_the_database(options: str, desk: Desk) -> None:
    desk.folder.mkdir(parents=True, exist_ok=True)
    with small_disk(desk.folder.parent, options):
        await desk.call("write_file", path="first.md", content="x")
        filler = desk.folder.parent / "filler"
        if options == "size=32m":
            filler.write_bytes(bytes(14_000_000))
        else:
            filler.mkdir()
            for number in range(450):
                (filler / str(number)).touch()
        text = await desk.fail("write_file", path="second.md", content="x" * 5_000)
        assert "the disk is almost full" in text
        assert os.statvfs(desk.folder).f_favail > 0
        await desk.call("read_file", path="first.md")
