"""Metrics without a daemon: a busy database, series before the first event, and events of plugins."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry

from gateway.daemon import metrics
from hermes_state.store.writer import Store
from hermes_state.values import SystemClock


async def test_a_busy_database_delays_no_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "READ_SECONDS", 0.2)
    vitals = {"is_ready": True, "loop_lag_seconds": 0, "loop_lag_seconds_total": 0}
    parts: Any = SimpleNamespace(
        clock=SystemClock(),
        store=store,
        heartbeat=SimpleNamespace(vitals=lambda: vitals),
        lanes=SimpleNamespace(active={}),
        adapters=SimpleNamespace(supervised={}),
    )
    pages, request = metrics._Pages(parts, CollectorRegistry()), make_mocked_request("GET", "/metrics")
    assert "hermes_inbox_messages" in str((await pages.show_metrics(request)).text)
    release = threading.Event()
    reading = [asyncio.ensure_future(store.read_within(20, lambda _db: release.wait(20))) for _ in range(2)]
    await asyncio.sleep(0)  # both readers have their job
    try:
        async with asyncio.timeout(10):
            found = str((await pages.show_metrics(request)).text)
    finally:
        release.set()
    assert all(await asyncio.gather(*reading))
    assert "hermes_ready 1.0" in found
    assert "hermes_inbox_messages" not in found


def test_series_begin_at_zero_and_events_of_plugins_can_lack_fields() -> None:
    registry = CollectorRegistry()
    events = metrics.EventCounter(registry)
    for outcome in ("finished", "stopped", "failed", "crashed", "abandoned"):
        assert registry.get_sample_value("hermes_turns_total", {"outcome": outcome}) == 0
    labels = {"layer": "manual", "outcome": "aborted"}
    assert registry.get_sample_value("hermes_compressions_total", labels) == 0
    assert registry.get_sample_value("hermes_compression_saved_tokens_total", {"layer": "manual"}) == 0
    for event in (
        {"event": "session.compressed", "layer": "manual"},
        {"event": "session.compressed", "layer": []},
        {"event": "model.called", "route": "a", "outcome": "ok", "took_ms": "1", "usage": None, "cost": None},
        {"event": "model.called", "route": "a", "outcome": "ok", "took_ms": 1, "usage": {}, "cost": None},
        {"event": "delivery.rate_limited", "retry_after": -1},
        {"event": ["turn.failed"]},
        {"event": "turn.failed"},
    ):
        assert events(None, "info", dict(event)) == event
    assert registry.get_sample_value("hermes_turns_total", {"outcome": "failed"}) == 1
