"""The production daemon for crash tests, with tools that write, return long results, or split the session."""

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agent.tools.registry import Tool, ToolContext
from gateway.config import process_environment
from gateway.daemon.process import serve
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import MessageRole, Origin, SystemClock, ToolEffect
from tests.crash.commits import wrap_commits

NOTE_DONE = "NOTE-DONE"
HOLD_DONE = "HOLD-DONE"
SIGN_DONE = "SIGN-DONE"
SPLIT_DONE = "SPLIT-DONE"
DUMP_A, DUMP_B = "DUMP-A", "DUMP-B"

_DUMP_LINE = "the register has a line for every boat that came in and what it brought "

_KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


def run_daemon() -> None:
    """Run the production daemon with these tools, until a commit or a signal ends it."""
    wrap_commits()
    sys.exit(serve(process_environment(), extra_tools=_tools(os.environ)))


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
            await reader.readline()  # until the scenario releases the tool
        finally:
            writer.close()
        return HOLD_DONE

    async def sign(arguments: dict[str, Any], context: ToolContext) -> str:
        take_effect(arguments)
        return SIGN_DONE

    unasked = partial(Tool, effect=ToolEffect.WRITES, needs_approval=False)
    return [
        unasked(name="note", description="Writes a note.", parameters=_KEY, run=note),
        unasked(name="hold", description="Writes, and waits.", parameters=_KEY, run=hold),
        Tool(name="sign", description="Writes after a yes.", parameters=_KEY, effect=ToolEffect.WRITES, run=sign),
        # A repeated split has no effect, so a restart can run this tool again, as `READ_ONLY` allows.
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
            parent=view.session,
            context=[handoff, *kept],
            row=CompressionRow(layer="in_loop", summary_kind="deterministic"),
        )
        await context.store.write(split, plan, SystemClock().now())
    return SPLIT_DONE
