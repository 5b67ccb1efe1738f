"""Path of one Telegram message through the product: which modules it enters, and how often.

The gateway runs in this process. The fake services are separate processes. The benchmark counts starts of named
functions (no lambdas or comprehensions) on all threads. It counts from the arrival of a message until its answer is
delivered and no function of the product runs any more. Work that also runs while nobody writes, such as the heartbeat,
does not count.
"""

import argparse
import asyncio
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bench.measure import aligned
from bench.source import ROOT, Module, product
from bench.steps import Recorder, Walk, walk_of
from bench.subjects import READY_SECONDS, Lab, gateway_environ, lab

WARM_UP = 2
"""Number of messages in a chat before the measured one."""
SETTLED_SECONDS = 0.4
"""Seconds without a function start after which a message counts as finished. This is enough for a model that answers at
once.
"""
IDLE_SECONDS = 2.5
"""Seconds in which every periodic task runs at least once."""
MAX_MESSAGES = 60
"""Maximum number of messages to write while waiting for an automatic compression."""
WINDOW = {
    "HERMES_MODEL__NAME": "lab-32k",
    "HERMES_MODEL__CONTEXT_LENGTH": "32768",
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "8192",
}
"""Settings of a model whose window a short conversation fills."""
FILLER = "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. " * 12


