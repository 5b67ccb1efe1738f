"""Tools of plugins: found as entry points of installed packages, loaded once at the start."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import structlog

from agent.tools.registry import Tool

log = structlog.get_logger()

ENTRY_POINTS: Final = "hermes_gateway.tools"
"""Group of the entry points that lead to tools."""


def load_plugin_tools(taken: Iterable[str]) -> list[Tool]:
    """The tools of all installed packages. One that is broken, or whose name is `taken`, is left out with a warning."""
    names, found = set(taken), list[Tool]()
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        source = point.dist.name if point.dist is not None else point.value
        try:
            tools = list(_tools_of(point))
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything, and the gateway goes on without it
            log.warning("tools.plugin_failed", plugin=source, error=f"{type(error).__name__}: {error}")
            continue
        for tool in tools:
            if tool.name in names:
                log.warning("tools.left_out", plugin=source, tool=tool.name, why="its name is taken")
                continue
            names.add(tool.name)
            found.append(replace(tool, source=source))
    return found


def _tools_of(point: EntryPoint) -> Iterator[Tool]:
    offered = point.load()
    for tool in [offered] if isinstance(offered, Tool) else offered:
        if not isinstance(tool, Tool):
            raise TypeError(f"{point.value} is no tool: use the decorator of agent.tools")
        yield tool
