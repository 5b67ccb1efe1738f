"""What the protocols of the OpenAI SDK have in common: one call, in the dialect that the server takes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from agent.model.base import ModelLimits, ModelReply, ModelRequest, made_by
from agent.model.errors import with_usage
from agent.model.http import Connections, Endpoint, LoopBudget, RequestFault, fault_of
from agent.model.protocols.offered_sizes import MAX_BYTES, offered_limits
from hermes_state.errors import ModelError
from hermes_state.values import CanonicalUsage, MicroUsd


class Dialect(Protocol):
    """How a server wants to be asked."""

    def after(self, refusal: RequestFault) -> Self:
        """Without what was refused."""


class ReplyReader(Protocol):
    """A reply in the making."""

    usage: CanonicalUsage | None
    """As far as it was reported."""
    cost: MicroUsd | None

    def add(self, event: object) -> None:
        """Take in one event of a stream, or the one body. Raises the kinds of `ModelError`."""

    def finished(self) -> ModelReply:
        """The whole reply. Raises `ReplyMalformed` when it broke off."""


D = TypeVar("D", bound=Dialect)


class OpenAIModel(ABC, Generic[D]):
    """A model behind one path of a server. Close it when done."""

    def __init__(self, endpoint: Endpoint, *, protocol: str, path: str, dialect: D) -> None:
        self.name = endpoint.model
        self._streams = endpoint.streams
        self._connections = Connections(endpoint)
        self._path = path
        self._dialect = dialect
        self.host = self._connections.host
        self.route = f"{protocol}:{self.host}"
        self._maker = made_by(self.route, self.name)

    async def fetch_limits(self) -> ModelLimits | None:
        """See `ChatModel.fetch_limits`."""

        async def get(address: str) -> object:
            return await self._connections.fetched(address, MAX_BYTES)

        return await offered_limits(get, self.name, self._connections.base_url)

    async def close(self) -> None:
        await self._connections.close()

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """See `ChatModel.complete`.

        A request is put in another way where that helps, each way once; the one that the server took is remembered.
        """
        known = dialect = self._dialect
        payload = self._encoded(request, dialect)
        while True:
            try:
                reply = await self._asked(payload, self._begun(on_text))
            except ModelError as error:
                refusal = fault_of(error)
                if refusal is None:
                    raise
                dialect = dialect.after(refusal)
                refused, payload = payload, self._encoded(request, dialect)
                if payload == refused:
                    raise
                continue
            if dialect != known:  # else another call may have learned more by now
                self._dialect = dialect
            return reply

    async def _asked(self, payload: bytes, reply: ReplyReader) -> ModelReply:
        try:
            async with self._connections.posted(self._path, payload, streams=self._streams) as events:
                share = LoopBudget()
                async for event in events:
                    reply.add(event)
                    await share.checkpoint()
            return reply.finished()
        except ModelError as error:
            with_usage(error, reply.usage, reply.cost)
            raise

    @abstractmethod
    def _encoded(self, request: ModelRequest, dialect: D) -> bytes:
        """The body of the HTTP request."""

    @abstractmethod
    def _begun(self, on_text: Callable[[str], None]) -> ReplyReader:
        """A reply of which nothing has come yet."""
