"""MCP server for tests, based on the SDK. Run it with `python mcp_server.py [http PORT]`.

Its tools behave like those of good and bad servers. It writes its events to the file `FAKE_MCP_LOG`.
"""

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("harbour", instructions="Knows boats.")


def note(line: str) -> None:
    """Record an event for the test."""
    if path := os.environ.get("FAKE_MCP_LOG"):
        with Path(path).open("a") as log:
            log.write(f"{line}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(boat: str) -> str:
    """Looks for a boat."""
    note(f"look {boat}")
    return f"{boat} lies at pier 7."


@server.tool()
async def book(boat: str, days: int = 1) -> str:
    """Books a boat."""
    note(f"book {boat} {days}")
    return f"booked: {boat} for {days} days"


@server.tool()
async def environ() -> str:
    """Lists the names of the variables that the server was given."""
    return " ".join(sorted(os.environ))


@server.tool()
async def refuse() -> str:
    """Fails."""
    raise ToolError("the harbour is closed")


@server.tool()
async def crash() -> str:
    """Ends the server in the middle of a call."""
    note("crash")
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Never answers."""
    note("hang")
    try:
        await asyncio.sleep(3_600)
    except BaseException:
        note("hang cancelled")
        raise
    return ""


@server.tool()
async def flood(megabytes: int) -> str:
    """Answers with so much text."""
    return "x" * (megabytes << 20)


@server.tool()
async def picture() -> CallToolResult:
    """Shows a picture, and links to more."""
    content: list[Any] = [
        ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png"),
        TextContent(type="text", text="the pier"),
        ResourceLink(type="resource_link", uri="harbour://map", name="map"),
        EmbeddedResource(
            type="resource",
            resource=TextResourceContents(uri="harbour://tides", text="high at noon", mime_type="text/plain"),
        ),
    ]
    return CallToolResult(content=content)


@server.tool()
async def tides() -> dict[str, int]:
    """Answers with values."""
    return {"high": 12, "low": 6}


@server.tool()
async def open_pier(ctx: Context[Any, Any]) -> str:
    """Adds a tool to the list."""

    async def moor(pier: Annotated[int, "number"]) -> str:
        """Moors."""
        return f"moored at {pier}"

    server.add_tool(moor, name="moor")
    await ctx.session.send_tool_list_changed()
    return "open"


@server.tool()
async def ask_back(ctx: Context[Any, Any]) -> str:
    """Asks the client for its roots, which it has not offered."""
    try:
        await ctx.session.list_roots()
    except MCPError as error:
        return f"declined: {error.message}"
    return "answered"


@server.resource("harbour://map")
def chart() -> str:
    """The map."""
    return "a map"


@server.prompt()
def greeting(name: str) -> str:
    """Greets."""
    return f"Ahoy {name}"


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    print("ready for boats", file=sys.stderr, flush=True)
    if os.environ.get("FAKE_MCP_GARBAGE"):
        print("npm notice: a new version is there", flush=True)
    if sys.argv[1:2] == ["http"]:
        host = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
        server.run("streamable-http", host=host, port=int(sys.argv[2]))
    else:
        server.run("stdio")
