"""Measure the memory that hostile replies use. A separate process reads one reply of each kind with each protocol."""

import asyncio
import json
import sys

from bench.measure import Measure
from bench.subjects import ROOT
from tests.fakes.hostile_provider import hostile_provider

BAR = 40.0
"""Maximum memory above the idle process, in MB."""
PROTOCOLS = ("chat_completions", "responses", "anthropic", "transcription")


async def run(quick: bool) -> list[Measure]:
    """Measure the reply that uses most memory. `quick`: with only one protocol."""
    worst: tuple[float, str] = (0.0, "")
    for protocol in PROTOCOLS[:1] if quick else PROTOCOLS:
        async with hostile_provider(protocol) as url:
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.agent.model.hostile_client", protocol, url),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=ROOT,
            )
            told, _ = await client.communicate()
        if client.returncode != 0:
            raise SystemExit(f"the client of the hostile provider ended with {client.returncode}")
        rows = [json.loads(line) for line in told.splitlines()]
        worst = max([worst, *((row["peak"] - row["idle"], f"{protocol}, {row['kind']}") for row in rows)])
    print(f"hostile replies: {worst[1]} took the most memory")
    name = "one hostile reply of each kind: peak memory above idle"
    return [Measure(name=name, ours=worst[0], unit="MB", bar=BAR)]
