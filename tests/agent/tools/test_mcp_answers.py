"""Invalid answers of MCP servers, from issues and specifications. At most the answer is lost, never the connection."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.tools.mcp.settings import ServerState
from hermes_state.errors import ToolError
from tests.agent.tools.test_mcp_servers import LINES, ask, becomes, serving

ANSWERS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "fixtures" / "outside" / "mcp_answers.jsonl").read_text().splitlines()
]
GOOD = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("look", "book")]},
    "resources/list": {"resources": [{"name": "a", "uri": "a:b"}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "tools/call": {"content": [{"type": "text", "text": "fine"}]},
}
SERVER = """
good, bad = json.loads(sys.argv[2]), json.loads(sys.argv[3])
asked_bad = 0
while True:
    asked = hear()
    if asked["method"] == bad["method"] and asked_bad < 1:
        asked_bad += 1
        print(bad["reply"].replace("@ID@", str(asked["id"])), flush=True)
    elif asked["method"] in good:
        say(id=asked["id"], result=good[asked["method"]])
    else:
        say(id=asked["id"], error={"code": -32601, "message": "Method not found"})
"""


def settings_of(folder: Path, answer: dict[str, Any]) -> dict[str, Any]:
    return {"args": ("-c", LINES + SERVER, str(folder), json.dumps(GOOD), json.dumps(answer))}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer['method']} {answer['source']}")
async def test_a_bad_answer_fails_only_its_own_call(tmp_path: Path, answer: dict[str, Any]) -> None:
    async with serving(tmp_path, SERVER, seconds=5, **settings_of(tmp_path, answer)) as registry:
        status = await becomes(registry, ServerState.CONNECTED)
        if answer["method"] == "tools/call":
            await _call(registry, answer)
        else:
            ours = {"odd__read_resource", "odd__get_prompt"}
            assert {*status.tools} - ours == {f"odd__{name}" for name in answer["tools"]}
            faults = [fault.partition("/")[0] for fault in status.catalog.faults]
            assert faults == [answer["fault"]] * bool(answer["fault"])
        if answer.get("tools") != []:
            assert await ask(registry, "look") == "fine"
        assert registry.statuses()[0].state is ServerState.CONNECTED


async def _call(registry: Any, answer: dict[str, Any]) -> None:
    if answer["text"] == "ToolError":
        with pytest.raises(ToolError):
            await ask(registry, "look")
    else:
        assert answer["text"] in str(await ask(registry, "look"))


CHANGING = """
def answer(**reply): say(id=hear()["id"], **reply)
refused = {"code": -32603, "message": "busy"}
begin(tools={}, resources={}, prompts={})
tools("look")
answer(result={"resources": [{"name": "a", "uri": "a:b"}]})
answer(result={"prompts": [{"name": "greet"}]})
say(method="notifications/tools/list_changed")
tools("look", "book")
asked = hear()
while not os.path.exists(sys.argv[1] + "/go"): time.sleep(0.01)
say(id=asked["id"], error=refused)
answer(result={"prompts": [{"name": "greet"}]})
say(method="notifications/tools/list_changed")
tools("look")
answer(result={"resources": []})
answer(error=refused)
hear()
"""


async def test_resources_and_prompts_are_offered_until_their_list_is_read_without_them(tmp_path: Path) -> None:
    ours = {"odd__read_resource", "odd__get_prompt"}
    async with serving(tmp_path, CHANGING) as registry, asyncio.timeout(20):
        while "odd__book" not in registry.by_name:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert ours < set(registry.by_name), "the server has not answered yet"
        (tmp_path / "go").touch()
        while not registry.statuses()[0].catalog.faults:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert ours < set(registry.by_name)
        while "odd__read_resource" in registry.by_name:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert set(registry.by_name) == {"odd__look", "odd__get_prompt"}
