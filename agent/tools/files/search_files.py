"""Tool `search_files`: searches the files of a workspace, or one stored result, for a regular expression.

The search runs in a child process (ripgrep if installed, else Python), which is killed if it takes too long. The
process receives open files, so no path is looked up twice.
"""

import asyncio
import fnmatch
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.tools.files.file_tools import encoding_of, stored_row
from agent.tools.files.workspace import PathParts, WorkspaceHandle, WorkspaceStore, parse_path, shown
from agent.tools.recall import whole_text
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from hermes_state.aio import FairSemaphore
from hermes_state.errors import ToolError
from hermes_state.text import counted
from hermes_state.values import ToolEffect

_SEARCH_SECONDS = 15.0
"""Time limit for a search, in seconds. Matches found before the limit are returned."""
_MAX_FOUND = 100
_FOUND_IN_FILE = 20
_LINE_CHARACTERS = 300
_OUTPUT_BYTES = 1 << 20
_BOUNDS = '{ ulimit -c 0; ulimit -v 524288; echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'
"""Shell command that sets resource limits and then starts a process. A limit that cannot be set is already lower.
512 MB of memory is enough for very long lines and for expressions that backtrack a lot.
"""

_WORKER = f"""
import os, re, sys
flags = re.IGNORECASE if sys.argv[1] == "i" else 0
try:
    pattern = re.compile(sys.argv[2], flags)
except re.error as error:
    sys.exit(f"{{error}}")
def search(name):
    count = 0
    for number, line in enumerate(open(name, encoding="utf-8", errors="replace"), 1):
        found = pattern.search(line.rstrip("\\n"))
        if found:
            print(f"{{name}}\\0{{number}}:{{found.start() + 1}}:{{line.rstrip()[:{_LINE_CHARACTERS}]}}", flush=True)
            count += 1
            if count == {_FOUND_IN_FILE}:
                break
try:
    for name in sys.argv[3:]:
        search(name)
except MemoryError:
    os.abort()  # as ripgrep does
"""


class _SearchState(msgspec.Struct):
    rows: list[str] = msgspec.field(default_factory=list)
    files: int = 0
    left_out: list[str] = msgspec.field(default_factory=list)
    """Files that need too much memory to search."""
    is_cut: bool = False
    """True if the search hit a limit before it was finished."""


class _SearchArguments(Arguments, frozen=True):
    pattern: str
    path: Annotated[str, Meta(description="File, folder or id such as m123.")] = ""
    glob: Annotated[str, Meta(description="Only matching files, such as *.py or src/*.ts.")] = ""
    literal: Annotated[bool, Meta(description="Treat the pattern as plain text.")] = False
    ignore_case: bool = False


def search_tool(workspaces: WorkspaceStore) -> Tool:
    turns = FairSemaphore(2)  # so that parallel searches do not use up the gateway's file handles

    @tool(
        description="Search the text files in the workspace, or a stored result by id, line by line for a regular "
        "expression.",
        effect=ToolEffect.READ_ONLY,
        is_persisted=False,
        step=StepWords(doing="Searching files for", did="searched files", about=lambda asked: asked.pattern),
    )
    async def search_files(asked: _SearchArguments, context: ToolContext) -> str:
        async with turns.taken_by(context.chat_id):
            return await _found(asked, context, workspaces.of(context.chat_id))

    return search_files


async def _found(asked: _SearchArguments, context: ToolContext, workspace: WorkspaceHandle) -> str:
    command = _command(asked)
    deadline, state = asyncio.get_running_loop().time() + _SEARCH_SECONDS, _SearchState()
    stored = await stored_row(asked.path, context)
    if stored is not None:
        with open(os.memfd_create("stored"), "wb", buffering=0) as file:  # noqa: ASYNC230 - a file in memory
            await asyncio.to_thread(file.write, whole_text(stored).encode())
            await _search(command, {file.fileno(): asked.path.strip()}, deadline, state)
    else:
        parts = parse_path(asked.path)
        files = _files(workspace, parts, asked.glob)
        while not state.is_cut:
            with ExitStack() as held:
                batch = await asyncio.to_thread(_open, workspace, files, held)
                if not batch:
                    break
                await _search(command, batch, deadline, state)
    return _told(state, min(40_000, context.result_size))


