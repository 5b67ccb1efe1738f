"""How large a prompt is before the provider has counted it.

Everything here is an estimate in tokens and is named so; a provider's own count is `reported_`.
"""

from collections.abc import Iterable

import orjson

from agent.model.base import ModelReply, ModelRequest, ToolSchema
from hermes_state.transcripts import View
from hermes_state.values import CanonicalUsage, Message, Role, Tokens

_BYTES_PER_TOKEN = 4
"""Common tokenizers make about four bytes of English, code or Chinese (three bytes a character) into a token."""
_MESSAGE_TOKENS = 8
"""What role, separators and the time stamp of one message take."""
_IMAGE_TOKENS = 1_000
"""Between what providers charge for a small and for a large image."""


def estimated_text_tokens(text: str) -> Tokens:
    """What a text takes, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return Tokens(-(-size // _BYTES_PER_TOKEN))


def estimated_prompt_tokens(view: View, request: ModelRequest) -> Tokens:
    """The next prompt: the provider's last count plus what was stored since, or all of it by estimate."""
    session = view.session
    if session.reported_prompt_tokens is None or session.reported_at_seq is None:
        return _estimated_whole(request)
    since = (row for row in view.transcript if row.session_id == session.id and row.seq > session.reported_at_seq)
    return Tokens(session.reported_prompt_tokens + _estimated_rows(since, request))


def estimated_reply_usage(request: ModelRequest, reply: ModelReply) -> CanonicalUsage:
    """What a call used, where the provider did not say."""
    asked = sum(_MESSAGE_TOKENS + estimated_text_tokens(call.name + call.arguments) for call in reply.calls)
    return CanonicalUsage(input=_estimated_whole(request), output=estimated_text_tokens(reply.text) + asked)


def _estimated_whole(request: ModelRequest) -> Tokens:
    fixed = estimated_text_tokens(request.system) + sum(map(_estimated_schema, request.tools))
    return Tokens(fixed + _estimated_rows(request.transcript, request))


def _estimated_schema(tool: ToolSchema) -> int:
    parameters = orjson.dumps(tool.parameters).decode()
    return _MESSAGE_TOKENS + estimated_text_tokens(tool.name + tool.description + parameters)


def _estimated_rows(rows: Iterable[Message], request: ModelRequest) -> int:
    style = request.style
    total = 0
    for row in rows:
        text = row.text or ""
        total += _MESSAGE_TOKENS
        total += estimated_text_tokens(text[: style.max_result_characters] if row.role is Role.TOOL else text)
        body = row.body
        total += sum(_IMAGE_TOKENS for image in body.images if image.attachment_id in style.image_urls)
        for call in body.calls:
            total += _MESSAGE_TOKENS + estimated_text_tokens(call.name + call.arguments)
        for document in body.documents:
            total += _MESSAGE_TOKENS + estimated_text_tokens(document.text)
        if body.quote is not None:
            total += _MESSAGE_TOKENS + estimated_text_tokens(body.quote.text)
        total += sum(map(estimated_text_tokens, body.notes))
    return total
