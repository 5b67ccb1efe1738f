"""Health checks and metrics over HTTP: `/healthz`, `/readyz` and `/metrics`, at the address `metrics.listen`.

Figures about the present, such as the length of a queue, are read when a program asks for them. Figures about the
past, such as the number of model calls, come from the log: a processor of structlog counts the events that describe
them, at any log level. No label names a chat or a person, and every label has a bounded number of values.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import structlog
from aiohttp import web
from msgspec.structs import fields
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import EventDict, WrappedLogger

from gateway import installed_version
from gateway.daemon.parts import Parts
from hermes_state.admin.overview import QueueStatus, load_queues
from hermes_state.compressions import Layer
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import ConfigError, StoreUnavailable
from hermes_state.values import CanonicalUsage, Millis
from platforms.http_server import http_server

log = structlog.get_logger()

MAX_ROUTES = 32
"""Maximum number of model servers with their own figures. All others together have the label `other`."""
CALL_SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
"""Upper bounds of the histogram of model calls, in seconds."""
READ_SECONDS = 2.0
"""Maximum seconds to wait for the database. By default, Prometheus waits 10 seconds for the answer."""


@asynccontextmanager
async def serve_metrics(parts: Parts, listen: str) -> AsyncIterator[None]:
    """Answer at the address `listen` while the block runs. Raises `ConfigError` if the address cannot be opened."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nothing uses
    registry = CollectorRegistry()
    events, pages = EventCounter(registry), _Pages(parts, registry)
    app = web.Application()
    app.router.add_get("/healthz", pages.show_health)
    app.router.add_get("/readyz", pages.show_readiness)
    app.router.add_get("/metrics", pages.show_metrics)
    host, _, port = listen.rpartition(":")
    async with AsyncExitStack() as stack:
        server = http_server(app, host.strip("[]"), int(port), stop_seconds=1.0)
        try:
            opened = await stack.enter_async_context(server)
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # without the address in asyncio's message
            raise ConfigError(
                f"metrics.listen: {listen} cannot be opened ({reason}). Set another address, or `off`."
            ) from error
        log.info("metrics.served", host=host, port=opened)
        stack.enter_context(events.attached())
        yield


# ---- pages


