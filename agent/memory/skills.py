"""Skills: folders with a `SKILL.md` in the Agent Skills format. A prompt names them; a tool reads one when needed.

The front matter is YAML with `name` and `description`. Many descriptions are no YAML, because of a colon; such lines
are read as plain text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillInfo:
    """A skill that can be read. `fault`: mistake in its front matter, for the operator."""

    name: str
    description: str
    folder: Path
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class SkillCatalog:
    """Catalog of the skills in a folder at the last `load`."""

    path: Path
    skills: Mapping[str, SkillInfo] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    """A sentence with the file for each faulty skill."""

    def load(self) -> None:
        """Read the folder, and log new faults. Blocks its thread."""
        try:
            folders = sorted(one for one in self.path.iterdir() if one.is_dir() and not one.name.startswith("."))
        except OSError:  # there is none
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
            faults.append(f"{self.path}: more than {MAX_SKILLS} skills; those behind the first are not offered")
        for fault in faults:
            if fault not in self.faults:
                log.warning("skill.faulty", reason=fault)
        self.skills, self.faults = found, tuple(faults)

    def index(self) -> str:
        return "\n".join(f"- {skill.name}: {' '.join(skill.description.split())}" for skill in self.skills.values())


def _load_skill(folder: Path) -> SkillInfo:
    """Load the skill in a folder, under the folder's name. Raises `ToolError` if it cannot be offered."""
    text = read_text(folder / SKILL_FILE)
    if text is None:
        raise ToolError("there is no such file")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", folder.name) is None:
        raise ToolError(f"the folder's name {folder.name!r} has characters that no skill's name has")
    values = front_matter(text)
    name, description = values.get("name"), values.get("description", "")
    if not description:
        raise ToolError("its front matter has no `description`, by which a model could tell when to use it")
    fault = ""
    if name != folder.name:
        fault = f"its `name` is {name!r}, its folder's {folder.name!r}; it is offered by the folder's"
    elif re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) is None:
        fault = "its name should have lowercase letters, digits and single hyphens only"
    elif len(description) > MAX_DESCRIPTION:
        fault = f"its description has {len(description):,} of {MAX_DESCRIPTION:,} characters and is shown shortened"
    short = shortened(description, MAX_DESCRIPTION)
    return SkillInfo(name=folder.name, description=short, folder=folder, fault=fault)


def front_matter(text: str) -> dict[str, str]:
    """Return the name and the description in the front matter of a skill. Raises `ToolError` if there is none.

    >>> front_matter("---\\nname: trips\\ndescription: Use when: somebody travels\\n---\\n# Trips")
    {'name': 'trips', 'description': 'Use when: somebody travels'}
    """
    found = re.match(r"\A\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ToolError(
            "it does not begin with front matter: a line `---`, then `name:` and `description:`, then `---`"
        )
    values = _values(found[1])
    if not isinstance(values, dict):
        raise ToolError("its front matter has no names with values, such as `name: trips`")
    return {key: str(values[key]).strip() for key in ("name", "description") if isinstance(values.get(key), str | int)}


@lru_cache(maxsize=2 * MAX_SKILLS)  # YAML takes a millisecond for each skill, at the start of each session
def _values(front: str) -> object:
    try:
        return yaml.safe_load(front)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {name: " ".join(value.split()).strip("\"'") for name, value in _FIELD.findall(front)}
