"""A trajectory as people and the agent had it: without tags, and with the calls and results of tools in words."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final

import orjson

from agent.trajectories.format import Trajectory, TurnRole

_SPEAKERS: Final = {TurnRole.SYSTEM: "System", TurnRole.HUMAN: "User", TurnRole.GPT: "Agent", TurnRole.TOOL: "Tool"}
_TAGGED: Final = re.compile(r"<(tools|think|tool_call|tool_response)>\n?(.*?)\n?</\1>", re.DOTALL)


def replayed(trajectory: Trajectory) -> Iterator[str]:
    """Yield the model and the time of a trajectory, then each turn as lines."""
    head = (bytes(value).decode() for key, value in trajectory.fields.items() if key in ("model", "timestamp"))
    yield ", ".join(value.strip('"') for value in head if value != "null")
    for turn in trajectory.turns:
        yield "".join(f"\n{line}" for line in _lines(_SPEAKERS[turn.role], _TAGGED.split(turn.text)))


def _lines(speaker: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a turn. `texts` repeats: text outside of tags, the name of a tag, the text inside."""
    for words, tag, inner in zip_longest(texts[::3], texts[1::3], texts[2::3]):
        if words.strip():
            yield f"{speaker}: {words.strip()}"
        value: Any = inner
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(inner or "")
        match tag, value:
            case "think", _:
                yield from [f"{speaker} (thinking): {inner.strip()}"] if inner.strip() else []
            case "tool_call", {"name": name, "arguments": arguments}:
                yield f"{speaker} → {name} {_shown(arguments)}"
            case "tool_response", {"name": name, "content": content}:
                yield f"{name} → {_shown(content)}"
            case "tools", [{"name": _}, *_]:
                yield f"Tools: {', '.join(str(one.get('name')) for one in value if isinstance(one, dict))}"
            case (("tool_call" | "tool_response" | "tools"), _):
                yield f"{speaker} ({tag}): {inner}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
