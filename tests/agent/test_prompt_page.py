"""The prompt that the documentation shows is the one that the product assembles.

`.venv/bin/python -m tests.agent.test_prompt_page` writes the current prompt into the page.
"""

import asyncio
import re
import tempfile
from pathlib import Path

from agent.memory.notes import MemoryDirectory
from agent.memory.sections import SectionReader
from agent.memory.skills import SkillCatalog
from agent.prompt import PromptBuilder
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from hermes_state.values import ChatId, ChatKey, ChatKind, ConversationRef, LineageId, Tokens

PAGE = Path(__file__).parents[2] / "docs/reference/prompt-assembly.md"
SHOWN = re.compile(r"(?<=-->\n```text\n).*?(?=```\n<!-- end of prompt -->)", re.DOTALL)
FILES = {
    "memory/7/MEMORY.md": "- The shop runs on the server porto-2.\n",
    "memory/7/USER.md": "- Ann prefers metric units.\n",
    "skills/release-notes/SKILL.md": (
        "---\nname: release-notes\ndescription: Use it when somebody asks for a changelog.\n---\n# Release notes\n"
    ),
    "workspaces/7/AGENTS.md": "Run the tests with make test.\n",
}
CONVERSATION = ConversationRef(
    chat_id=ChatId(7),
    lineage_id=LineageId(1),
    chat=ChatKey(platform="telegram", account="telegram", chat_ref="42"),
    chat_kind=ChatKind.DIRECT,
)


def assembled(home: Path) -> str:
    """Return the system prompt of a private chat with notes, a skill and a context file."""
    for name, text in FILES.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    files = SectionReader(
        home=home,
        notes=MemoryDirectory(path=home / "memory"),
        skills=SkillCatalog(path=home / "skills"),
        persona=home / "SOUL.md",
    )
    builder = PromptBuilder(tools=ToolRegistry(recall_tools()), files=files)
    return asyncio.run(builder.system_for(CONVERSATION, Tokens(64_000)))


def test_the_page_shows_the_assembled_prompt(tmp_path: Path) -> None:
    [shown] = SHOWN.findall(PAGE.read_text("utf-8"))
    assert shown == f"{assembled(tmp_path)}\n", "run .venv/bin/python -m tests.agent.test_prompt_page"


def test_the_page_names_the_files_of_its_example() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in FILES if f"| `{name}` |" not in page] == []


def main() -> None:
    """Write the assembled prompt into the page."""
    with tempfile.TemporaryDirectory() as home:
        prompt = assembled(Path(home))
    PAGE.write_text(SHOWN.sub(lambda _: f"{prompt}\n", PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
