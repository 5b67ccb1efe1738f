"""Model protocols, and the details of each that tests need.

    pytest tests/e2e --protocol responses      all end-to-end tests over one protocol; `make protocols` uses all

Without the option, tests use chat completions. Tests marked `each_protocol` run over every protocol.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.fakes.llm_legality import images_in, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProtocol:
    """A protocol between the gateway and its model."""

    name: str
    """Name in `model.protocol`."""
    root: str
    """Path that follows the server's address in `model.base_url`."""
    path: str
    """Path of requests on the server."""
    frames_before_text: int
    """Number of events before the text of a streamed answer."""
    prefix: str = ""
    """Prefix for model names with which the gateway uses all features of this protocol."""

    def __str__(self) -> str:
        return self.name

    def environ(self, model_url: str) -> dict[str, str]:
        """Return the environment variables for this protocol and the server at `model_url`."""
        return {"HERMES_MODEL__PROTOCOL": self.name, "HERMES_MODEL__BASE_URL": model_url + self.root}

    def frames(self, pieces: int) -> int:
        """Return the number of events until `pieces` pieces of an answer's text have been sent."""
        return self.frames_before_text + pieces


CHAT_COMPLETIONS = ModelProtocol(
    name="chat_completions",
    root="/v1",
    path="/v1/chat/completions",
    frames_before_text=1,  # the role
)
RESPONSES = ModelProtocol(
    name="responses",
    root="/v1",
    path="/v1/responses",
    frames_before_text=4,  # created, in progress, item, part
)
ANTHROPIC = ModelProtocol(
    name="anthropic",
    root="",
    path="/v1/messages",
    frames_before_text=3,  # start, ping, block
    prefix="claude-",  # the gateway marks the prompts of these models for caching
)
PROTOCOLS = {one.name: one for one in (CHAT_COMPLETIONS, RESPONSES, ANTHROPIC)}
OPTION = "--protocol"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, choices=sorted(PROTOCOLS), help="run the end-to-end tests over this protocol")


def chosen(config: pytest.Config) -> ModelProtocol | None:
    """Return the protocol that the command-line option names, or None."""
    name = config.getoption(OPTION)
    return PROTOCOLS[name] if name else None


# ---- requests, whatever their shape


class Said(NamedTuple):
    """A part of a prompt. Its `role` is system, user, assistant or tool."""

    role: str
    text: str
    """All text of the part, with calls as `name {arguments}`."""
    images: int = 0


def prompt_of(request: Mapping[str, Any]) -> list[Said]:
    """Return the prompt in a request to the fake model: the system prompt, then each message."""
    body = request["body"]
    if "input" in body:
        system, rows = body.get("instructions"), body["input"]
        return _system(system) + [said for item in rows for said in _of_item(item)]
    return _system(body.get("system")) + [said for message in body["messages"] for said in _of_message(message)]


def conversation_of(request: Mapping[str, Any]) -> str:
    """Return the text of a request without its system prompt."""
    return "\n".join(said.text for said in prompt_of(request) if said.role != "system")


def _system(content: object) -> list[Said]:
    return [Said("system", text_of(content))] if content else []


def _of_item(item: Mapping[str, Any]) -> Iterator[Said]:
    match item.get("type", "message"):
        case "message":
            yield Said(item["role"], text_of(item["content"]), images_in(item["content"]))
        case "function_call":
            yield Said("assistant", f"{item['name']} {item['arguments']}")
        case "function_call_output":
            yield Said("tool", text_of(item["output"]))


def _of_message(message: Mapping[str, Any]) -> Iterator[Said]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for block in blocks:
        if block["type"] == "tool_result":
            yield Said("tool", text_of(block.get("content")))
    calls = [f"{block['name']} {json.dumps(block['input'])}" for block in blocks if block["type"] == "tool_use"]
    functions = (call["function"] for call in message.get("tool_calls") or ())
    calls += [f"{function['name']} {function['arguments']}" for function in functions]
    others = [block for block in blocks if block["type"] not in ("tool_result", "tool_use")]
    text = "\n".join(part for part in (text_of(others), *calls) if part)
    if others or calls:
        yield Said(message["role"], text, images_in(others))
