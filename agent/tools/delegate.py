"""Tool `delegate`: hands a task on to a sub-agent, whose report is the result."""

from typing import Any

from agent.tools.arguments import many, schema, text
from agent.tools.registry import DelegateRequest, Tool, ToolContext
from hermes_state.errors import ToolError
from hermes_state.values import ToolEffect

DELEGATE = "delegate"
MAX_SECONDS = 86_400.0
"""Longest wait for a report, in seconds, other sub-agents' work before it included: other bounds end it far earlier."""


def delegate_tool() -> Tool:
    """`delegate`.

    It reads, so that a restart runs the call again, which finds its sub-agent and goes on with it. What that one does
    follows the policy of the chat, call by call.
    """
    return Tool(
        name=DELEGATE,
        description="Hands a task on to a sub-agent, which works by itself with tools and without this conversation; "
        "its report is the result. For work of many steps of which only the outcome counts, such as looking through "
        "many files or pages. Several calls in one step work side by side. It asks nobody and does nothing that needs "
        "a yes.",
        parameters=schema(
            "task",
            task=text("What to do, and what to report.", minLength=1),
            context=text("Facts, paths and words of this conversation it needs."),
            tools=many(text(), "Names of the only tools that it may use; left out: all it can have."),
        ),
        effect=ToolEffect.READ_ONLY,
        run=_run,
        timeout_seconds=MAX_SECONDS,
    )


async def _run(arguments: dict[str, Any], context: ToolContext) -> str:
    if context.delegate is None or context.call is None:
        raise ToolError("there are no sub-agents here")
    task, tools = arguments["task"], arguments.get("tools")
    if known := arguments.get("context"):
        task = f"{task}\n\nWhat is known:\n{known}"
    request = DelegateRequest(call=context.call, task=task, tools=None if tools is None else tuple(tools))
    return await context.delegate(request)
