"""Tools that a model can call. A registry lists the tools, checks the arguments of each call and runs it.

>>> from hermes_state.values import ToolCall
>>> @tool(
...     description="Tells the weather at a place.",
...     parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
...     effect=ToolEffect.READ_ONLY,
... )
... async def weather(arguments, context):
...     return f"It is sunny in {arguments['place']}."
>>> ToolRegistry([weather]).check(ToolCall(id="1", name="weather", arguments='{"place": "Lisbon"}'))
{'place': 'Lisbon'}
"""

from agent.tools.recall import HISTORY_OPEN, HISTORY_SEARCH, recall_tools
from agent.tools.registry import StepWords, Tool, ToolContext, ToolFunction, ToolRegistry, ToolReply, failed, tool
from hermes_state.values import ToolEffect

__all__ = [
    "HISTORY_OPEN",
    "HISTORY_SEARCH",
    "StepWords",
    "Tool",
    "ToolContext",
    "ToolEffect",
    "ToolFunction",
    "ToolRegistry",
    "ToolReply",
    "failed",
    "recall_tools",
    "tool",
]
