"""Bodies of requests to the API: the new messages of a client, and the name of its conversation."""

import base64
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

_REFUSED = "This gateway {}. Remove `{}` from the request, or disable it in the settings of your program."
_TOOLS = "does not run tools of clients, because its agent has its own tools"


class ApiError(Exception):
    """Error for a client, with an HTTP status and a code of OpenAI's API."""

    def __init__(self, status: int, sentence: str, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.code = status, sentence, code


class TurnFailed(ApiError):
    """The message is stored, and its turn ended without an answer. A repeated request would get the same error."""


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    text: str
    images: tuple[str, ...]
    """Data URL of each image (see `read_image`)."""


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Checked request to `/v1/chat/completions` or `/v1/responses`."""

    messages: Sequence[ClientMessage]
    conversation: str
    previous: str
    """Id of the response that the request continues, or an empty string."""
    is_stream: bool
    includes_usage: bool

    def new_messages(self, *, is_new: bool) -> Sequence[ClientMessage]:
        """Return the messages after the client's last answer, because earlier ones are stored. All if `is_new`."""
        start = max((number for number, one in enumerate(self.messages, 1) if one.role == "assistant"), default=0)
        if not any(one.text.strip() or one.images for one in self.messages[start:]):
            raise ApiError(400, "The request has no message after the last answer. Add a message of the user.")
        return self.messages if is_new else self.messages[start:]


def text_of(messages: Sequence[ClientMessage]) -> str:
    """Return messages as one text. The text names the roles only if it contains answers."""
    has_answers = any(one.role == "assistant" for one in messages)
    texts = (f"{one.role}: {one.text}" if has_answers else one.text for one in messages if one.text.strip())
    return "\n\n".join(texts).replace("\x00", "")


def read_request(body: object, named: str, *, is_chat: bool) -> ClientRequest:
    """Check a body. `named` is the name of the conversation in the headers. Raises `ApiError`."""
    if not isinstance(body, Mapping):
        raise ApiError(400, "The body must be a JSON object.")
    shape = "response_format" if is_chat else "text.format"
    form = body.get("response_format") if is_chat else _block(body.get("text")).get("format")
    refused = {
        "tools": (body.get("tools"), _TOOLS),
        "functions": (body.get("functions"), _TOOLS),
        "n": (body.get("n") not in (None, 1), "gives one answer to a message"),
        shape: (_block(form).get("type", "text") != "text", "answers with text only"),
    }
    for key, (is_given, reason) in refused.items():
        if is_given:
            raise ApiError(400, _REFUSED.format(reason, key), "unsupported_parameter")
    previous = "" if is_chat else str(body.get("previous_response_id") or "")
    given = body.get("conversation")
    name = named or (given.get("id") if isinstance(given, Mapping) else given) or body.get("user") or "main"
    return ClientRequest(
        messages=_messages(body, "messages" if is_chat else "input", is_first=not previous),
        conversation=str(name),
        previous=previous,
        is_stream=bool(body.get("stream")),
        includes_usage=bool(_block(body.get("stream_options")).get("include_usage")),
    )


def _block(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _messages(body: Mapping[str, Any], key: str, *, is_first: bool) -> Sequence[ClientMessage]:
    rows = body.get(key)
    if key == "input" and isinstance(rows, str):
        rows = [{"role": "user", "content": rows}]
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ApiError(400, f"`{key}` must be a list of messages.")
    if is_first and body.get("instructions"):
        rows = [{"role": "system", "content": body["instructions"]}, *rows]
    return [_message(row) for row in rows if row.get("type", "message") not in ("reasoning", "item_reference")]


def _message(row: Mapping[str, Any]) -> ClientMessage:
    role = str(row.get("role"))
    if role not in ("system", "developer", "user", "assistant") or row.get("tool_calls"):
        raise ApiError(400, _REFUSED.format(_TOOLS, "tools"), "unsupported_parameter")
    content = row.get("content")
    texts, images = list[str](), list[str]()
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(address)}}:
                images.append(address)
            case {"type": "input_image", "image_url": str(address)}:
                images.append(address)
            case _:
                kind = str(_block(part).get("type"))[:40]
                raise ApiError(400, f"This gateway accepts text and images, but no content of the type {kind}.")
    return ClientMessage(role=role, text="\n".join(texts), images=tuple(images))


def read_image(address: str) -> tuple[str, bytes]:
    """Return the media type and the content of an image. Raises `ApiError` if it is not in a base64 data URL."""
    head, _, data = address.partition(";base64,")
    if found := re.fullmatch(r"data:(image/[a-z0-9.+-]+)(;.*)?", head.lower()):
        with suppress(ValueError):  # also for text that is not ASCII
            return found[1], base64.b64decode(data, validate=True)
    raise ApiError(400, "Send an image as a base64 data URL, because the gateway does not fetch images.")
