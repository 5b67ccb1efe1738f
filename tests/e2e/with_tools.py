"""The production daemon with three additional tools: one reads, one writes, and one never ends."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from agent.tools.registry import Tool, ToolContext
from gateway.config import process_environment
from gateway.daemon.process import serve
from hermes_state.values import ToolEffect

_LINE = "the register names a boat, the day on which it came in, and what it brought: barrels, ropes, lamps and salt"


async def _read_register(arguments: dict[str, Any], context: ToolContext) -> str:
    mark = arguments["mark"]
    return "\n".join(f"{mark} {number:03d} {_LINE}" for number in range(arguments["lines"]))


REGISTER = Tool(
    name="register",
    description="Reads so many lines of the harbour's register.",
    parameters={
        "type": "object",
        "properties": {"mark": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["mark", "lines"],
    },
    effect=ToolEffect.READ_ONLY,
    run=_read_register,
)


async def _write_down(arguments: dict[str, Any], context: ToolContext) -> str:
    with (Path(os.environ["HOME"]) / NOTEBOOK).open("a") as notebook:
        notebook.write(f"{arguments['line']}\n")
    return f"written: {arguments['line']}"


NOTEBOOK = "notebook.txt"
"""File in the home directory to which the tool writes."""

WRITE_DOWN = Tool(
    name="write_down",
    description="Writes a line into the notebook.",
    parameters={"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]},
    effect=ToolEffect.WRITES,
    run=_write_down,
    shape=lambda arguments: str(arguments["line"]).partition(" ")[0],
)


async def _stall(arguments: dict[str, Any], context: ToolContext) -> str:
    await _write_down({"line": "begun"}, context)
    await asyncio.Event().wait()
    return "never"


STALL = Tool(
    name="stall",
    description="Writes that it has begun, and does not end.",
    parameters={"type": "object", "properties": {}},
    effect=ToolEffect.WRITES,
    run=_stall,
)


def run_with_tools() -> None:
    """Run the daemon with these tools."""
    sys.exit(serve(process_environment(), extra_tools=[REGISTER, WRITE_DOWN, STALL]))
