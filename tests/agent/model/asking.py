"""Asking a model on the fake server, whatever its protocol."""

import asyncio
from typing import Any

import pytest

from agent.model.base import ChatModel, ModelReply, ModelRequest, ToolSchema
from tests.agent.context.rows import human
from tests.fakes.fake_llm import LLM

TOOL = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})


def request(text: str = "hello", **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {"system": "You are Hermes.", "transcript": (human(text),), "max_output_tokens": 1_000}
    return ModelRequest(**(values | changes))


def script(llm: LLM, **reply: Any) -> None:
    """What the server says to every further request."""
    llm.scripts[:] = [{"times": -1, "reply": reply}]


async def ask(model: ChatModel, asked: ModelRequest | None = None) -> tuple[ModelReply, list[str]]:
    """The reply, and every text that was shown on the way."""
    shown: list[str] = []
    reply = await model.complete(asked or request(), shown.append)
    return reply, shown


async def cancel_where_it_hangs(model: ChatModel, llm: LLM) -> None:
    """Ask, and leave where the server's script hangs; the server sees that its client has gone."""
    asked = asyncio.create_task(ask(model))
    assert await llm.requests.query({"wait": 2}, lambda row: row["outcome"] == "hung")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await llm.requests.query({"wait": 2}, lambda row: row["outcome"] == "client_gone")
