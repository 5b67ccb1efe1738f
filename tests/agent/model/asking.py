"""Helpers that call a model on the fake server with any protocol."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from agent.model.base import ChatModel, Endpoint, ModelLimits, ModelReply, ModelRequest, ToolSchema
from agent.model.protocols.chat_completions import ChatCompletionsModel
from hermes_state.values import Tokens
from tests.agent.context.rows import human
from tests.fakes.fake_llm import LLM

Dial: TypeAlias = Callable[..., ChatCompletionsModel]
"""Factory for models on the fake server with custom settings."""

TOOL = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})


@asynccontextmanager
async def dialling(kind: Callable[[Endpoint], Any], base_url: str, model: str) -> AsyncIterator[Callable[..., Any]]:
    """Yield a factory for models with custom settings of `Endpoint`."""
    defaults = {"model": model, "api_key": "lab-key", "base_url": base_url, "read_seconds": 20.0}
    async with AsyncExitStack() as stack:

        def make(**changes: Any) -> Any:
            made = kind(Endpoint(**(defaults | changes)))
            stack.push_async_callback(made.close)
            return made

        yield make


def request(text: str = "hello", **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {"system": "You are Hermes.", "transcript": (human(text),), "max_output_tokens": 1_000}
    return ModelRequest(**(values | changes))


def script(llm: LLM, **reply: Any) -> None:
    """Set the answer of the server to every further request."""
    llm.scripts[:] = [{"times": -1, "reply": reply}]


async def ask(model: ChatModel, asked: ModelRequest | None = None) -> tuple[ModelReply, list[str]]:
    """Return the reply, and every text shown on the way."""
    shown: list[str] = []
    return await model.complete(asked or request(), shown.append), shown


def said(context: int | None = None, output: int | None = None) -> ModelLimits:
    """Return limits as a provider or the configuration states them."""
    return ModelLimits(
        context_length=None if context is None else Tokens(context),
        max_output_tokens=None if output is None else Tokens(output),
    )