class _Pages:
    def __init__(self, parts: Parts, registry: CollectorRegistry) -> None:
        self._parts, self._registry, self._readings = parts, registry, _Readings()
        registry.register(self._readings)
        ProcessCollector(registry=registry)
        Info("hermes_build", "Version of the gateway.", registry=registry).info({"version": installed_version()})

    async def show_health(self, _request: web.Request) -> web.Response:
        """Answer 503 if a restart may help. An unreachable platform or a full disk is no reason for a restart."""
        return _verdict(["The database writer makes no progress."] if self._parts.heartbeat.is_stuck else [])

    async def show_readiness(self, _request: web.Request) -> web.Response:
        """Answer 503 if the gateway cannot answer every message now."""
        parts = self._parts
        if parts.signals.stopping.is_set():
            return _verdict(["The gateway is stopping."])
        if not parts.started.is_set():
            return _verdict(["The gateway is starting."])
        return _verdict(list(map(parts.live.redactor(), parts.heartbeat.faults())))

    async def show_metrics(self, _request: web.Request) -> web.Response:
        parts = self._parts
        values = read_now(parts)
        now = parts.clock.now()
        with suppress(StoreUnavailable, TimeoutError):  # the figures of the database are then missing
            async with asyncio.timeout(READ_SECONDS):  # the limit below begins when a reader is free
                values |= of_queues(await parts.store.read_within(READ_SECONDS, load_queues, now), now)
        self._readings.values = values
        self._readings.platforms = {name: one.health().is_ready for name, one in parts.adapters.supervised.items()}
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _verdict(reasons: list[str]) -> web.Response:
    return web.json_response({"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200)


# ---- figures about the present

READINGS: Final = {
    "hermes_ready": "1 if the gateway can answer every message, otherwise 0.",
    "hermes_turns_running": "Turns that run now.",
    "hermes_inbox_messages": "Accepted messages and commands that wait for a turn.",
    "hermes_inbox_oldest_seconds": "Age of the oldest waiting message.",
    "hermes_outbox_messages": "Replies that are not delivered yet.",
    "hermes_outbox_oldest_seconds": "Age of the oldest undelivered reply.",
    "hermes_schedules_late": "Schedules that should have fired more than a minute ago.",
    "hermes_schedules_late_seconds": "Delay of the latest schedule.",
    "hermes_database_bytes": "Size of the database.",
    "hermes_database_wal_bytes": "Size of SQLite's write-ahead log.",
    "hermes_loop_lag_seconds": "Delay of the event loop in the last second.",
    "hermes_loop_delay_seconds_total": "Sum of the delays of the event loop, measured every second.",
    "hermes_writer_queue": "Writes that wait for the database.",
    "hermes_writer_waiting_seconds": "Age of the oldest write that waits or runs.",
    "hermes_writer_batches_total": "Transactions, each with up to 256 writes.",
    "hermes_writes_total": "Writes in these transactions.",
}
"""Names and descriptions. A name that ends in `_total` is a counter, every other name a gauge."""


class _Readings(Collector):
    """Exports the values that were read last."""

    values: dict[str, float]
    platforms: Mapping[str, bool]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for name, text in READINGS.items():
            if name in self.values:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield family(name, text, value=self.values[name])
        connected = GaugeMetricFamily("hermes_platform_ready", "1 if the account is connected.", labels=["account"])
        for account, is_ready in self.platforms.items():
            connected.add_metric([account], is_ready)
        yield connected


def read_now(parts: Parts) -> dict[str, float]:
    """Return the figures that need no database."""
    pulse, vitals = parts.store.pulse, parts.heartbeat.vitals()
    values = {
        "hermes_ready": float(vitals["is_ready"]),
        "hermes_turns_running": len(parts.lanes.active),
        "hermes_loop_lag_seconds": float(vitals["loop_lag_seconds"]),
        "hermes_loop_delay_seconds_total": float(vitals["loop_lag_seconds_total"]),
        "hermes_writer_queue": pulse.waiting,
        "hermes_writer_waiting_seconds": pulse.oldest_wait_seconds,
        "hermes_writer_batches_total": pulse.batches,
        "hermes_writes_total": pulse.writes,
    }
    if isinstance(parts.store, SqliteStore):
        with suppress(OSError):  # the file was deleted
            values["hermes_database_wal_bytes"] = Path(f"{parts.store.path}-wal").stat().st_size
    return values


def of_queues(queues: QueueStatus, now: Millis) -> dict[str, float]:
    def age(since: Millis | None) -> float:
        return 0.0 if since is None else max(0.0, (now - since) / 1_000)

    return {
        "hermes_inbox_messages": queues.waiting,
        "hermes_inbox_oldest_seconds": age(queues.waiting_since),
        "hermes_outbox_messages": queues.undelivered,
        "hermes_outbox_oldest_seconds": age(queues.undelivered_since),
        "hermes_schedules_late": queues.late_schedules,
        "hermes_schedules_late_seconds": age(queues.late_since),
        "hermes_database_bytes": queues.database_bytes,
    }


# ---- figures about the past


class EventCounter:
    """Processor of structlog that counts events. It must not raise, because the caller only wants to log."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._turns = counter("hermes_turns", "Turns that ended.", "outcome")
        self._tokens = counter("hermes_model_tokens", "Tokens of model calls.", "route", "kind")
        self._cost = counter("hermes_model_cost_dollars", "Cost of calls with a known price.", "route")
        self._unpriced = counter("hermes_model_unpriced_calls", "Calls that used tokens at an unknown price.", "route")
        text = "Model calls and their duration."
        self._calls = Histogram(
            "hermes_model_call_seconds", text, ("route", "outcome"), buckets=CALL_SECONDS, registry=registry
        )
        self._compressions = counter("hermes_compressions", "Attempts to compress.", "layer", "outcome")
        self._saved = counter("hermes_compression_saved_tokens", "Tokens that compressions removed.", "layer")
        self._floods = counter("hermes_flood_waits", "Pauses before a reply that a platform demanded.")
        self._flood_seconds = counter("hermes_flood_wait_seconds", "Length of these pauses.")
        for outcome in TURN_OUTCOMES:  # a rate over a series that begins at 1 misses the first event
            self._turns.labels(outcome)
        for layer in LAYERS:
            self._saved.labels(layer)
            for outcome in COMPRESSION_OUTCOMES:
                self._compressions.labels(layer, outcome)
        self._routes: set[str] = set()
        self._counts: Mapping[object, Callable[[EventDict], None]] = {
            "model.called": self._count_call,
            **{event: partial(self._count_compression, outcome) for outcome, event in COMPRESSION_OUTCOMES.items()},
            "delivery.rate_limited": self._count_flood,
            **{f"turn.{outcome}": partial(self._count_turn, outcome) for outcome in TURN_OUTCOMES},
        }

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Count the events that are logged within the block, even those below the log level."""
        processors: list[Any] = structlog.get_config()["processors"]
        processors.insert(0, self)
        try:
            yield
        finally:
            processors.remove(self)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # plugins can log the same event differently
            if (count := self._counts.get(event.get("event"))) is not None:
                count(event)
        return event

    def _count_turn(self, outcome: str, _event: EventDict) -> None:
        self._turns.labels(outcome).inc()

    def _count_call(self, event: EventDict) -> None:
        route = event["route"] if event["route"] in self._routes or len(self._routes) < MAX_ROUTES else "other"
        self._routes.add(route)
        self._calls.labels(route, event["outcome"]).observe(event["took_ms"] / 1_000)
        for kind in () if event["usage"] is None else TOKEN_KINDS:
            self._tokens.labels(route, kind).inc(getattr(event["usage"], kind))
        if event["cost"] is not None:
            self._cost.labels(route).inc(event["cost"] / 1_000_000)
        elif event["usage"] is not None:
            self._unpriced.labels(route).inc()

    def _count_compression(self, outcome: str, event: EventDict) -> None:
        if (layer := event.get("layer")) in LAYERS:  # context engines from plugins log the same events
            self._compressions.labels(layer, outcome).inc()
            if outcome == "compressed":
                self._saved.labels(layer).inc(max(0, event["tokens_before"] - event["tokens_after"]))

    def _count_flood(self, event: EventDict) -> None:
        self._floods.inc()
        self._flood_seconds.inc(event["retry_after"])


TURN_OUTCOMES: Final = ("finished", "stopped", "failed", "crashed", "abandoned")
COMPRESSION_OUTCOMES: Final = {
    "compressed": "session.compressed",
    "not_needed": "compression.not_needed",
    "aborted": "compression.aborted",
}
"""Event of each outcome."""
LAYERS: Final = get_args(Layer)
TOKEN_KINDS: Final = tuple(kind.name for kind in fields(CanonicalUsage))
