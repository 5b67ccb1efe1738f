from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hermes_state.engines.sqlite.migrate import migrate, shipped_migrations
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.models import profiles
from hermes_state.models.profiles import (
    MAX_IMAGE_TOKENS,
    MAX_SCALE,
    MIN_IMAGE_TOKENS,
    MIN_SCALE,
    Calibration,
    ModelProfile,
    OfferedSize,
)
from hermes_state.store.writer import Store
from hermes_state.values import Millis, Tokens
from tests.hermes_state.helpers import closed_after, execute, opened_as_ours
from tests.hermes_state.rows import migrated
from tests.sampling import examples

NOW = Millis(1_767_225_600_000)
ROUTE, MODEL = "chat_completions api.example.com", "lab-128k"
SET = Tokens(131_072)
"""The configured context length."""
LEARNED = Calibration(scale=1.31, image_tokens=765.5, samples=4, image_samples=2)


async def test_learned_values_survive_a_restart_and_each_other(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with closed_after(SqliteStore.open(path)) as first:
        assert await first.read(profiles.load_profile, ROUTE, MODEL) == ModelProfile()
        for _ in range(2):  # in either order
            await first.write(profiles.learn_context, ROUTE, MODEL, Tokens(65_536), SET, NOW)
            await first.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    async with closed_after(SqliteStore.open(path)) as second:
        found = await second.read(profiles.load_profile, ROUTE, MODEL)
        assert found == ModelProfile(calibration=LEARNED, learned_context=Tokens(65_536), learned_beside=SET)
        assert await second.read(profiles.load_profile, ROUTE, "another") == ModelProfile()
        assert await second.read(profiles.load_profile, "elsewhere", MODEL) == ModelProfile()


async def learn(store: Store, stated: int, context: int = SET, *, is_of_input: bool = False) -> ModelProfile:
    """Learn a size beside a context length, and return the profile."""
    args = (ROUTE, MODEL, Tokens(stated), Tokens(context), NOW)
    await store.write(profiles.learn_context, *args, is_of_input=is_of_input)
    return await store.read(profiles.load_profile, ROUTE, MODEL)


async def test_a_learned_window_only_shrinks_and_holds_only_for_its_context_length(store: Store) -> None:
    await store.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    for stated in (65_536, 131_072, 32_768, 40_000):
        found = await learn(store, stated)
    assert found == ModelProfile(calibration=LEARNED, learned_context=Tokens(32_768), learned_beside=SET)
    assert found.window(SET) == 32_768
    for other in (SET - 1, SET + 1, 32_768):
        assert found.window(Tokens(other)) == other
    found = await learn(store, 65_536, 200_000)
    assert (found.window(Tokens(200_000)), found.window(SET)) == (65_536, SET)
    assert found.calibration == LEARNED


async def test_a_prompt_limit_is_learned_and_dropped_with_the_window(store: Store) -> None:
    for stated in (90_000, 100_000):
        await learn(store, stated, is_of_input=True)
    found = await learn(store, 120_000)
    assert (found.window(SET), found.max_input(SET, None)) == (120_000, 90_000)
    assert found.max_input(SET, Tokens(80_000)) == 80_000
    other = Tokens(SET + 1)
    assert (found.window(other), found.max_input(other, None)) == (other, None)
    found = await learn(store, 110_000, other, is_of_input=True)
    assert (found.window(other), found.max_input(other, None), found.window(SET)) == (other, 110_000, SET)


async def test_a_new_offer_replaces_the_earlier_one(store: Store) -> None:
    expected = ModelProfile()
    for context, output in ((65_536, 8_192), (None, 4_096), (None, None)):
        offer = OfferedSize(
            context_length=context and Tokens(context), max_output_tokens=output and Tokens(output), at=NOW
        )
        await store.write(profiles.save_offer, ROUTE, MODEL, offer)
        found = await store.read(profiles.load_profile, ROUTE, MODEL)
        assert found == replace(expected, offer=offer)
        await store.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
        await store.write(profiles.learn_context, ROUTE, MODEL, Tokens(32_768), SET, NOW)
        expected = ModelProfile(calibration=LEARNED, learned_context=Tokens(32_768), learned_beside=SET)


async def test_a_window_without_a_known_context_length_is_learned_again(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened_as_ours(path) as db:
        migrate(db, path, shipped_migrations()[:1])
        row = (ROUTE, MODEL, msgspec.json.encode(LEARNED).decode(), 65_536, NOW)
        db.execute("INSERT INTO model_profiles VALUES (?, ?, ?, ?, ?)", row)
        migrate(db, path)
        assert profiles.load_profile(db, ROUTE, MODEL) == ModelProfile(calibration=LEARNED)


@pytest.mark.parametrize(
    "stored",
    [
        *("", "[]", "{", '{"scale": 0}', '{"scale": 1e9}', '{"image_tokens": -1}', '{"scale": null}'),
        '{"max_side": "many"}',
    ],
)
async def test_invalid_values_are_learned_again(store: Store, stored: str) -> None:
    await store.write(profiles.learn_context, ROUTE, MODEL, Tokens(65_536), SET, NOW)
    column = "image_facts" if "side" in stored else "calibration"
    await execute(store, f"UPDATE model_profiles SET {column} = ?", stored)
    if "scale" not in stored:
        await execute(store, "UPDATE model_profiles SET image_facts = ?", stored)
    found = await store.read(profiles.load_profile, ROUTE, MODEL)
    assert found == ModelProfile(learned_context=Tokens(65_536), learned_beside=SET)
    assert await store.read(profiles.load_image_limits, ROUTE, MODEL) == profiles.LearnedImageLimits()


@examples(20)
@given(
    st.builds(
        Calibration,
        scale=st.floats(MIN_SCALE, MAX_SCALE),
        image_tokens=st.floats(MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS),
        samples=st.integers(0, 10**9),
        image_samples=st.integers(0, 10**9),
    )
)
def test_a_calibration_is_stored_exactly(calibration: Calibration) -> None:
    with migrated() as db:
        profiles.save_calibration(db, ROUTE, MODEL, calibration, NOW)
        assert profiles.load_profile(db, ROUTE, MODEL).calibration == calibration


async def test_an_output_limit_holds_for_a_week(store: Store) -> None:
    learned_at, day = 1_800_000_000_000, 86_400_000
    await store.write(profiles.learn_output_cap, "lab", "model", 4_096, Millis(learned_at))
    limits = [
        await store.read(profiles.load_output_cap, "lab", "model", Millis(learned_at + days * day))
        for days in (0, 6, 8, -1)
    ]
    assert limits == [4_096, 4_096, None, None], "the clock was set back in the last one"


async def test_image_limits_of_two_nodes_are_merged(store: Store) -> None:
    shared = {"mark": "abc", "learned_at": NOW}
    mine = profiles.LearnedImageLimits(**shared, max_side=900, max_bytes=5_000, refused=(7, 9))
    theirs = profiles.LearnedImageLimits(**shared, max_side=500, max_count=3, refused=(9, 11))
    both = profiles.LearnedImageLimits(**shared, max_side=500, max_bytes=5_000, max_count=3, refused=(7, 9, 11))
    assert await store.read(profiles.load_image_limits, ROUTE, MODEL) == profiles.LearnedImageLimits()
    await store.write(profiles.save_image_limits, ROUTE, MODEL, mine, NOW)
    await store.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    assert await store.write(profiles.save_image_limits, ROUTE, MODEL, theirs, NOW) == both
    assert await store.read(profiles.load_image_limits, ROUTE, MODEL) == both
    assert await store.read(profiles.load_profile, ROUTE, MODEL) == ModelProfile(calibration=LEARNED)


@pytest.mark.parametrize(("mark", "later"), [("abc", profiles.MAX_LIMIT_AGE_MS), ("def", 0)])
async def test_expired_limits_are_dropped_but_refused_images_kept(store: Store, mark: str, later: int) -> None:
    old = profiles.LearnedImageLimits(mark="abc", learned_at=NOW, takes_none=True, max_side=500, refused=(7,))
    new = profiles.LearnedImageLimits(mark=mark, learned_at=NOW + later, max_side=900)
    await store.write(profiles.save_image_limits, ROUTE, MODEL, old, NOW)
    kept = await store.write(profiles.save_image_limits, ROUTE, MODEL, new, Millis(NOW + later))
    assert kept == profiles.LearnedImageLimits(mark=mark, learned_at=NOW + later, max_side=900, refused=(7,))
