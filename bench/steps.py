"""Function starts of the product while a message is worked on, and the figures of such a sequence."""

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
"""Below it stands the frame that runs the event loop, which calls nothing of what the loop runs."""
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Step(NamedTuple):
    """Start of one function."""

    module: str
    function: str
    caller: str
    """Module of the nearest function of the product below it on the stack; empty for none."""
    thread: int


class Recorder:
    """Starts of the product's named functions while it is on; `hook` has to be the profile function of each thread."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        """`modules`: dotted names by file."""
        self._modules = modules
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle_tasks: set[asyncio.Task[Any] | None] = set()
        self._steps: list[Step] = []
        self._is_on = False
        self.last_at = 0.0
        """Monotonic seconds of the last start or resumption."""

    def start(self) -> None:
        self._tasks, self._steps, self._is_on = set(), [], True
        self.last_at = time.monotonic()

    def stop(self) -> list[Step]:
        self._is_on = False
        return self._steps

    def ignore(self) -> None:
        """Stop, and never again count what the tasks do that have started anything since."""
        self.stop()
        self._idle_tasks |= self._tasks

    @property
    def ignored(self) -> list[str]:
        """Names of the tasks that do not count."""
        return sorted(task.get_name() for task in self._idle_tasks if task is not None)

    def hook(self, frame: FrameType, event: str, _argument: object) -> None:
        """Profile function of a thread."""
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
    except RuntimeError:  # a thread without an event loop
        return None


def _is_resumed(code: CodeType, offset: int) -> bool:
    """True for a generator or coroutine that goes on: the argument of its RESUME instruction says so."""
    return bool(code.co_flags & RESUMED and code.co_code[offset + 1] & 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One module on a walk."""

    module: str
    visits: int
    """Starts of its functions that follow a start in another module on the same thread."""
    calls_in: int
    """Starts of its functions by another module, or by none."""
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Way of one message, as figures."""

    starts: int
    functions: int
    calls: int
    """Starts by another module, or by none."""
    edges: int
    """Pairs of modules between which there were such."""
    modules: list[Passed]
    """In the order in which they were first entered."""


def walk_of(steps: Sequence[Step]) -> Walk:
    """The figures of a sequence of function starts."""
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
