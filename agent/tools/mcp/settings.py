"""Data classes for an MCP server's lists, state and call results. They do not need the SDK."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from agent.tools.registry import Tool
from hermes_state.text import printable, shortened, well_formed
from hermes_state.values import Millis


class RemoteTool(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of an MCP server, under the server's own name for it, with a schema that model providers accept."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    claims_to_read: bool
    reads: Literal["", "resource", "prompt"] = ""
    """What a call reads instead of calling a tool of the server."""


class ServerCatalog(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[RemoteTool, ...] = ()
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """Messages about lists that could not be read completely."""


def reading_tools(catalog: ServerCatalog) -> Iterator[RemoteTool]:
    """Yield tools of our own that read the server's resources and prompts, if it lists any."""
    if catalog.resources:
        yield _reading_tool(
            "read_resource", "resource", "Reads a resource of this server. Resources", catalog.resources
        )
    if catalog.prompts:
        what = "Returns a prompt of this server, which is a template for a task. Prompts with their arguments"
        yield _reading_tool("get_prompt", "prompt", what, catalog.prompts)


def _reading_tool(name: str, reads: Literal["resource", "prompt"], what: str, names: Sequence[str]) -> RemoteTool:
    key = "uri" if reads == "resource" else "name"
    properties: dict[str, Any] = {key: {"type": "string"}}
    if reads == "prompt":
        properties["arguments"] = {"type": "object", "additionalProperties": {"type": "string"}}
    return RemoteTool(
        name=name,
        description=shortened(f"{what}: {', '.join(names)}", MAX_LIST_TEXT),
        parameters={"type": "object", "properties": properties, "required": [key]},
        claims_to_read=True,
        reads=reads,
    )


class ServerState(StrEnum):
    STARTING = "starting"
    CONNECTED = "connected"
    DOWN = "down"


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ServerState = ServerState.STARTING
    since: Millis
    tools: Mapping[str, Tool] = msgspec.field(default_factory=dict)
    """Tools of the server, by the agent's names for them."""
    catalog: ServerCatalog = ServerCatalog()
    error: str | None = None
    next_try_at: Millis | None = None


MAX_LIST_TEXT: Final = 1_000
"""Maximum length of a list of resources or prompts in a tool's description, in characters."""
MAX_TEXT: Final = 900_000
_MIMES = [f"image/{kind}" for kind in ("png", "jpeg", "jpg", "gif", "webp", "bmp", "tiff", "avif")]


class RemoteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a tool call. Its content blocks are JSON as the server sent it."""

    content: Sequence[dict[str, Any]]
    structured: object = None
    is_error: bool = False

    @property
    def text(self) -> str:
        words = [_words(block) for block in self.content]
        if self.structured is not None and not any(block.get("type") == "text" for block in self.content):
            words.append(json.dumps(self.structured, ensure_ascii=False))
        text = "\n".join(word for word in words if word)
        if len(text) > MAX_TEXT:  # cut first, because cleaning a long text blocks the event loop
            text = f"{text[:MAX_TEXT]}\n[cut here: the result had {len(text):,} characters]"
        return printable(well_formed(text))

    @property
    def images(self) -> list[tuple[str, bytes]]:
        """Return the media types and bytes of the first four images that have a supported type."""
        found: list[tuple[str, bytes]] = []
        for block in self.content:
            mime = str(block.get("mimeType")).lower()
            if block.get("type") == "image" and mime in _MIMES and len(found) < 4:
                data = "".join(block["data"].rpartition(",")[2].split())  # some servers send a data URL, or line breaks
                with suppress(binascii.Error):
                    found.append((mime, base64.b64decode(data, validate=True)))
        return found


def _words(block: dict[str, Any]) -> str:
    """Return a content block as text. A block without text is represented by its type."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"uri": uri, "text": str(text)}}:
            return f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": uri, **rest}}:
            return f"[resource {uri}, {rest.get('mimeType', 'no text')}: not shown]"
        case {"type": "resource_link", "uri": uri, **rest}:
            return f"[link to the resource {uri}: {rest.get('title') or rest.get('name', '')}]"
        case {"type": kind, **rest}:
            return f"[{kind}, {rest.get('mimeType', 'unknown type')}]"
    return ""
