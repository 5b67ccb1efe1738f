"""What was said in a chat as a file for training: asked of the running gateway, shortened by its model, shown."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.protocols import ANTHROPIC, ModelProtocol
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World

PROGRAM = run_with_tools


@pytest.mark.each_protocol
async def test_a_chat_is_exported_while_the_gateway_runs_and_shortened_by_its_model(
    world: World, protocol: ModelProtocol, tmp_path: Path
) -> None:
    await world.gateway.start()
    calls = [{"name": "register", "arguments": {"mark": "boat", "lines": 40}}]
    await world.script(match="look it up", last_role="user", tool_calls=calls, reasoning="I look.", times=6)
    for _ in range(6):
        await world.converse("look it up")
    said, short = tmp_path / "said.jsonl", tmp_path / "short.jsonl"
    code, output = await world.command_line("trajectories", "export", str(said), "telegram:42")
    assert (code, output.count("1 conversation")) == (0, 1), output
    whole = json.loads(said.read_bytes())
    assert [turn["from"] for turn in whole["conversations"]] == ["system", *["human", "gpt", "tool", "gpt"] * 6]
    thoughts = "" if protocol is ANTHROPIC else "I look.\n"  # that fake tells no thoughts
    thought = f"<think>\n{thoughts}</think>\n"
    assert whole["conversations"][2]["value"].startswith(f"{thought}<tool_call>\n")
    assert '"name":"register"' in whole["conversations"][3]["value"]
    assert whole["conversations"][4]["value"].startswith("<think>\n</think>\n")
    assert whole["completed"] is True
    assert whole["model"] == "lab-128k"
    written_at = datetime.fromisoformat(whole["timestamp"])
    assert abs(datetime.now(UTC) - written_at) < timedelta(minutes=5)
    _, _, block = whole["conversations"][0]["value"].partition("\n\n<tools>\n")
    offered = {one["name"]: one for one in json.loads(block.removesuffix("\n</tools>"))}
    assert offered["register"]["parameters"]["properties"].keys() == {"mark", "lines"}
    assert offered["register"]["description"]
    code, output = await world.command_line("trajectories", "replay", str(said))
    assert code == 0, output
    assert 'Agent → register {"mark":"boat","lines":40}' in output
    assert "User: look it up\n" in output
    assert "<tool_call>" not in output

    await world.script(match="Summarise these", text="The register was looked up for boats, again and again.", times=9)
    sizes = ("--target-max-tokens", "4000", "--summary-target-tokens", "200")
    code, output = await world.command_line("trajectories", "compress", str(said), str(short), *sizes)
    assert code == 0, output
    left = json.loads(short.read_bytes())
    assert left["id"] == whole["id"]
    assert "The register was looked up" in left["conversations"][4]["value"]
    code, output = await world.command_line("trajectories", "show", str(short))
    assert "SUMMARY OF EARLIER TURNS" in output
    assert world.query("SELECT count(*) FROM model_calls WHERE purpose = 'summary'") == [(0,)]
    assert await world.gateway.stop() == 0
