"""The production daemon with one tool more than it has."""

import sys
from typing import Any

from agent.tools.registry import Tool, ToolContext
from gateway.config import process_environment
from gateway.process import serve
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


def run_with_tools() -> None:
    """Run the daemon with that tool."""
    sys.exit(serve(process_environment(), extra_tools=[REGISTER]))
