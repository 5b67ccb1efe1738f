"""Questions to the provider about the size of its model: when, how often, and their effect."""

import asyncio

import pytest

from agent.context.model_handle import MAX_OFFER_AGE_MS, MAX_SILENCE_AGE_MS, UNREACHED_BACKOFF, LearnedProfile
from agent.model.base import ModelLimits
from agent.model.catalog import SizeSource
from hermes_state.models.profiles import Calibration, save_calibration
from hermes_state.store.writer import Store
from hermes_state.values import LineageId, Millis
from tests.agent.context.contexts import SetClock
from tests.agent.model.asking import said

HERE = LineageId(1)
SILENT = ModelLimits()


class Provider:
    """A provider that states the size of its model and counts the questions."""

    def __init__(self, answer: ModelLimits | None) -> None:
        self.answer = answer
        self.asked = 0
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self) -> ModelLimits | None:
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        return self.answer


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def book(
    store: Store, clock: SetClock, provider: Provider, configured: ModelLimits = SILENT, model: str = "my-model"
) -> LearnedProfile:
    return LearnedProfile(store, "lab", model, configured, clock, fetch=provider)


async def test_concurrent_calls_ask_the_provider_once(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536, 8_000))
    profiles = book(store, clock, provider)
    await profiles.load()
    assert (provider.asked, profiles.window) == (0, 32_768), "reading does not ask the provider"
    provider.may_answer.clear()
    asking = [asyncio.create_task(profiles.ask()) for _ in range(5)]
    await asyncio.sleep(0.01)
    provider.may_answer.set()
    await asyncio.gather(*asking)
    await profiles.ask()
    assert (provider.asked, profiles.window, profiles.capacity.max_output_tokens) == (1, 65_536, 8_000)
    assert profiles.source_for(None) is SizeSource.OFFERED


@pytest.mark.parametrize(
    ("answer", "kept"),
    [(said(65_536), MAX_OFFER_AGE_MS), (said(None, 9_000), MAX_OFFER_AGE_MS), (SILENT, MAX_SILENCE_AGE_MS)],
)
async def test_a_stated_size_is_kept_for_a_week(store: Store, clock: SetClock, answer: ModelLimits, kept: int) -> None:
    provider = Provider(answer)
    await book(store, clock, provider).ask()
    clock.at = Millis(clock.at + kept - 1)
    again = book(store, clock, provider)
    await again.ask()
    assert (provider.asked, again.capacity.context_length) == (1, answer.context_length or 32_768)
    clock.at = Millis(clock.at + 1)
    await again.ask()
    assert provider.asked == 2


@pytest.mark.parametrize("answer", [said(65_536), None], ids=["answered", "unreachable"])
async def test_after_a_clock_is_set_back_the_provider_is_asked(
    store: Store, clock: SetClock, answer: ModelLimits | None
) -> None:
    provider = Provider(answer)
    await book(store, clock, provider).ask()
    clock.at = Millis(clock.at - 10 * MAX_OFFER_AGE_MS)
    await book(store, clock, provider).ask()
    assert provider.asked == 2


async def test_an_unreachable_provider_is_asked_again_soon_and_known_sizes_stay(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536))
    profiles = book(store, clock, provider)
    await profiles.ask()
    clock.at = Millis(clock.at + MAX_OFFER_AGE_MS)
    provider.answer = None
    await profiles.ask()
    await profiles.ask()
    assert (provider.asked, profiles.window) == (2, 65_536)
    clock.at = Millis(clock.at + int(UNREACHED_BACKOFF.first_seconds * 1000))
    provider.answer = said(16_384)
    await profiles.ask()
    assert (provider.asked, profiles.window) == (3, 16_384)


async def test_an_unreachable_provider_delays_fewer_and_fewer_turns(store: Store, clock: SetClock) -> None:
    provider = Provider(None)
    profiles = book(store, clock, provider)
    for _ in range(24 * 60):
        await profiles.ask()
        clock.at = Millis(clock.at + 60_000)
    assert 24 <= provider.asked <= 32, "often at first, then every hour"


