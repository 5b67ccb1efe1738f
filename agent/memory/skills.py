"""Skills: folders with a `SKILL.md` in the Agent Skills format. Prompts list them, and a tool reads them when needed.

The front matter is YAML with `name` and `description`. If it is not valid YAML, which is common because descriptions
contain colons, it is read as plain text.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
import structlog
import yaml

from agent.memory.notes import read_text
from hermes_state.errors import ToolError
from hermes_state.text import shortened

log = structlog.get_logger()

SKILL_FILE = "SKILL.md"
MAX_SKILLS = 200
MAX_DESCRIPTION = 1_024
_FIELD = re.compile(r"^(name|description)[ \t]*:[ \t]*(\S.*?(?:\n[ \t]+\S.*?)*)[ \t]*$", re.MULTILINE)


class SkillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that models can read. `fault`: a mistake in its front matter, to show to the operator."""

    name: str
    description: str
    folder: Path
    fault: str = ""


class SkillCatalog(msgspec.Struct, kw_only=True):
    """Skills in a folder, as of the last `load`."""

    path: Path
    skills: Mapping[str, SkillInfo] = msgspec.field(default_factory=dict)
    faults: tuple[str, ...] = ()
    """One message per faulty skill, with the path of its file."""

    def load(self) -> None:
        """Read all skills from the folder and log new faults. Blocks the thread."""
        try:
            folders = sorted(one for one in self.path.iterdir() if one.is_dir() and not one.name.startswith("."))
        except OSError:  # the folder is missing or unreadable
            folders = []
        found, faults = dict[str, SkillInfo](), list[str]()
        for folder in folders[:MAX_SKILLS]:
            try:
                skill = _load_skill(folder)
            except ToolError as error:
                faults.append(f"{folder / SKILL_FILE}: {error}; the skill is not offered")
                continue
            found[skill.name] = skill
            if skill.fault:
                faults.append(f"{folder / SKILL_FILE}: {skill.fault}")
        if len(folders) > MAX_SKILLS:
            faults.append(f"{self.path}: more than {MAX_SKILLS} skills; only the first {MAX_SKILLS} are offered")
        for fault in faults:
            if fault not in self.faults:
                log.warning("skill.invalid", reason=fault)
        self.skills, self.faults = found, tuple(faults)

    def index(self) -> str:
        return "\n".join(f"- {skill.name}: {' '.join(skill.description.split())}" for skill in self.skills.values())


def _load_skill(folder: Path) -> SkillInfo:
    """Load the skill that is named after this folder. Raises `ToolError` if the skill is not usable."""
    text = read_text(folder / SKILL_FILE)
    if text is None:
        raise ToolError("the file does not exist")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", folder.name) is None:
        raise ToolError(f"the folder name {folder.name!r} is not a valid skill name")
    values = front_matter(text)
    name, description = values.get("name"), values.get("description", "")
    if not description:
        raise ToolError("its front matter has no `description`, which tells a model when to use it")
    fault = ""
    if name != folder.name:
        fault = f"its `name` is {name!r}, but its folder is {folder.name!r}; the folder name is used"
    elif re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) is None:
        fault = "its name should contain only lowercase letters, digits and single hyphens"
    elif len(description) > MAX_DESCRIPTION:
        fault = f"its description has {len(description):,} characters and is shortened to {MAX_DESCRIPTION:,}"
    short = shortened(description, MAX_DESCRIPTION)
    return SkillInfo(name=folder.name, description=short, folder=folder, fault=fault)


def front_matter(text: str) -> dict[str, str]:
    """Return the name and description from the front matter of a skill. Raises `ToolError` if it is missing.

    >>> front_matter("---\\nname: trips\\ndescription: Use when: somebody travels\\n---\\n# Trips")
    {'name': 'trips', 'description': 'Use when: somebody travels'}
    """
    found = re.match(r"\A\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ToolError(
            "it does not begin with front matter (a line `---`, then `name:` and `description:`, then `---`)"
        )
    values = _values(found[1])
    if not isinstance(values, dict):
        raise ToolError("its front matter has no keys with values, such as `name: trips`")
    return {key: str(values[key]).strip() for key in ("name", "description") if isinstance(values.get(key), str | int)}


@lru_cache(maxsize=2 * MAX_SKILLS)  # cached, because parsing YAML takes a millisecond per skill in each new session
def _values(front: str) -> object:
    try:
        return yaml.safe_load(front)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {name: " ".join(value.split()).strip("\"'") for name, value in _FIELD.findall(front)}
