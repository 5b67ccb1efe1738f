"""Tool `context`: how full the agent's own window is, and a compression that it asks for."""

from typing import Any

from agent.tools.registry import Tool, ToolContext
from hermes_state.errors import ToolError
from hermes_state.values import ToolEffect


def context_tool() -> Tool:
    """`context`."""
    return Tool(
        name="context",
        description="How full your context window is. `compress` summarises what is above; `focus` is kept in detail.",
        parameters={
            "type": "object",
            "properties": {
                "action": {"enum": ["status", "compress"], "default": "status"},
                "focus": {"type": "string"},
            },
        },
        effect=ToolEffect.READ_ONLY,
        run=_run,
    )


async def _run(arguments: dict[str, Any], context: ToolContext) -> str:
    use = context.prompt
    if use is None:
        raise ToolError("the prompt was not measured since the gateway restarted; ask again in the next step")
    if arguments["action"] == "status":
        percent = use.tokens * 100 // use.context_length
        return (
            f"Your prompt has about {use.tokens:,} of {use.context_length:,} tokens ({percent} %). From "
            f"{use.threshold:,} on it is compressed by itself."
        )
    if use.held_back is not None:
        raise ToolError(f"no compression now: {use.held_back}")
    use.compress(arguments.get("focus") or None)
    return "A compression was asked for. It is done before your next step, and skipped where it would free nothing."
