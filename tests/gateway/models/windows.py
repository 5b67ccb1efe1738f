"""In-process gateway whose model has a small window and counts its prompts."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import orjson

from agent.context.compressor import Engine
from agent.context.limits import ContextSettings
from agent.model.base import ModelReply, ModelRequest
from agent.model.wire import chat_messages
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from gateway.models.selection import ModelRegistry
from hermes_state.store.writer import Store
from hermes_state.values import CanonicalUsage, Tokens
from tests.agents import SingleModelAgent, TurnSettings
from tests.clients import client_of
from tests.gateway.helpers import ScriptedModel, Step, TestGateway, answer, asked, serving
from tests.summaries import summary_saying

WORDS = "We looked at the harbour and wrote down what each boat costs and who owns it. " * 6
SUMMARY = summary_saying("-")


class CountingModel(ScriptedModel):
    """Model that reports a token per four bytes, answers briefly, and summarises with `summary`."""

    def __init__(self) -> None:
        super().__init__()
        self.summary: Step = answer(SUMMARY)
        self.reported: int | None = None
        """Token counts that the next answers report instead."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        reply = await super().complete(request, on_text)
        sent = chat_messages(request.system, request.transcript, request.style)
        count = len(orjson.dumps([sent, [tool.parameters for tool in request.tools]])) // 4
        return msgspec.structs.replace(reply, usage=CanonicalUsage(input=self.reported or count, output=10))

    async def echo(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        if request.max_output_tokens is not None:
            return answer("echo: " + " | ".join(text[:20] for text in asked(request)))
        if isinstance(self.summary, Exception):
            raise self.summary
        return self.summary if isinstance(self.summary, ModelReply) else await self.summary(request, on_text)

    @property
    def summaries(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.max_output_tokens is None]

    @property
    def turns(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.max_output_tokens is not None]


@asynccontextmanager
async def talking(
    store: Store,
    folder: Path,
    model: CountingModel,
    *,
    length: int = 32_768,
    context: ContextSettings | None = None,
    make_engine: Callable[[Engine], Engine] | None = None,
    count: int = 0,
    is_background: bool = False,
    **sections: Any,  # Any: see `serving`
) -> AsyncIterator[TestGateway]:
    """Run a gateway with a window of `length` tokens, after `count` messages of Ann."""
    async with serving(store, folder, chat_model=model, is_started=False, **sections) as gateway:
        agent = SingleModelAgent(
            store=store,
            client=client_of(model, store),
            tools=ToolRegistry(recall_tools()),
            settings=TurnSettings(
                context_length=Tokens(length),
                max_output_tokens=Tokens(min(8_192, length // 4)),
                context=replace(context or ContextSettings(), mode="background" if is_background else "blocking"),
            ),
            clock=gateway.clock,
            make_engine=make_engine,
            listeners=[gateway.notices.write],
            on_wait=gateway.notices.write_waiting,
        )
        gateway.live.agent = agent.agent
        gateway.live.models = ModelRegistry(gateway.live.config.model.route, lambda _route: agent.model)
        await gateway.start()
        await say_much(gateway, range(count))
        yield gateway
        await agent.close()


Talk: TypeAlias = Callable[..., AbstractAsyncContextManager[TestGateway]]
"""`talking` with the store, the folder and the model of the test."""


async def say_much(gateway: TestGateway, numbers: range) -> None:
    for number in numbers:
        await gateway.ask(f"TICKET-{number}. {WORDS}")
