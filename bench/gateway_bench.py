"""End-to-end comparison of the gateway with the floor, a minimal bot, in the same run.

The floor (`floor_bot.py`) makes one SQLite commit per message. The fake services run in separate processes, which are
the same for both bots. The model streams 13 words, or sends them all at once. The two bots are measured in turns.
"""

import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from bench.measure import Measure, in_turns, percentile
from bench.subjects import AT_ONCE, WORD, Lab, Subject, floor, gateway, lab, lags_of
from bench.traffic import CHATS, Traffic, burst, sequence

Ask = Callable[[Lab, Subject, int], Awaitable[Traffic]]
"""Measures a bot. The number is that of the round."""
PAIRS, FEW_PAIRS, QUICK_PAIRS = 5, 3, 1
"""Number of rounds: usually, if a round takes several seconds, and of a quick run."""


async def run(quick: bool) -> list[Measure]:
    """Measure one chat and 50 chats, with models that stream, answer at once, or answer after two seconds."""
    pairs = QUICK_PAIRS if quick else PAIRS
    asks: dict[Ask, int] = {_one_chat: pairs, partial(_burst, CHATS, 10): pairs}
    one, many, slow = await _beside_the_floor({**asks, _slow_model: QUICK_PAIRS if quick else FEW_PAIRS})
    measures = [
        one.p50("one chat, p50", 2.5),
        one.p99("one chat, p99", 5),
        many.share(f"{CHATS} chats x 10", 0.43),
        many.cpu(f"{CHATS} chats x 10: processor time per message", 2.7),
        one.cpu("one chat: processor time per message", 7.5),
        many.switches(f"{CHATS} chats x 10: context switches per message", 30),
        slow.share(f"{CHATS} chats x 2, a model that takes 2 s", 0.98),
    ]
    one, many = await _beside_the_floor(asks, chunk=AT_ONCE)
    how = "a model that answers at once"
    return [
        *measures,
        one.p50(f"one chat, p50, {how}", 3.3),
        one.p99(f"one chat, p99, {how}", 5),
        many.share(f"{CHATS} chats x 10, {how}", 0.3),
    ]


async def crowd(quick: bool) -> list[Measure]:
    """Measure many chats at once. Each must get all its answers."""
    pairs = QUICK_PAIRS if quick else FEW_PAIRS
    some, many = await _beside_the_floor({partial(_burst, 200, 5): pairs, partial(_burst, 1_000, 2): pairs})
    return [some.share("200 chats x 5", 0.3), many.share("1,000 chats x 2", 0.3)]


async def streaming(quick: bool) -> list[Measure]:
    """Measure 200 chats with answers of 33 pieces in four seconds. The gateway also sends and edits previews."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lags = folder / "lags.json"
        async with (
            lab() as here,
            gateway(here, folder, command=("bench.watched_gateway", str(lags), "0.005")) as subject,
        ):
            await here.speak(chunk=2, pause=4 / 33)
            await here.say(1, "Go on.")
            await here.answers(1)
            await lags_of(subject, lags)  # discard the delays from the start and the first answer
            rounds = range(QUICK_PAIRS if quick else PAIRS)
            found = [await burst(here, subject, 1, chats=200, first_chat=1_000 * (one + 1)) for one in rounds]
            late = await lags_of(subject, lags)
    name = "200 chats whose answers stream for 4 s in 33 pieces"
    return [
        Measure(name=f"{name}: processor time per message", ours=[one.cpu_ms for one in found], unit="ms", bar=6.5),
        Measure(name=f"{name}: longest stall of the event loop", ours=max(late) * 1e3, unit="ms", bar=50),
    ]


async def discord(quick: bool) -> list[Measure]:
    """Measure the same messages on Discord and on Telegram, which one gateway serves."""
    pairs = QUICK_PAIRS if quick else PAIRS
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here, gateway(here, Path(name), has_discord=True) as subject:
            await here.discord.post("config", {"rate_limits": False})
            await here.discord.get("gateway_log", event="op2", wait=10)
            await here.speak()
            sides = (here, subject), (replace(here, platform="discord"), subject)
            one, many = [await _in_turns(ask, pairs, *sides) for ask in (_one_chat, partial(_burst, CHATS, 10))]
    name = f"Discord against Telegram: {CHATS} chats x 10"
    return [
        one.p50("Discord against Telegram: one chat, p50", 1.3),
        many.share(name, 0.8),
        many.cpu_ratio(f"{name}, processor time per message", 1.3),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Results of two bots for the same messages, one for each round."""

    yardstick: Sequence[Traffic]
    ours: Sequence[Traffic]

    def p50(self, name: str, bar: float) -> Measure:
        return self._ratio("p50", name, "ms", bar)

    def p99(self, name: str, bar: float) -> Measure:
        """Return the measure of all rounds together, because one round has too few messages."""
        ours, yardstick = (
            percentile([took for one in side for took in one.took], 0.99) for side in (self.ours, self.yardstick)
        )
        return Measure(name=name, ours=ours, unit="ms", yardstick=yardstick, bar=bar)

    def share(self, name: str, bar: float) -> Measure:
        return replace(self._ratio("per_second", name, "messages/s", bar), at_least=True)

    def cpu_ratio(self, name: str, bar: float) -> Measure:
        return self._ratio("cpu_ms", name, "ms", bar)

    def cpu(self, name: str, bar: float) -> Measure:
        return self._alone("cpu_ms", name, "ms", bar)

    def switches(self, name: str, bar: float) -> Measure:
        return self._alone("switches", name, "switches", bar)

    def _ratio(self, figure: str, name: str, unit: str, bar: float) -> Measure:
        ours, yardstick = (list(map(attrgetter(figure), side)) for side in (self.ours, self.yardstick))
        return Measure(name=name, ours=ours, unit=unit, yardstick=yardstick, bar=bar)

    def _alone(self, figure: str, name: str, unit: str, bar: float) -> Measure:
        """Print the yardstick, because the bar limits only our figure."""
        print(f"{name}, of the floor: {statistics.median(map(attrgetter(figure), self.yardstick)):.3g} {unit}")
        return replace(self._ratio(figure, name, unit, bar), yardstick=None)


async def _beside_the_floor(asks: Mapping[Ask, int], chunk: int = WORD) -> list[Beside]:
    """Measure the floor and the gateway in turns, in this number of rounds for each of `asks`.

    The model sends `chunk` characters at a time.
    """
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
            return [await _in_turns(ask, rounds, (there, bot), (here, subject)) for ask, rounds in asks.items()]


async def _in_turns(ask: Ask, rounds: int, yardstick: tuple[Lab, Subject], ours: tuple[Lab, Subject]) -> Beside:
    theirs, our = await in_turns(rounds, partial(ask, *yardstick), partial(ask, *ours))
    return Beside(yardstick=theirs, ours=our)


async def _one_chat(here: Lab, subject: Subject, _: int) -> Traffic:
    return await sequence(here, subject, 40)


async def _burst(chats: int, per_chat: int, here: Lab, subject: Subject, number: int) -> Traffic:
    """Measure messages in many chats at once. Each round uses different chats."""
    return await burst(here, subject, per_chat, chats=chats, first_chat=10_000 * (number + 1))


async def _slow_model(here: Lab, subject: Subject, number: int) -> Traffic:
    await here.model.post("config", {"latency": 2.0})
    found = await burst(here, subject, 2, first_chat=2_000 + 100 * number)
    await here.model.post("config", {"latency": 0})
    return found
