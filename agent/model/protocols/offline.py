"""Built-in offline model. It needs no key and no network. Its answers come from fixed rules, and say so.

It shows a newcomer a complete turn with streaming and tools before anything is configured. The same rows always produce
the same answer.
"""

import asyncio
import re
from collections.abc import Callable
from itertools import takewhile

import orjson
from msgspec.structs import replace

from agent.model.base import FinishReason, ModelLimits, ModelReply, ModelRequest
from agent.model.usage import estimated_reply_usage
from hermes_state.values import MessageRole, Origin, ToolCall, Transcript

MODEL_SETUP_HINT = (
    "set `OPENAI_API_KEY` or, in `config.yaml`, `model.api_key`; for other providers set `model.base_url` and "
    "`model.name`. Then restart the gateway"
)
"""Instructions for connecting a real model, worded as the end of a sentence without the full stop."""

SELF_DESCRIPTION = (
    "I am the offline model that comes with hermes-gateway. I can repeat your words and look things up, but I do not "
    f"think. For real answers, {MODEL_SETUP_HINT}."
)


class OfflineModel:
    """Built-in model. Waits `pause_seconds` between two pieces of text, so that people see the answer grow."""

    route = "offline"
    name = "offline"

    def __init__(self, *, pause_seconds: float = 0.02) -> None:
        self._pause_seconds = pause_seconds

    async def fetch_limits(self) -> ModelLimits:
        """Return no limits, so that the configured limits apply."""
        return ModelLimits()

    async def close(self) -> None:
        """Do nothing, because there are no connections."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        calls = _calls(request) if request.may_call_tools else ()
        text = "" if calls else _answer(request)
        ends = [match.end() for match in re.finditer(r"\S+\s*", text)]
        for end in ends[2::3]:  # three words at a time
            on_text(text[:end])
            await asyncio.sleep(self._pause_seconds)
        if text:
            on_text(text)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        reply = ModelReply(text=text, calls=calls, finish=finish, usage=None)
        return replace(reply, usage=estimated_reply_usage(request, reply))  # no real count exists


def _calls(request: ModelRequest) -> tuple[ToolCall, ...]:
    """Return the tool calls that the newest message asks for, unless the transcript already has their results."""
    rows = request.transcript
    if not rows or rows[-1].role is not MessageRole.USER:
        return ()
    request_text = _newest_words(rows)
    wanted: list[tuple[str, dict[str, str]]] = []
    if (found := re.search(r"\bopen\s+(?P<id>m\d+)\b", request_text, re.IGNORECASE)) is not None:
        wanted.append(("history_open", {"id": found["id"].lower()}))
    if (found := re.search(r"\bsearch(?:\s+for)?\s+(?P<query>[^\n]+)", request_text, re.IGNORECASE)) is not None:
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
    if results:  # quote every line, so that none of them ends the Markdown quotation
        quoted = ("\n".join(f"> {line}" for line in _shortened(row.text or "").splitlines()) for row in results)
        said = zip(results, quoted, strict=True)
        answer = "\n\n".join(f"`{row.tool_name}` returned:\n\n{quotation}" for row, quotation in said)
    else:
        answer = f"You wrote: {_shortened(_newest_words(rows)) or 'nothing that I can read'}"
    return f"{answer}\n\n{SELF_DESCRIPTION}\n\nTry “search for” and a word from this chat, or “open m1”."


def _newest_words(rows: Transcript) -> str:
    """Return the text that people have written since the last answer."""
    newest = takewhile(lambda row: row.role is not MessageRole.ASSISTANT, reversed(rows))
    return "\n".join([row.text for row in newest if row.origin is Origin.HUMAN and row.text][::-1])


def _shortened(text: str) -> str:
    return text if len(text) <= 1_500 else f"{text[:1_500]} …"
