"""Helpers that call tools like an agent does."""

from typing import Any

import orjson

from agent.tools.registry import ToolContext, ToolRegistry, ToolReply, failed
from hermes_state.errors import ToolError
from hermes_state.turns import RunningTurn
from hermes_state.values import ToolCall
from tests.agent.conftest import Chat


async def call(tools: ToolRegistry, chat: Chat, turn: RunningTurn, name: str, /, **arguments: Any) -> ToolReply:
    """Return the reply to one call, even if the call is invalid."""
    asked = ToolCall(id="c", name=name, arguments=orjson.dumps(arguments).decode())
    try:
        return await tools.run(asked, tools.check(asked), ToolContext.of(turn, chat.store))
    except ToolError as error:
        return failed(str(error))
