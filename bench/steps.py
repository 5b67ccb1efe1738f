"""Recorder for the product's function calls while it handles a message, and figures about such a sequence.

The figures count function starts.
"""

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

LOOP = asyncio.events.Handle._run.__code__
"""Code of the event loop's frame. Frames below it on the stack run the loop, and did not call the task."""
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Step(NamedTuple):
    """Start of one function."""

    module: str
    function: str
    caller: str
    """Module of the nearest product function below it on the stack. Empty if there is no such function."""
    thread: int


class Recorder:
    """Records starts of the product's named functions. `hook` must be the profile function of every thread."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        """`modules`: dotted module names by file."""
        self._modules = modules
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle_tasks: set[asyncio.Task[Any] | None] = set()
        self._steps: list[Step] = []
        self._is_on = False
        self.last_at = 0.0
        """Monotonic time in seconds of the last start or resumption."""

    def start(self) -> None:
        self._tasks, self._steps, self._is_on = set(), [], True
        self.last_at = time.monotonic()

    def stop(self) -> list[Step]:
        self._is_on = False
        return self._steps

    def ignore(self) -> None:
        """Stop, and from now on ignore all tasks that have started a function since `start`."""
        self.stop()
        self._idle_tasks |= self._tasks

    @property
    def ignored(self) -> list[str]:
        """Return the names of the ignored tasks."""
        return sorted(task.get_name() for task in self._idle_tasks if task is not None)

    def hook(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call. This is the profile function of a thread."""
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        module = self._modules.get(code.co_filename)
        if module is None or (task := _running_task()) in self._idle_tasks:
            return
        self.last_at = time.monotonic()
        if code.co_name.startswith("<") or _is_resumed(code, frame.f_lasti):
            return
        if task is not None:
            self._tasks.add(task)
        self._steps.append(Step(module, code.co_qualname, self._caller(frame), threading.get_ident()))

    def _caller(self, frame: FrameType) -> str:
        below = frame.f_back
        while below is not None and below.f_code is not LOOP:
            if module := self._modules.get(below.f_code.co_filename):
                return module
            below = below.f_back
        return ""


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the thread has no event loop
        return None


def _is_resumed(code: CodeType, offset: int) -> bool:
    """True if a generator or coroutine is resumed, according to the argument of its RESUME instruction."""
    return bool(code.co_flags & RESUMED and code.co_code[offset + 1] & 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Figures of one module on a walk."""

    module: str
    visits: int
    """Number of times that the walk enters the module from another module on the same thread."""
    calls_in: int
    """Number of times that another module, or no module, called a function of this module."""
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Figures of one message's path through the product."""

    starts: int
    functions: int
    calls: int
    """Number of function starts whose caller is in another module, or in no module."""
    edges: int
    """Number of pairs of calling and called modules."""
    modules: list[Passed]
    """Modules in the order in which they were first entered."""


def walk_of(steps: Sequence[Step]) -> Walk:
    """Return the figures of a sequence of function starts."""
    crossing = [step for step in steps if step.caller != step.module]
    starts, calls_in = Counter(step.module for step in steps), Counter(step.module for step in crossing)
    visits: Counter[str] = Counter()
    latest: dict[int, str] = {}
    for step in steps:
        visits[step.module] += latest.get(step.thread) != step.module
        latest[step.thread] = step.module
    return Walk(
        starts=len(steps),
        functions=len({(step.module, step.function) for step in steps}),
        calls=len(crossing),
        edges=len({(step.caller, step.module) for step in crossing}),
        modules=[Passed(module=m, visits=visits[m], calls_in=calls_in[m], starts=n) for m, n in starts.items()],
    )
