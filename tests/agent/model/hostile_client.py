"""Client process for a hostile provider. Requests each kind of answer once, and reports the memory used.

python -m tests.agent.model.hostile_client PROTOCOL ADDRESS [KIND …]

Prints a line of JSON per kind: the raised error, megabytes of memory when idle and at the peak, seconds.
"""

import asyncio
import json
import re
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

import structlog

from agent.model.audio import TranscriptionModel
from agent.model.base import Endpoint
from agent.model.errors import sentence_for
from hermes_state.errors import ModelError, ModelStallTimeout
from tests.agent.model.asking import request
from tests.agent.model.ways import WAYS
from tests.fakes.hostile_provider import address, kinds


def memory_mb(name: str) -> float:
    """Return a memory figure: `VmRSS` is the current use, `VmHWM` the peak since the last reset."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1_000


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def run_client(protocol: str, url: str, chosen: list[str], told: Path) -> None:
    """Run a forked client, which writes its lines to the file `told`."""
    with told.open("w") as lines:
        asyncio.run(try_all(protocol, url, chosen, lines))


async def try_all(protocol: str, url: str, chosen: list[str], told: TextIO) -> None:
    idle = None
    for kind in chosen[:1] + chosen:  # the first kind twice, because the first call loads modules
        reset_peak()
        began = time.perf_counter()
        # Short time limits only for answers that never end.
        patience_seconds = 1.0 if kinds(protocol)[kind].raised == ModelStallTimeout.__name__ else 30.0
        raised, said = await asyncio.wait_for(_failure(protocol, address(url, kind), patience_seconds), 60)
        peak = memory_mb("VmHWM")
        if idle is None:
            idle = memory_mb("VmRSS")
            continue
        took = time.perf_counter() - began
        row = {"kind": kind, "error": raised, "said": said, "idle": idle, "peak": peak, "seconds": took}
        print(json.dumps(row), file=told, flush=True)


async def _failure(protocol: str, url: str, patience_seconds: float) -> tuple[str, str]:
    """Return the name of the raised error and its sentence."""
    waits = {"read_seconds": patience_seconds, "first_piece_seconds": patience_seconds}
    way = next((way for way in WAYS if way.protocol == protocol), None)
    async with AsyncExitStack() as stack:
        try:
            if way is None:
                model = TranscriptionModel(Endpoint(model="lab", api_key="lab-key", base_url=url, **waits))
                stack.push_async_callback(model.close)
                await model.transcribe(b"sound", "voice.ogg")
            else:
                chat_model = await stack.enter_async_context(way.dialled(url, **waits))
                await chat_model.fetch_limits()
                await chat_model.complete(request(), lambda text: None)
        except ModelError as error:
            return type(error).__name__, sentence_for(error)
    return "", ""


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    name, root, *only = sys.argv[1:]
    asyncio.run(try_all(name, root, only or list(kinds(name)), sys.stdout))
