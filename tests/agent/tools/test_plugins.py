"""Tools from installed packages."""

import textwrap
from pathlib import Path

import pytest
import structlog

from agent.tools.registry import ToolContext, load_plugin_tools
from tests.agent.conftest import Chat

WEATHER = """
from agent.tools import ToolEffect, tool

@tool(
    description="Tells the weather at a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    effect=ToolEffect.READ_ONLY,
)
async def weather(arguments, context):
    return f"It is sunny in {arguments['place']}."

not_a_tool = "weather"
several = [weather, weather]
"""


def install(folder: Path, package: str, code: str, **entries: str) -> None:
    """Create an installed package, as pip would."""
    (folder / f"{package}.py").write_text(textwrap.dedent(code))
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {target}" for name, target in entries.items())
    (info / "entry_points.txt").write_text(f"[hermes_gateway.tools]\n{lines}\n")


async def test_a_broken_plugin_affects_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: Chat) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "plugin_weather", WEATHER, weather="plugin_weather:weather")
    install(tmp_path, "plugin_broken", "raise RuntimeError('out of order')", broken="plugin_broken:tool")
    install(tmp_path, "plugin_wrong", "from plugin_weather import not_a_tool", wrong="plugin_wrong:not_a_tool")
    install(tmp_path, "plugin_twice", "from plugin_weather import several", zwice="plugin_twice:several")
    with structlog.testing.capture_logs() as logs:
        [weather] = load_plugin_tools(["history_search"])
    assert (weather.name, weather.source) == ("weather", "plugin_weather")
    context = ToolContext.of(await chat.start("hello"), chat.store)
    assert (await weather.reply({"place": "Lisbon"}, context)).text == "It is sunny in Lisbon."
    told = {(one["event"], one["plugin"]) for one in logs}
    assert told == {
        ("tools.plugin_failed", "plugin_broken"),
        ("tools.plugin_failed", "plugin_wrong"),
        ("tools.skipped", "plugin_twice"),
    }


def test_a_plugin_cannot_use_a_name_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "plugin_sunny", WEATHER, weather="plugin_sunny:weather")
    assert load_plugin_tools(["weather"]) == []
