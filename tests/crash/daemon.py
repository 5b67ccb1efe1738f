"""The production daemon as a process that may be killed, with tools that write, return much, or split the session."""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from agent.tools.registry import Tool, ToolContext
from gateway import daemon as preloaded  # imported here so that the fork server has it, and each start is quick
from gateway.config import process_environment
from gateway.process import serve
from hermes_state.compressions import SplitPlan, split
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import MessageRole, Origin, SystemClock, ToolEffect

__all__ = ["Daemon", "preloaded"]

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).with_name("sitecustomize")

NOTE_DONE = "NOTE-DONE"
HOLD_DONE = "HOLD-DONE"
SPLIT_DONE = "SPLIT-DONE"
DUMP_A, DUMP_B = "DUMP-A", "DUMP-B"

_DUMP_LINE = "the register has a line for every boat that came in and what it brought "

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "agent.model.protocols.anthropic"])  # the latter is imported late

_KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


class Daemon:
    """One life of the gateway's process. Importing takes a second, so each life is forked from one that has done it."""

    def __init__(self, environ: Mapping[str, str], log: Path) -> None:
        _ensure_fork_server()
        self._process: ForkServerProcess = _context.Process(target=_main, args=(dict(environ), str(log)), daemon=True)
        self._process.start()

    async def ended(self) -> int:
        """Wait for the end; returns the exit code, negative for a signal."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode
        assert code is not None, "the sentinel says that it has ended"
        return code

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it still lives."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)


def _ensure_fork_server() -> None:
    """Start the fork server with our `sitecustomize` on its path; its children inherit what that has wrapped."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{SITE}{os.pathsep}{ROOT}"
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _main(environ: dict[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.exit(serve(process_environment(), extra_tools=_tools(environ)))


def _tools(environ: Mapping[str, str]) -> list[Tool]:
    effects, port = Path(environ["CRASH_EFFECTS"]), int(environ["CRASH_HOLD_PORT"])

    def take_effect(arguments: dict[str, Any]) -> None:
        with effects.open("a") as file:
            file.write(f"{arguments['key']}\n")

    async def note(arguments: dict[str, Any], context: ToolContext) -> str:
        take_effect(arguments)
        return NOTE_DONE

    async def hold(arguments: dict[str, Any], context: ToolContext) -> str:
        take_effect(arguments)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await reader.readline()  # until the scenario lets go
        finally:
            writer.close()
        return HOLD_DONE

    return [
        Tool(name="note", description="Writes a note.", parameters=_KEY, effect=ToolEffect.WRITES, run=note),
        Tool(name="hold", description="Writes, and waits.", parameters=_KEY, effect=ToolEffect.WRITES, run=hold),
        # A split happens at most once whoever repeats it, so that a restart may run this again: hence the effect.
        Tool(
            name="split",
            description="Continues the session in a child.",
            parameters={"type": "object", "properties": {}},
            effect=ToolEffect.READ_ONLY,
            run=_split,
        ),
        Tool(
            name="dump",
            description="Returns a long register.",
            parameters={
                "type": "object",
                "properties": {"mark": {"type": "string"}, "part": {"type": "integer"}},
                "required": ["mark"],
            },
            effect=ToolEffect.READ_ONLY,
            run=_dump,
        ),
    ]


async def _dump(arguments: dict[str, Any], context: ToolContext) -> str:
    mark = arguments["mark"]
    return "\n".join(f"{mark} {number}: {_DUMP_LINE}" for number in range(52))


async def _split(arguments: dict[str, Any], context: ToolContext) -> str:
    view = await context.store.read(load_view, context.lineage_id)
    if view.session.depth == 0:
        handoff = NewMessage(
            role=MessageRole.USER, origin=Origin.SUMMARY, text="HANDOFF: what was said before is left out."
        )
        kept = [row.id for row in view.transcript if row.turn_id == context.turn_id]
        plan = SplitPlan(
            parent_id=view.session.id,
            version=view.session.version,
            watermark_seq=view.session.next_seq - 1,
            context=[handoff, *kept],
            layer="in_loop",
            summary_kind="deterministic",
        )
        await context.store.write(split, plan, SystemClock().now())
    return SPLIT_DONE
