"""Helpers that call a model on the fake server with any protocol."""

from typing import Any

from agent.model.base import ChatModel, ModelReply, ModelRequest, ToolSchema
from tests.agent.context.rows import human
from tests.fakes.fake_llm import LLM

TOOL = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})


def request(text: str = "hello", **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {"system": "You are Hermes.", "transcript": (human(text),), "max_output_tokens": 1_000}
    return ModelRequest(**(values | changes))


def script(llm: LLM, **reply: Any) -> None:
    """Set the answer of the server to every further request."""
    llm.scripts[:] = [{"times": -1, "reply": reply}]


async def ask(model: ChatModel, asked: ModelRequest | None = None) -> tuple[ModelReply, list[str]]:
    """Return the reply, and every text shown on the way."""
    shown: list[str] = []
    reply = await model.complete(asked or request(), shown.append)
    return reply, shown
