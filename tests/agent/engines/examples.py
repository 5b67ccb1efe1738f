"""Example context engines as plugins provide them, and conversations for them."""

from typing import Any

from agent.engines.contract import ContextEngine
from hermes_state.values import Message
from tests.agent.context.rows import answer, human, result


class KeepNewest(ContextEngine):
    """A small independent engine: the oldest messages become a single line, and the newest stay."""

    name = "keep-newest"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def update_from_response(self, usage: dict[str, Any]) -> None:
        self.last_prompt_tokens = usage["prompt_tokens"]
        self.last_completion_tokens = usage["completion_tokens"]
        self.last_total_tokens = usage["total_tokens"]
        self.calls.append(("usage", usage["prompt_tokens"]))

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return (self.last_prompt_tokens if prompt_tokens is None else prompt_tokens) >= self.threshold_tokens

    def compress(
        self, messages: list[dict[str, Any]], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[dict[str, Any]]:
        self.calls.append(("compress", len(messages), current_tokens, focus_topic))
        body = [message for message in messages if message["role"] != "system"]
        start = max(0, len(body) - self.protect_last_n)
        while start > 0 and body[start]["role"] != "user":
            start -= 1
        if start == 0:
            return messages
        self.compression_count += 1
        note = {"role": "user", "content": f"Earlier: {start} messages about {focus_topic or 'many things'}."}
        return [message for message in messages if message["role"] == "system"] + [note, *body[start:]]

    def on_session_start(self, session_id: str, **kwargs: Any) -> None:
        self.calls.append(("start", session_id, kwargs.get("reason"), kwargs.get("parent")))

    def on_session_end(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        self.calls.append(("end", session_id, len(messages)))

    def on_session_reset(self) -> None:
        super().on_session_reset()
        self.calls.append(("reset",))

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
        return [{"name": "look_back", "description": "Look into what was left out.", "parameters": parameters}]

    def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
        if name != "look_back":
            return super().handle_tool_call(name, args, **kwargs)
        self.request_compression("the model looks back", focus_topic=args["word"])
        return f'{{"found": "{args["word"]}"}}'


FILLER = "The quick brown fox jumps over the lazy dog and runs through the forest. " * 12


def conversation(turns: int, *, filler: str = FILLER) -> tuple[Message, ...]:
    """Turns with one tool call each."""
    rows: list[Message] = []
    for number in range(turns):
        rows += [human(f"question {number} {filler}"), answer(None, f"call-{rows[-1].id if rows else 0}-{number}")]
        call_id = rows[-1].body.calls[0].id
        rows += [result(call_id, f"result {number} {filler}"), answer(f"answer {number}")]
    return tuple(rows)


def messages(turns: int, *, filler: str = FILLER) -> list[dict[str, Any]]:
    """The same conversation as a list, as another gateway would store it."""
    found: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
    for number in range(turns):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        found += [
            {"role": "user", "content": f"question {number} {filler}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number} {filler}"},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    return found
