"""End-to-end comparison of the gateway with the floor, a minimal bot, in the same run.

The floor (`floor_bot.py`) makes one SQLite commit per message. The fake services run in separate processes, which are
the same for both bots. The model streams 13 words, or sends them all at once.
"""

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Measure
from bench.subjects import AT_ONCE, WORD, Lab, Subject, floor, gateway, lab, lags_of
from bench.traffic import CHATS, Traffic, burst, bursts, sequence

Ask = Callable[[Lab, Subject], Awaitable[Traffic]]


async def run(quick: bool) -> list[Measure]:
    """Measure one chat and 50 chats, with models that stream, answer at once, or answer after two seconds."""
    rounds, again = (40, 1) if quick else (200, 3)
    measures = []
    for how, chunk in (("", WORD), (", a model that answers at once", AT_ONCE)):
        one, many, slow = await _beside_the_floor(
            lambda here, subject: sequence(here, subject, rounds),
            lambda here, subject: bursts(here, subject, again),
            _slow_model,
            chunk=chunk,
        )
        measures += [
            one.p50(f"one chat, p50{how}", 15 if how else 3.3),
            one.p99(f"one chat, p99{how}", 25),
            many.share(f"{CHATS} chats x 10{how}", 0.1 if how else 0.3),
        ]
        if not how:
            measures += [
                many.cpu(f"{CHATS} chats x 10: processor time per message", 3.8),
                one.cpu("one chat: processor time per message", 7.5),
                many.switches(f"{CHATS} chats x 10: context switches per message", 30),
                slow.share(f"{CHATS} chats x 2, a model that takes 2 s", 0.97),
            ]
    return measures


async def crowd(quick: bool) -> list[Measure]:
    """Measure many chats at once. Each must get all its answers."""
    again = 1 if quick else 3
    [some, many] = await _beside_the_floor(
        lambda here, subject: bursts(here, subject, again, chats=200, per_chat=5),
        lambda here, subject: bursts(here, subject, again, chats=1_000, per_chat=2),
    )
    return [some.share("200 chats x 5", 0.3), many.share("1,000 chats x 2", 0.3)]


async def streaming(quick: bool) -> list[Measure]:
    """Measure 200 chats whose answers stream for four seconds each. The gateway also sends and edits previews."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lags = folder / "lags.json"
        async with (
            lab() as here,
            gateway(here, folder, command=("bench.watched_gateway", str(lags), "0.005")) as subject,
        ):
            await here.speak(pause=4 / 13)
            await here.say(1, "Go on.")
            await here.answers(1)
            await lags_of(subject, lags)  # discard the delays from the start and the first answer
            found = await burst(here, subject, 1 if quick else 3, chats=200)
            late = await lags_of(subject, lags)
    name = "200 chats whose answers stream for 4 s"
    return [
        Measure(name=f"{name}: processor time per message", ours=found.cpu_ms, unit="ms", bar=8),
        Measure(name=f"{name}: longest stall of the event loop", ours=max(late) * 1e3, unit="ms", bar=50),
    ]


async def discord(quick: bool) -> list[Measure]:
    """Measure the same messages on Discord and on Telegram in the same run."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        for platform in ("telegram", "discord"):
            folder = Path(name) / platform
            folder.mkdir()
            async with lab() as here, gateway(here, folder, has_discord=True) as subject:
                await here.discord.post("config", {"rate_limits": False})
                await here.discord.get("gateway_log", event="op2", wait=10)
                await here.speak()
                here.platform = platform
                one = await sequence(here, subject, 40 if quick else 200)
                found.append((one, await bursts(here, subject, 1 if quick else 3)))
    one, many = (Beside(ours=on_discord, yardstick=here) for here, on_discord in zip(*found, strict=True))
    return [
        one.p50("Discord against Telegram: one chat, p50", 1.3),
        many.share(f"Discord against Telegram: {CHATS} chats x 10", 0.8),
        many.cpu_ratio(f"Discord against Telegram: {CHATS} chats x 10, processor time per message", 1.3),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Results of two bots for the same messages."""

    ours: Traffic
    yardstick: Traffic

    def p50(self, name: str, bar: float) -> Measure:
        return Measure(name=name, ours=self.ours.p50, unit="ms", yardstick=self.yardstick.p50, bar=bar)

    def p99(self, name: str, bar: float) -> Measure:
        return Measure(name=name, ours=self.ours.p99, unit="ms", yardstick=self.yardstick.p99, bar=bar)

    def share(self, name: str, bar: float) -> Measure:
        ours, yardstick = self.ours.per_second, self.yardstick.per_second
        return Measure(name=name, ours=ours, unit="messages/s", yardstick=yardstick, bar=bar, at_least=True)

    def cpu(self, name: str, bar: float) -> Measure:
        print(f"{name}: {self.ours.cpu_ms:.2f} ms, of the floor {self.yardstick.cpu_ms:.2f} ms")
        return Measure(name=name, ours=self.ours.cpu_ms, unit="ms", bar=bar)

    def cpu_ratio(self, name: str, bar: float) -> Measure:
        return Measure(name=name, ours=self.ours.cpu_ms, unit="ms", yardstick=self.yardstick.cpu_ms, bar=bar)

    def switches(self, name: str, bar: float) -> Measure:
        print(f"{name}: {self.ours.switches:.0f}, of the floor {self.yardstick.switches:.0f}")
        return Measure(name=name, ours=self.ours.switches, unit="switches", bar=bar)


async def _beside_the_floor(*asks: Ask, chunk: int = WORD) -> list[Beside]:
    """Run each of `asks` with the floor, then with the gateway. The model sends `chunk` characters at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            lab() as there,
            floor(there, folder, streams=chunk == WORD) as bot,
            lab() as here,
            gateway(here, folder) as subject,
        ):
            await there.speak(chunk=chunk)
            await here.speak(chunk=chunk)
            return [Beside(yardstick=await ask(there, bot), ours=await ask(here, subject)) for ask in asks]


async def _slow_model(here: Lab, subject: Subject) -> Traffic:
    await here.model.post("config", {"latency": 2.0})
    found = await burst(here, subject, 2, first_chat=2_000)
    await here.model.post("config", {"latency": 0})
    return found