def _command(asked: _SearchArguments) -> list[str]:
    pattern = asked.pattern
    if not pattern or "\n" in pattern or "\0" in pattern:
        raise ToolError("the pattern must be a single non-empty line")
    if (program := shutil.which("rg")) is None:
        text = re.escape(pattern) if asked.literal else pattern
        return [sys.executable, "-I", "-S", "-c", _WORKER, "i" if asked.ignore_case else "-", text]
    return [
        *(program, "--no-config", "--no-mmap", "--color=never", "--no-heading", "--with-filename", "--null"),
        *("--text", "--column", f"--max-columns={_LINE_CHARACTERS}", "--max-columns-preview"),
        f"--max-count={_FOUND_IN_FILE}",
        *("--threads=1", "--dfa-size-limit=64M"),  # one thread, because each additional thread uses more memory
        *(["--fixed-strings"] if asked.literal else []),
        *(["--ignore-case"] if asked.ignore_case else []),
        *("--regexp", pattern, "--"),
    ]


def _files(workspace: WorkspaceHandle, parts: PathParts, glob: str) -> Iterator[PathParts]:
    """Yield the paths of the files to search. Skips `.git` unless `parts` names it.

    Raises `ToolError` for a missing path.
    """
    with suppress(ToolError):
        with workspace.open_file(parts):
            pass
        yield parts
        return
    for entry in workspace.walk(parts):
        path = "/".join(entry.parts)
        is_wanted = not glob or any(fnmatch.fnmatch(one, glob) for one in (path, f"/{path}", entry.parts[-1]))
        if entry.is_file and is_wanted and ".git" not in entry.parts[len(parts) :]:
            yield entry.parts


def _open(workspace: WorkspaceHandle, files: Iterable[PathParts], held: ExitStack) -> dict[int, str]:
    """Open the next 100 text files, and return their names by file descriptor."""
    batch: dict[int, str] = {}
    for parts in itertools.islice(files, 100):
        with suppress(ToolError):  # removed or replaced in the meantime
            file = held.enter_context(workspace.open_file(parts))
            if encoding_of(file.peek(1)[:1024]) is not None:
                batch[file.fileno()] = "/".join(parts)
    return batch


async def _search(command: Sequence[str], batch: dict[int, str], deadline: float, state: _SearchState) -> None:
    """Search files with one process. If the process runs out of memory, search each half of the files separately."""
    output = await _output(command, batch, deadline, state)
    if output is None and len(batch) == 1:
        state.left_out += batch.values()
    elif output is None:
        handles = list(batch)
        for half in (handles[: len(batch) // 2], handles[len(batch) // 2 :]):
            if not state.is_cut:
                await _search(command, {handle: batch[handle] for handle in half}, deadline, state)
    else:
        for handle, line, column, text in re.findall(rb"^/proc/self/fd/(\d+)\0(\d+):(\d+):(.*)", output, re.MULTILINE):
            where = f" (column {int(column)})" if int(column) > _LINE_CHARACTERS else ""
            state.rows.append(f"{batch[int(handle)]}:{int(line)}{where}: {text.decode(errors='replace').rstrip()}")
        state.files += len(batch)
        state.is_cut = state.is_cut or len(state.rows) >= _MAX_FOUND or len(output) >= _OUTPUT_BYTES


async def _output(command: Sequence[str], batch: dict[int, str], deadline: float, state: _SearchState) -> bytes | None:
    """Return the output of a search process, or None if it ran out of memory.

    Raises `ToolError` for an invalid expression.
    """
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        _BOUNDS,
        "search",
        *command,
        *(f"/proc/self/fd/{handle}" for handle in batch),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=tuple(batch),
        env={"LC_ALL": "C.UTF-8"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    output, problem, code = b"", b"", 0
    try:
        async with asyncio.timeout_at(deadline):
            while len(output) < _OUTPUT_BYTES and (piece := await process.stdout.read(65_536)):
                output += piece
            if len(output) < _OUTPUT_BYTES:
                problem = await process.stderr.read(2_000)
                code = await process.wait()
    except TimeoutError:
        state.is_cut = True
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # empties the pipe, so that the process can end
    if code < 0:
        return None
    if problem and not (output or state.rows):
        reason = problem.decode(errors="replace").strip()
        raise ToolError(f"the pattern is invalid: {reason}\nTo search for plain text, set literal.")
    return output


def _told(state: _SearchState, room: int) -> str:
    found, rows = state.rows[:_MAX_FOUND], []
    for row in found:
        room -= len(row) + 1
        if room < 0:
            break
        rows.append(row)
    cut = " The search ended early; use a narrower path, glob or pattern." if state.is_cut else ""
    if len(rows) < len(state.rows):
        cut = f" Only {len(rows)} are shown; use a narrower path, glob or pattern."
    if state.left_out:
        cut += f" Skipped because searching needs too much memory: {', '.join(map(shown, state.left_out[:5]))}."
    head = f"{counted(len(state.rows), 'line')} found in {counted(state.files, 'text file')}.{cut}"
    return "\n".join([head, *rows])
