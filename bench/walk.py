"""Path of one Telegram message through the product: the modules it passes, and how often each of them is entered.

The daemon runs in this process, between fake services that are processes of their own. Counted are starts of named
functions on all threads (no lambdas and comprehensions), from the arrival of a message until its answer is delivered
and nothing of the product runs any more. What also runs while nobody writes, such as the heartbeat, does not count.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
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
from dataclasses import asdict
from pathlib import Path

from bench.measure import aligned
from bench.source import ROOT, Module, product
from bench.steps import Recorder, Walk, walk_of
from bench.subjects import READY_SECONDS, Lab, gateway_environ, lab

WARM_UP = 2
"""Messages of a chat before the one that is walked."""
SETTLED_SECONDS = 0.4
"""Silence after which everything that a message caused has ended: loopback and a model that answers at once."""
IDLE_SECONDS = 2.5
"""Time in which whatever runs by the clock shows itself once."""
MAX_MESSAGES = 60
"""Messages of a chat after which a compression by itself is not waited for any more."""
WINDOW = {
    "HERMES_MODEL__NAME": "lab-32k",
    "HERMES_MODEL__CONTEXT_LENGTH": "32768",
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "8192",
}
"""A model that a short conversation fills."""
FILLER = "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. " * 12


class Person:
    """Writes to the bot and follows what becomes of it."""

    def __init__(self, here: Lab, recorder: Recorder) -> None:
        self.here = here
        self._recorder = recorder

    async def say(self, chat_id: int, text: str) -> Walk:
        """Say something; returns the walk once everything is settled."""
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
        """Say so many long things."""
        for number in range(count):
            await self.say(chat_id, f"Message {number}. {FILLER}")

    async def wait(self) -> None:
        """Write nothing for a while: what runs then is none of a message's."""
        self._recorder.start()
        await asyncio.sleep(IDLE_SECONDS)
        self._recorder.ignore()

    async def summaries(self) -> int:
        """Summaries that the model was asked for so far."""
        return len(await self.here.model.get("requests", summary="true"))


async def plain_message(person: Person) -> Walk:
    """A message in a chat that has seen a few."""
    for number in range(WARM_UP):
        await person.say(1, f"hello {number}")
    return await person.say(1, "and now?")


async def compress_by_hand(person: Person) -> Walk:
    """`/compress` after ten messages and their answers."""
    await person.talk(2, 10)
    return await person.say(2, "/compress")


async def compress_before_the_call(person: Person) -> Walk:
    """The message at which a conversation has become too long."""
    before = await person.summaries()
    for number in range(MAX_MESSAGES):
        walk = await person.say(3, f"Message {number}. {FILLER}")
        if await person.summaries() > before:
            return walk
    raise RuntimeError(f"{MAX_MESSAGES} messages led to no compression")


async def refused_by_the_provider(person: Person) -> Walk:
    """A message for which the model turns out to be too small."""
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
"""The last one changes what is known of the model."""


def walk(names: Sequence[str], modules: Sequence[Module]) -> tuple[dict[str, Walk], list[str]]:
    """Run these walks over the modules; returns them, and the names of the tasks that were left out.

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
    """Run the fakes, hand over the `environ` of a daemon between them, and stop it when all has been said."""
    try:
        async with lab() as here:
            # uvloop's frames do not show what runs the loop.
            environ.set_result({**gateway_environ(here, folder), **WINDOW, "HERMES_EVENT_LOOP": "asyncio"})
            try:
                if not await here.telegram.get("calls", method="getUpdates", count=1, wait=READY_SECONDS):
                    raise RuntimeError("the gateway has not started")
                person = Person(here, recorder)
                await person.say(9, "hello")  # the first message of all opens connections
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
    """Run the daemon as its command does, until it is told to stop."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    command, target = next(iter(scripts.items()))
    module, _, function = target.partition(":")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # until the daemon has a handler of its own
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
    """The walks as tables: totals, and the modules of each."""
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
    """Walk, and print what was passed."""
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also a command and messages that compress")
    parser.add_argument("--json", action="store_true", help="the same as data")
    given = parser.parse_args()
    modules = product()
    walks, ignored = walk(list(WALKS) if given.all else list(WALKS)[:1], modules)
    if given.json:
        print(json.dumps({name: asdict(one) for name, one in walks.items()}, indent=2))
    else:
        print(f"Left out, as they run while nobody writes: {', '.join(ignored) or 'nothing'}", end="\n\n")
        print(report(walks, modules))


if __name__ == "__main__":
    main()