async def test_a_later_refusal_does_not_erase_a_stated_size(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536, 8_000))
    await book(store, clock, provider).ask()
    clock.at = Millis(clock.at + MAX_OFFER_AGE_MS)
    provider.answer = SILENT
    for profiles in (book(store, clock, provider), book(store, clock, provider)):
        await profiles.ask()
        assert (provider.asked, profiles.window, profiles.capacity.max_output_tokens) == (2, 65_536, 8_000)


async def test_configured_sizes_are_not_requested(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536, 9_000))
    whole = book(store, clock, provider, said(20_000, 4_000))
    await whole.ask()
    assert (provider.asked, whole.source_for(None)) == (0, SizeSource.CONFIGURED)
    half = book(store, clock, provider, said(40_000))
    await half.ask()
    assert (provider.asked, half.window, half.capacity.max_output_tokens) == (1, 40_000, 9_000)


async def test_implausible_sizes_are_neither_used_nor_stored(store: Store, clock: SetClock) -> None:
    provider = Provider(said(10**30, -5))
    profiles = book(store, clock, provider, model="gpt-4.1-mini")
    await profiles.ask()
    assert (profiles.window, profiles.source_for(None)) == (1_047_576, SizeSource.CATALOGUE)
    rows = await store.read(
        lambda db: db.execute("SELECT offered_context, offered_output FROM model_profiles").fetchall()
    )
    assert rows == [(None, None)]


async def test_a_learned_limit_applies_only_to_the_context_length_of_its_time(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536))
    profiles = book(store, clock, provider)
    await profiles.ask()
    await profiles.learn_window(HERE, 16_384)
    assert (profiles.window, profiles.source_for(HERE)) == (16_384, SizeSource.LEARNED)
    again = book(store, clock, provider)
    await again.ask()
    assert (again.window, again.source_for(HERE)) == (16_384, SizeSource.LEARNED)
    clock.at = Millis(clock.at + MAX_OFFER_AGE_MS)
    provider.answer = said(32_000)
    await again.ask()
    assert (again.window, again.source_for(HERE)) == (32_000, SizeSource.OFFERED), "a new figure is tried"
    clock.at = Millis(clock.at + MAX_OFFER_AGE_MS)
    provider.answer = said(65_536)
    await again.ask()
    assert again.window == 16_384


async def test_limits_learned_by_another_node_apply_after_its_notice(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536))
    one, two = book(store, clock, provider), book(store, clock, provider)
    await one.ask()
    await two.ask()
    await two.learn_window(HERE, 16_384)
    await store.write(save_calibration, "lab", "my-model", Calibration(scale=1.5, samples=9), clock.now())
    await one.load()
    assert (one.window, one.estimator.calibration.samples) == (65_536, 0)
    one.expire_learned()
    await one.load()
    assert (one.window, one.source_for(HERE)) == (16_384, SizeSource.LEARNED)
    assert one.estimator.calibration.samples == 9
    assert provider.asked == 1, "the stated size was read from the store"


async def test_a_notice_during_a_read_causes_another_read(store: Store, clock: SetClock) -> None:
    one, two = (book(store, clock, Provider(said(65_536))) for _ in range(2))
    await one.ask()
    one.expire_learned()
    reading = asyncio.create_task(one.load())
    await asyncio.sleep(0)
    await two.ask()
    await two.learn_window(HERE, 16_384)
    one.expire_learned()
    await reading
    await one.load()
    assert one.window == 16_384


async def test_a_turn_cancelled_during_the_question_leaves_it_to_the_next(store: Store, clock: SetClock) -> None:
    provider = Provider(said(65_536))
    profiles = book(store, clock, provider)
    provider.may_answer.clear()
    asking = asyncio.create_task(profiles.ask())
    await provider.was_asked.wait()
    asking.cancel()
    await asyncio.wait({asking})
    provider.may_answer.set()
    await profiles.ask()
    assert (provider.asked, profiles.window) == (2, 65_536)
