"""Measure a gateway with three bots and three agents against one with one bot and one agent."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.life_bench import SETTLE_SECONDS
from bench.measure import Measure, in_turns
from bench.subjects import TOKEN, Lab, Subject, gateway, lab
from bench.traffic import burst
from tests.fakes.proc import Proc

AGENTS = {
    "ops": {"persona": "You look after servers.", "model": "lab-8000k", "tools": {"approval": {"writes": "allow"}}},
    "support": {
        "persona": "You help our customers.",
        "tools": {"use": {"write_file": "off"}},
        "costs": {"daily_cap": 5},
    },
    "desk": {"persona": "You are at the desk.", "compression": {"enabled": False}},
}
ROUTES = [
    {"agent": "ops", "account": "telegram"},
    {"agent": "support", "chat": "telegram/second"},
    {"agent": "desk", "chat": "telegram/third"},
]


async def run(quick: bool) -> list[Measure]:
    """Measure idle memory, and the processor time of messages to the first bot."""
    async with _idle(is_several=False) as one, _idle(is_several=True) as several:
        memory = [subject.memory_mb for _, subject in (one, several)]
        cpu = await in_turns(6 if quick else 20, *(partial(_cpu_ms, *side) for side in (one, several)))
    name = "three bots and three agents, against one"
    return [
        Measure(name=f"{name}: idle memory", ours=memory[1], unit="MB", yardstick=memory[0], bar=1, slack=4),
        Measure(name=f"{name}: processor time per message", ours=cpu[1], unit="ms", yardstick=cpu[0], bar=1.05),
    ]


async def _cpu_ms(here: Lab, subject: Subject, number: int) -> float:
    return (await burst(here, subject, 4, first_chat=1_000 * (number + 1))).cpu_ms


@asynccontextmanager
async def _idle(*, is_several: bool) -> AsyncIterator[tuple[Lab, Subject]]:
    """Yield an idle gateway. `is_several`: True if it has three bots and three agents."""
    tokens = {"first": TOKEN, "second": "2:SECOND", "third": "3:THIRD"}
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here, Proc("fake_telegram.py") as others:
            bots = [
                {"name": bot, "token": token, "base_url": (here.telegram if token == TOKEN else others).url}
                for bot, token in tokens.items()
            ]
            changes = {
                "HERMES_TELEGRAM__ACCOUNTS": json.dumps(bots),
                "HERMES_AGENTS": json.dumps(AGENTS),
                "HERMES_ROUTES": json.dumps(ROUTES),
            }
            async with gateway(here, Path(name), changes=changes if is_several else {}) as subject:
                await here.speak()
                for service, count in ((here.telegram, 1), *([(others, 2)] if is_several else [])):
                    await service.get("calls", method="getUpdates", count=count, wait=30)
                await asyncio.sleep(SETTLE_SECONDS)
                yield here, subject
