"""Health checks and metrics, read over HTTP from a real daemon with the parser of `prometheus-client`."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.databases import IS_POSTGRES
from tests.e2e.test_compression import SMALL, WORKING, talk
from tests.e2e.world import World

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "docs/grafana/hermes-gateway.json"
PAGE = ROOT / "docs/how-to/monitor.md"
STATUS_ROWS = ["Gateway", "State", "Model", "Platforms", "Work", "Today", "Last hour"]
PRICES = '{"lab-*": {"input": 2, "output": 8}}'
NAME = r"\b(?:hermes|process)_[a-z_]+\b"


class Scraper:
    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, path: str) -> tuple[int, str]:
        [port] = re.findall(r'"port":(\d+)[^\n]*"metrics\.served"', self._world.gateway.log_text())[-1:]
        async with self._world.http.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async def verdict(self, path: str) -> tuple[int, list[str]]:
        status, text = await self.get(path)
        return status, json.loads(text)["reasons"]

    async def samples(self) -> dict[str, float]:
        """Return every value by its name and labels, such as `hermes_turns_total{outcome=finished}`."""
        status, text = await self.get("/metrics")
        assert status == 200
        return {
            f"{one.name}{{{','.join(f'{key}={value}' for key, value in sorted(one.labels.items()))}}}": one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    async def names(self) -> set[str]:
        """Return the names of all metrics, as queries use them, even if a metric has no values yet."""
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
        families = text_string_to_metric_families((await self.get("/metrics"))[1])
        return {family.name + ending for family in families for ending in endings.get(family.type, [""])}


def used_by(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from re.findall(NAME, inner) if key in ("expr", "query") else used_by(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from used_by(inner)


async def test_metrics_agree_with_the_database_and_name_no_chat(world: World) -> None:
    await world.tg.post("faults", {"kind": "429", "match": "sendMessage$", "retry_after": 1, "times": 1})
    await world.script(match="once wrong", error={"kind": "500"}, times=1)
    # Events are counted even below the log level.
    await world.gateway.start(
        **SMALL, HERMES_METRICS__LISTEN="127.0.0.1:0", HERMES_LOGGING__LEVEL="info", HERMES_COSTS__PRICES=PRICES
    )
    scraper = Scraper(world)
    assert await scraper.verdict("/healthz") == (200, [])
    await talk(world, 12)
    assert await scraper.verdict("/readyz") == (200, [])
    await world.ask("once wrong", "echo: .*once wrong")
    await world.ask("/compress", f"^{WORKING}")
    assert await world.replies(1, match="^Compressed: ")
    found = await scraper.samples()
    assert found["hermes_turns_total{outcome=finished}"] == 13
    calls = world.query("SELECT route, outcome, count(*) FROM model_calls GROUP BY 1, 2 ORDER BY 1, 2")
    assert len(calls) == 2
    for route, outcome, count in calls:
        assert found[f"hermes_model_call_seconds_count{{outcome={outcome},route={route}}}"] == count
    [(route, tokens)] = world.query("SELECT route, sum(input_tokens) FROM model_calls WHERE outcome = 'ok' GROUP BY 1")
    assert found[f"hermes_model_tokens_total{{kind=input,route={route}}}"] == tokens
    [(cost,)] = world.query("SELECT sum(cost_microusd) FROM model_calls")
    assert found[f"hermes_model_cost_dollars_total{{route={route}}}"] == pytest.approx(float(cost) / 1e6)
    [(saved,)] = world.query("SELECT tokens_before - tokens_after FROM compressions")
    assert found["hermes_compressions_total{layer=manual,outcome=compressed}"] == 1
    assert found["hermes_compression_saved_tokens_total{layer=manual}"] == saved > 0
    assert found["hermes_flood_waits_total{}"] == 1
    assert found["hermes_flood_wait_seconds_total{}"] == 1
    assert found["hermes_writer_batches_total{}"] > 0
    assert found["hermes_database_bytes{}"] > 100_000
    assert found["hermes_inbox_messages{}"] == found["hermes_inbox_oldest_seconds{}"] == 0
    assert found["hermes_platform_ready{account=telegram}"] == 1
    labels = {key for name in found for key in re.findall(r"(\w+)=", name)}
    assert labels <= {"account", "implementation", "kind", "layer", "le", "outcome", "route", "version"}
    exported = await scraper.names() | ({"hermes_database_wal_bytes"} if IS_POSTGRES else set())
    for source in (set(used_by(json.loads(BOARD.read_text()))), set(re.findall(rf"`({NAME})`", PAGE.read_text()))):
        assert source - exported == set(), "the board and the page name only what is exported"
        unnamed = {name for name in exported if name.startswith("hermes_")} - source
        assert unnamed <= {"hermes_build_info", "hermes_model_call_seconds_sum"}


async def test_a_taken_address_ends_with_78_and_readiness_says_what_is_missing(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        world.gateway.environ["HERMES_METRICS__LISTEN"] = f"127.0.0.1:{taken.getsockname()[1]}"
        code, output = await world.command_line("run")
    assert code == 78
    assert output.count("configuration: metrics.listen: 127.0.0.1:") == 1
    assert "cannot be opened (address already in use). Set another address, or `off`." in output
    await world.tg.post("faults", {"kind": "status", "status": 502, "match": "getUpdates$", "times": -1})
    await world.gateway.start()
    scraper = Scraper(world)
    async with asyncio.timeout(20):
        while "waiting before the next attempt" not in (reason := str(await scraper.verdict("/readyz"))):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the other process has no event to wait for
    assert re.match(r"\(503, \['telegram: waiting before the next attempt\. ", reason), reason
    assert await scraper.verdict("/healthz") == (200, []), "a restart would not help"
    assert (await scraper.samples())["hermes_ready{}"] == 0
    code, said = await world.command_line("status")
    assert code == 0
    rows = [row for row in re.findall(r"^(\w[\w ]*):", said, re.MULTILINE) if row != "Node"]  # only in a cluster
    assert rows == STATUS_ROWS
    assert "but not ready, version " in said
    assert f"process {world.gateway.process.pid if world.gateway.process else 0}" in said
    assert "telegram: waiting before the next attempt. " in said
    assert re.search(r"^Last hour: +\S.* .warning telegram\.poll_failed, \d times?, last at 20", said, re.MULTILINE)