class Person:
    """Writes to the bot and waits for the results."""

    def __init__(self, here: Lab, recorder: Recorder) -> None:
        self.here = here
        self._recorder = recorder

    async def say(self, chat_id: int, text: str) -> Walk:
        """Write a message. Return its walk when all work has ended."""
        sent = await self.here.telegram.get("sent")
        self.here.seen = sent[-1]["seq"] if sent else 0
        self._recorder.start()
        await self.here.say(chat_id, text)
        await self.here.answers(1)
        await self._silence()
        return walk_of(self._recorder.stop())

    async def _silence(self) -> None:
        while (left := self._recorder.last_at + SETTLED_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(left)

    async def talk(self, chat_id: int, count: int) -> None:
        """Write `count` long messages."""
        for number in range(count):
            await self.say(chat_id, f"Message {number}. {FILLER}")

    async def wait(self) -> None:
        """Write nothing for a while. Tasks that run meanwhile belong to no message."""
        self._recorder.start()
        await asyncio.sleep(IDLE_SECONDS)
        self._recorder.ignore()

    async def summaries(self) -> int:
        """Return the number of summaries that the model has been asked for."""
        return len(await self.here.model.get("requests", summary="true"))


async def plain_message(person: Person) -> Walk:
    """Return the walk of a message in a chat with some earlier messages."""
    for number in range(WARM_UP):
        await person.say(1, f"hello {number}")
    return await person.say(1, "and now?")


async def compress_by_hand(person: Person) -> Walk:
    """Return the walk of `/compress` after ten messages and their answers."""
    await person.talk(2, 10)
    return await person.say(2, "/compress")


async def compress_before_the_call(person: Person) -> Walk:
    """Return the walk of the message that makes a conversation too long."""
    before = await person.summaries()
    for number in range(MAX_MESSAGES):
        walk = await person.say(3, f"Message {number}. {FILLER}")
        if await person.summaries() > before:
            return walk
    raise RuntimeError(f"{MAX_MESSAGES} messages led to no compression")


async def refused_by_the_provider(person: Person) -> Walk:
    """Return the walk of a message that the provider refuses because the model's window is too small."""
    await person.talk(4, 10)
    [*_, last] = await person.here.model.get("requests")
    size = {"context": last["prompt_tokens"], "max_output": 1_024}
    await person.here.model.post("models", {WINDOW["HERMES_MODEL__NAME"]: size})
    return await person.say(4, "and now?")


WALKS: dict[str, Callable[[Person], Awaitable[Walk]]] = {
    "one plain message, warm": plain_message,
    "/compress (20 messages)": compress_by_hand,
    "message with compression before the call": compress_before_the_call,
    "message refused by the provider (overflow)": refused_by_the_provider,
}
"""The last walk must come last, because the gateway learns the model's real size from it."""


def walk(names: Sequence[str], modules: Sequence[Module]) -> tuple[dict[str, Walk], list[str]]:
    """Run the named walks. Return them, and the names of the ignored tasks.

    Replaces the environment and the arguments of this process.
    """
    recorder = Recorder({str(ROOT / module.path): module.name for module in modules})
    environ: Future[dict[str, str]] = Future()
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as threads:
        walks = threads.submit(asyncio.run, _visit(recorder, Path(name), names, environ, ended))
        between = environ.result()
        os.environ.clear()
        os.environ.update(between)
        log = Path(name) / "gateway.log"
        with log.open("w") as errors, contextlib.redirect_stderr(errors):
            _serve(recorder)
        ended.set()
        try:
            return walks.result(), recorder.ignored
        except Exception:
            print(log.read_text(), file=sys.stderr)
            raise


async def _visit(
    recorder: Recorder, folder: Path, names: Sequence[str], environ: Future[dict[str, str]], ended: threading.Event
) -> dict[str, Walk]:
    """Run the fake services and the walks, then stop the gateway.

    `environ` receives the gateway's environment.
    """
    try:
        async with lab() as here:
            # asyncio's own loop, because uvloop has no Python frames for `LOOP` to find
            environ.set_result({**gateway_environ(here, folder), **WINDOW, "HERMES_EVENT_LOOP": "asyncio"})
            try:
                if not await here.telegram.get("calls", method="getUpdates", count=1, wait=READY_SECONDS):
                    raise RuntimeError("the gateway has not started")
                person = Person(here, recorder)
                await person.say(9, "hello")  # the first message opens connections
                await person.wait()
                return {name: await WALKS[name](person) for name in names}
            finally:
                if not ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as error:
        if not environ.done():
            environ.set_exception(error)
        raise


def _serve(recorder: Recorder) -> None:
    """Run the gateway with its command, until it is told to stop."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    command, target = next(iter(scripts.items()))
    module, _, function = target.partition(":")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # until the gateway installs its own handler
    sys.argv = [command, "run"]
    threading.setprofile(recorder.hook)
    sys.setprofile(recorder.hook)
    try:
        getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        if end.code:
            print(f"{command} ended with {end.code}", file=sys.stderr)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def report(walks: Mapping[str, Walk], modules: Sequence[Module]) -> str:
    """Return tables of the walks: totals, and the modules of each walk."""
    head = ["walk", "function starts", "functions", "modules", "calls between modules", "pairs of modules"]
    totals = [
        [name, *(f"{n:,}" for n in (one.starts, one.functions, len(one.modules), one.calls, one.edges))]
        for name, one in walks.items()
    ]
    folder_of = {module.name: module.name.rpartition(".")[0] for module in modules if not module.is_package}
    there = Counter(folder_of.values())
    parts = [aligned([head, *totals])]
    for name, one in walks.items():
        passed = Counter(folder_of[row.module] for row in one.modules if row.module in folder_of)
        folders = ", ".join(f"{folder} {count} of {there[folder]}" for folder, count in sorted(passed.items()))
        rows = [[row.module, str(row.visits), str(row.calls_in), str(row.starts)] for row in one.modules]
        parts.append(f"{name}; modules by folder: {folders}")
        parts.append(aligned([["module, in the order of its first start", "visits", "calls in", "starts"], *rows]))
    return "\n\n".join(parts)


def main() -> None:
    """Run the walks and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also a command and messages that compress")
    given = parser.parse_args()
    modules = product()
    walks, ignored = walk(list(WALKS) if given.all else list(WALKS)[:1], modules)
    print(f"Left out, as they run while nobody writes: {', '.join(ignored) or 'nothing'}", end="\n\n")
    print(report(walks, modules))


if __name__ == "__main__":
    main()
