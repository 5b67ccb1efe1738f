"""Long-term memory tools: `memory` writes notes, `skill` reads instructions."""

import asyncio
from typing import Annotated, Final, Literal

from msgspec import Meta

from agent.memory.notes import MemoryDirectory, Person, Target, added, one_line, read_text, replaced
from agent.memory.skills import SKILL_FILE, SkillCatalog, SkillInfo
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from hermes_state.errors import ToolError
from hermes_state.text import counted
from hermes_state.transcripts import load_sender_name
from hermes_state.values import ChatId, ChatKey, ChatKind, ToolEffect

MEMORY: Final = "memory"
_NEEDED: Final = {"add": ("text",), "replace": ("old", "text"), "remove": ("old",)}


class NoteChange(Arguments, frozen=True):
    action: Literal["add", "replace", "remove"]
    target: Target
    text: Annotated[str, Meta(description="The new entry.")] = ""
    old: Annotated[str, Meta(description="Words of the entry to replace or remove.")] = ""


def memory_tool(notes: MemoryDirectory) -> Tool:
    """Return the tool `memory`.

    It writes notes only for the chat of the call, and notes about a person only in turns that this person started.
    """

    @tool(
        description="Save a note for later conversations. `user`: who the person is and how they want things done; "
        "`memory`: lasting facts about the work. Save preferences and corrections at once, one sentence each. No task "
        "progress, secrets or tool results. Never promise to remember something without saving it.",
        effect=ToolEffect.WRITES,
        needs_approval=False,
        instructs=lambda change: (change.action, change.target) != ("remove", "user"),
        step=StepWords(doing="Updating my notes", did="updated my notes"),
    )
    async def memory(change: NoteChange, context: ToolContext) -> str:
        person = None
        if has_parts(context.chat, context.chat_kind):
            name = await context.store.read(load_sender_name, context.turn_id, context.started_by)
            person = context.started_by, name or context.started_by
        return await asyncio.to_thread(change_notes, notes, context.chat_id, person, change)

    return memory


def has_parts(chat: ChatKey, kind: ChatKind) -> bool:
    """Return True if a chat's `USER.md` has a separate part for each person."""
    return kind.is_shared and not chat.user_ref


def change_notes(notes: MemoryDirectory, chat_id: ChatId, person: Person | None, change: NoteChange) -> str:
    """Change the notes. `person`: change only this person's part of `USER.md`; None: the whole file.

    Blocks the calling thread. Raises `ToolError` if the change is invalid or the notes cannot be changed.
    """
    text, old = one_line(change.text), one_line(change.old)
    if missing := [name for name in _NEEDED[change.action] if not {"text": text, "old": old}[name]]:
        raise ToolError(f"{change.action} needs {' and '.join(missing)}")

    def changed(part: str) -> str:
        if change.action == "add":
            return added(part, text)
        return replaced(part, old, text if change.action == "replace" else None)

    return f"Noted. {notes.change(chat_id, change.target, person if change.target == 'user' else None, changed)}"


# ---- skills

_MAX_FILES: Final = 50
"""Maximum number of files to list for a skill."""


class _SkillArguments(Arguments, frozen=True):
    name: Annotated[str, Meta(description="Name from the system prompt.")]
    file: Annotated[str, Meta(description="A file of the skill.")] = SKILL_FILE
    offset: Annotated[int, Meta(ge=0, description="Where to start.")] = 0


def skill_tool(catalog: SkillCatalog) -> Tool:
    """Return the tool `skill`, which reads skills from a catalog. It is offered only if the catalog has skills."""

    @tool(
        description="Read a skill: instructions for a kind of task, written by the bot's owner. Read the matching "
        "skill before you begin, then the files that it refers to.",
        effect=ToolEffect.READ_ONLY,
        why_unavailable=lambda: None if catalog.skills else f"there are no skills in {catalog.path.name}/",
        is_persisted=False,
        step=StepWords(doing="Reading the skill", did="read skills", about=lambda asked: asked.name),
    )
    async def skill(asked: _SkillArguments, context: ToolContext) -> str:
        if asked.name not in catalog.skills:
            raise ToolError(f"there is no such skill; available skills: {', '.join(catalog.skills) or 'none'}")
        return await asyncio.to_thread(_read_skill, catalog.skills[asked.name], asked, min(40_000, context.result_size))

    return skill


def _read_skill(skill: SkillInfo, asked: _SkillArguments, room: int) -> str:
    root, name, end = skill.folder.resolve(), asked.file, asked.offset + room

    def listed() -> str:
        files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        more = [f"and {len(files) - _MAX_FILES} more"] if len(files) > _MAX_FILES else []
        return "\n".join([*files[:_MAX_FILES], *more])

    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL character, or a loop of links
        raise ToolError(f"{name[:100]!r} is not a valid file name") from error
    text = read_text(path) if path.is_relative_to(root) else None
    if text is None:
        raise ToolError(f"the skill has no file {name[:100]!r}; its files are:\n{listed()}")
    part = text[asked.offset : end]
    if end < len(text):
        part += f"\n[{counted(len(text) - end, 'character')} more: continue with offset {end}]"
    is_beginning = name == SKILL_FILE and not asked.offset
    return f"{part}\n\n[Files of this skill]\n{listed()}" if is_beginning else part
