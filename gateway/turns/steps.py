"""Steps of a turn: the line under its preview that says what the agent does, and the list that `/steps` shows."""

import time
from collections.abc import Awaitable, Callable

from agent.tools.registry import Step
from gateway.switches import StepLevel
from hermes_state.redaction import redact
from hermes_state.text import duration, shortened
from hermes_state.tool_runs import ToolRunState
from hermes_state.values import MessageId

CHANGE_SECONDS = 2.0
"""Minimum seconds between two changes of the line. Each costs a request."""
RENEWAL_SECONDS = 5.0
"""Minimum seconds after which the line shows a new duration although no step has begun or ended."""
MAX_LISTED = 10
"""Maximum number of steps in the line if the level is `full`."""
MAX_KINDS = 4
"""Maximum number of kinds of finished steps in the line."""


async def _short() -> StepLevel:
    return "short"


class StepLine:
    """Line about the steps of a running turn. It keeps only the newest of the finished steps."""

    def __init__(
        self, began: float, load: Callable[[], Awaitable[StepLevel]] = _short, redact: Callable[[str], str] = redact
    ) -> None:
        """`began`: start of the turn on the monotonic clock. `load` loads the chat's level. It is called only once."""
        self.version = 0
        """Number of changes. It shows whether a line is out of date."""
        self._load, self._redact = load, redact
        self._level: StepLevel | None = None
        self._began = began
        self._steps: dict[tuple[MessageId, str], Step] = {}
        self._counts: dict[str, int] = {}
        self._made = (0, float("-inf"), "")

    def due_in(self) -> float | None:
        """Return the seconds until the line changes, or None if there is no line. Long turns change their line less."""
        if not self.version or self._level == "off":
            return None
        version, at, _ = self._made
        pause = CHANGE_SECONDS if version != self.version else max(RENEWAL_SECONDS, (at - self._began) / 3)
        return at + pause - time.monotonic()

    def note(self, step: Step) -> None:
        """Record that a step has begun or ended."""
        self.version += 1
        self._steps[step.key] = step
        if step.state is ToolRunState.STARTED:
            return
        did = step.words.did
        self._counts[did] = self._counts.pop(did, 0) + 1  # the newest kind is last
        done = [key for key, one in self._steps.items() if one.state is not ToolRunState.STARTED]
        for key in done[:-MAX_LISTED]:
            del self._steps[key]

    async def text(self) -> str:
        """Return the line as Markdown, or an empty string if the turn uses no tools or the chat wants no line."""
        if not self.version:
            return ""
        if self._level is None:
            self._level = await self._load()
        if (due_in := self.due_in()) is not None and due_in <= 0:
            self._made = self.version, time.monotonic(), self._written(self._level)
        return self._made[2]

    def _written(self, level: StepLevel) -> str:
        running = [step for step in self._steps.values() if step.state is ToolRunState.STARTED]
        counts = [
            f"{did} {count}\N{MULTIPLICATION SIGN}" if count > 1 else did
            for did, count in list(self._counts.items())[-MAX_KINDS:]
        ]
        summary = [*reversed(counts), f"{time.monotonic() - self._began:.0f} s"]
        if level == "full":
            steps = list(self._steps.values())[-MAX_LISTED:]
            return "\n".join([*(f"- {listed(step, self._redact)}" for step in steps), "", " · ".join(summary)])
        # Of a sub-agent and the call that started it, the sub-agent's own step says more.
        newest = [described(step, self._redact) for step in running[-1:]]
        more = [f"{len(running) - 1} more"] if len(running) > 1 else []
        return " · ".join([*newest, *more, *summary])


def described(step: Step, redact: Callable[[str], str]) -> str:
    """Return a step as Markdown. The subject becomes inline code, so that it cannot contain markup or mentions.

    >>> from agent.tools.registry import StepWords
    >>> words = StepWords(doing="Reading", did="read files")
    >>> described(Step(key=(MessageId(1), "a"), words=words, about="**a**`\\n@all"), str)
    "Reading `**a**' @all`"
    """
    doing = f"Sub-agent: {step.words.doing[:1].lower()}{step.words.doing[1:]}" if step.is_subagent else step.words.doing
    about = redact(step.about[:1_000]).replace("`", "'")  # far fewer characters are shown
    about = shortened("".join(character for character in about if character.isprintable() or character.isspace()))
    return f"{doing} `{about}`" if about else doing


_OUTCOMES = {ToolRunState.DONE: "done", ToolRunState.FAILED: "failed", ToolRunState.STOPPED: "stopped"}


def listed(step: Step, redact: Callable[[str], str], milliseconds: int | None = None) -> str:
    """Return a step with its outcome, and with its duration if that is given."""
    outcome = "running" if step.state is ToolRunState.STARTED else _OUTCOMES.get(step.state, "outcome unknown")
    took = f", {duration(milliseconds)}" if milliseconds is not None else ""
    return f"{described(step, redact)} ({outcome}{took})"


def with_line(text: str, line: str) -> str:
    """Return a preview's text with the line below it. An open code block of the text is closed first.

    >>> with_line("```\\ncode", "Reading · 2 s")
    '```\\ncode\\n```\\n\\nReading · 2 s'
    """
    if not line or not text.strip():
        return line or text
    fences = [mark for row in text.splitlines() for mark in ("```", "~~~") if row.lstrip().startswith(mark)]
    closing = f"\n{fences[-1]}" if len(fences) % 2 else ""
    return f"{text}{closing}\n\n{line}"
