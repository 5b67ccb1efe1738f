"""Measure the time to pass a long prompt to the provider: rendering, encoding and the SDK, up to the last byte."""

import asyncio
import time

from agent.model.base import Endpoint, ModelRequest
from agent.model.protocols.chat_completions import ChatCompletionsModel
from bench.corpus import Corpus
from bench.measure import Measure
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import Message, MessageId, MessageRole, Millis, Origin, SessionId, Transcript

REPLY = (
    b'data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
ROUNDS = 15


class _Sink:
    """Fake provider that notes when a request is complete and answers at once."""

    received_at = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
                self.received_at = time.perf_counter()
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(REPLY) + REPLY)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()


async def hand_over(messages: int) -> Measure:
    """Measure the milliseconds until the provider has a prompt of `messages` messages, minus those for one message."""
    sink = _Sink()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0, limit=2**24)
    port = server.sockets[0].getsockname()[1]
    model = ChatCompletionsModel(Endpoint(model="bench", api_key="none", base_url=f"http://127.0.0.1:{port}/v1"))
    try:
        long = await _median(model, sink, _transcript(messages))
        short = await _median(model, sink, _transcript(1))
    finally:
        await model.close()
        server.close()
        await server.wait_closed()
    return Measure(name=f"a prompt of {messages:,} messages is with the SDK", ours=long - short, unit="ms", bar=10)


async def _median(model: ChatCompletionsModel, sink: _Sink, transcript: Transcript) -> float:
    view = (SessionId(len(transcript)), 1)  # as in a real conversation, so that the prefix is encoded only once
    request = ModelRequest(system="You are a test.", transcript=transcript, max_output_tokens=100, view=view)
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await model.complete(request, lambda text: None)
        took.append((sink.received_at - began) * 1000)
    return sorted(took)[ROUNDS // 2]


def _transcript(count: int) -> Transcript:
    rows = []
    for number, text in enumerate(Corpus().messages(count)):
        is_human = number % 2 == 0
        rows.append(
            Message(
                id=MessageId(number + 1),
                session_id=SessionId(1),
                seq=number + 1,
                role=MessageRole.USER if is_human else MessageRole.ASSISTANT,
                origin=Origin.HUMAN if is_human else Origin.ASSISTANT,
                text=text,
                body=EMPTY_BODY,
                sender_ref="telegram:1" if is_human else None,
                sender_name="Ada" if is_human else None,
                turn_id=None,
                tool_call_id=None,
                tool_name=None,
                created_at=Millis(1_700_000_000_000 + number * 60_000),
            )
        )
    return tuple(rows)
