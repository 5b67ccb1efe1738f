"""Credentials of the configuration: no part of them leaves in an answer, a request, a file or the log."""

import base64
import json
import sys

import pytest

from tests.e2e.chats import Chat
from tests.e2e.test_web import Site, site

__all__ = ["site"]

LOGIN = "harbour:Pb5Wn2cRk8Ys"
PARTS = (LOGIN.partition(":")[2], base64.b64encode(LOGIN.encode()).decode(), "Kq7Zt3xGv9Lm", "Jd4Hs6fMw1Bp")
"""Password of the Basic login and its encoded form, query parameter, and password in an address."""
BASIC = f"Authorization: Basic {PARTS[1]}"
ADDRESS = f"https://ann:{PARTS[3]}@127.0.0.1:9/mcp?tavilyApiKey={PARTS[2]}"
REPEAT = """
import base64, re, sys
basic, address = sys.argv[1:]
login = base64.b64decode(basic.split()[-1]).decode()
raise SystemExit(" ".join(["refused:", login, basic, *re.split("[/@?=]+", address), address]))
"""
TELLTALE = {"command": sys.executable, "args": ["-c", REPEAT, BASIC, ADDRESS]}


@pytest.mark.each_protocol
async def test_no_part_of_a_configured_credential_leaves(chat: Chat, site: Site) -> None:
    """A program repeats the credentials in its last words, a person in a message, and the model in its calls."""
    world = chat.world
    await chat.start(
        HERMES_ACCESS__ADMINS=chat.person,
        HERMES_LOGGING__FILE="true",
        HERMES_MCP__SERVERS=json.dumps({"telltale": TELLTALE}),
        HERMES_TOOLS__APPROVAL__WRITES="allow",
        HERMES_WEB__PRIVATE_HOSTS="127.0.0.1",
    )
    await world.gateway.wait_for_log("mcp.server_failed")
    await world.script(match="The logins", text="I see.", times=1)
    await chat.ask(f"The logins are {' and '.join(PARTS)} today.", "I see")
    told = [await chat.ask("/mcp", "telltale"), await chat.ask("/search logins", "found|logins are")]
    for number, part in enumerate(PARTS):
        calls = {
            "web_fetch": {"url": f"{site.url}/{part}"},
            "memory": {"action": "add", "target": "memory", "text": f"use {part}"},
        }
        for name, arguments in calls.items():
            mark = f"{name} {number};"
            await world.script_call(mark, name, **arguments)
            await chat.ask(mark, "secret")
    assert await world.gateway.stop() == 0
    files = [path for path in world.home.rglob("*") if path.is_file() and "state.db" not in path.name]
    assert "[redacted]" in told[0]
    assert "logins are" in told[1]
    assert world.home / "logs" / "gateway.log" in files
    said = "\n".join([*told, world.gateway.log_text(), *(path.read_text(errors="replace") for path in files)])
    assert [part for part in PARTS if part in said] == []
    assert site.asked == []
