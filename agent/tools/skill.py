"""Tool `skill`: reads the instructions of a skill, and the further files of its folder."""

import asyncio
from pathlib import Path
from typing import Any

from agent.memory.notes import read_text
from agent.memory.skills import SKILL_FILE, SkillCatalog, SkillInfo
from agent.tools.arguments import schema, text, whole
from agent.tools.registry import Tool, ToolContext
from hermes_state.errors import ToolError
from hermes_state.text import counted
from hermes_state.values import ToolEffect

MAX_FILES = 50
"""Most files of a skill that are listed."""
MAX_CHARACTERS = 40_000
"""Longest part of a file that one call returns; less where the model's window is small."""


def skill_tool(catalog: SkillCatalog) -> Tool:
    """The tool `skill`, which reads the skills of a catalog; it is offered while there are any."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        room = min(MAX_CHARACTERS, context.result_size)
        skill = catalog.skills.get(arguments["name"])
        if skill is None:
            raise ToolError(f"there is no such skill; there are: {', '.join(catalog.skills) or 'none'}")
        return await asyncio.to_thread(_read, skill, arguments["file"], arguments["offset"], room)

    return Tool(
        name="skill",
        description="Read a skill: instructions for a kind of task, written by whoever runs this gateway. Read the one "
        "that fits before you begin; then its further files, as far as it asks for them.",
        parameters=schema(
            "name",
            name=text("The skill's name, as the system prompt lists it."),
            file=text("A file of its folder.", default=SKILL_FILE),
            offset=whole(0, "Where to start.", minimum=0),
        ),
        effect=ToolEffect.READ_ONLY,
        run=run,
        why_unavailable=lambda: None if catalog.skills else f"there are no skills in {catalog.path.name}/",
        is_persisted=False,
    )


def _read(skill: SkillInfo, name: str, offset: int, room: int) -> str:
    root = skill.folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in it, or links that go in a circle
        raise ToolError(f"{name[:100]!r} names no file") from error
    text = read_text(path) if path.is_relative_to(root) else None
    if text is None:
        raise ToolError(f"the skill has no file {name[:100]!r}; it has:\n{_files(root)}")
    part, end = text[offset : offset + room], offset + room
    if end < len(text):
        part += f"\n[{counted(len(text) - end, 'character')} more: read on with offset {end}]"
    is_beginning = name == SKILL_FILE and not offset
    return f"{part}\n\n[Files of this skill]\n{_files(root)}" if is_beginning else part


def _files(root: Path) -> str:
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    more = [f"and {len(names) - MAX_FILES} more"] if len(names) > MAX_FILES else []
    return "\n".join([*names[:MAX_FILES], *more])
