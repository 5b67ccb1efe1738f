"""Offline model: built in, it needs no key and no network, thinks nothing, and says so.

It lets a newcomer see a whole turn, streaming, tools and all, before anything is configured. The same rows always
give the same answer.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import orjson

from agent.model.base import FinishReason, ModelLimits, ModelReply, ModelRequest
from agent.model.usage import estimated_reply_usage
from hermes_state.values import MessageRole, Origin, ToolCall, Transcript

MODEL_SETUP_HINT = (
    "set `OPENAI_API_KEY`, or in `config.yaml` `model.api_key` or, for another provider or a server of your own, "
    "`model.base_url` (`model.name` chooses the model), and start again"
)
"""End of a sentence that has said that the built-in model answers."""

SELF_DESCRIPTION = (
    "I am the offline model that comes with hermes-gateway: I repeat and look things up, but I do not think. "
    f"For real answers, {MODEL_SETUP_HINT}."
)
_SEARCH = re.compile(r"\bsearch(?:\s+for)?\s+(?P<query>[^\n]+)", re.IGNORECASE)
_OPEN = re.compile(r"\bopen\s+(?P<id>m\d+)\b", re.IGNORECASE)
_ECHO_CHARACTERS = 1_500
_PIECE_WORDS = 3


class OfflineModel:
    """Built-in model. `pause_seconds` lies between two pieces, so that an answer can be seen to grow."""

    route = "offline"
    name = "offline"

    def __init__(self, *, pause_seconds: float = 0.02) -> None:
        self._pause_seconds = pause_seconds

    async def fetch_limits(self) -> ModelLimits:
        """No limits: whatever is configured holds."""
        return ModelLimits()

    async def close(self) -> None:
        """Does nothing: there are no connections."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        calls = _calls(request) if request.may_call_tools else ()
        text = "" if calls else _answer(request)
        await self._stream(text, on_text)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        reply = ModelReply(text=text, calls=calls, finish=finish, usage=None)
        return replace(reply, usage=estimated_reply_usage(request, reply))  # the estimate is the definition here

    async def _stream(self, text: str, on_text: Callable[[str], None]) -> None:
        ends = [match.end() for match in re.finditer(r"\S+\s*", text)]
        for end in ends[_PIECE_WORDS - 1 :: _PIECE_WORDS]:
            on_text(text[:end])
            await asyncio.sleep(self._pause_seconds)
        if text:
            on_text(text)


def _calls(request: ModelRequest) -> tuple[ToolCall, ...]:
    """The calls that the newest message asks for, unless they were just answered."""
    rows = request.transcript
    if not rows or rows[-1].role is not MessageRole.USER:
        return ()
    request_text = _newest_words(rows)
    wanted: list[tuple[str, dict[str, str]]] = []
    if (found := _OPEN.search(request_text)) is not None:
        wanted.append(("history_open", {"id": found["id"].lower()}))
    if (found := _SEARCH.search(request_text)) is not None:
        wanted.append(("history_search", {"query": found["query"].strip(" .?!\"'“”")}))
    offered = {tool.name for tool in request.tools}
    return tuple(
        ToolCall(id=f"offline_{rows[-1].id}_{index}", name=name, arguments=orjson.dumps(arguments).decode())
        for index, (name, arguments) in enumerate(wanted)
        if name in offered
    )


def _answer(request: ModelRequest) -> str:
    rows = request.transcript
    results = [*takewhile(lambda row: row.role is MessageRole.TOOL, reversed(rows))][::-1]
    if results:
        answer = "\n\n".join(f"`{row.tool_name}` returned:\n\n{_quoted(row.text or '')}" for row in results)
    else:
        answer = f"You wrote: {_shortened(_newest_words(rows)) or 'nothing that I can read'}"
    return f"{answer}\n\n{SELF_DESCRIPTION}\n\nTry “search for” and a word that was used here, or “open m1”."


def _newest_words(rows: Transcript) -> str:
    """Text that people wrote since the last answer."""
    newest = takewhile(lambda row: row.role is not MessageRole.ASSISTANT, reversed(rows))
    return "\n".join([row.text for row in newest if row.origin is Origin.HUMAN and row.text][::-1])


def _quoted(text: str) -> str:
    """The text as a Markdown quotation, which no line of it can end."""
    return "\n".join(f"> {line}" for line in _shortened(text).splitlines())


def _shortened(text: str) -> str:
    return text if len(text) <= _ECHO_CHARACTERS else f"{text[:_ECHO_CHARACTERS]} …"
