from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state import profiles
from hermes_state.profiles import (
    LEAST_IMAGE,
    LEAST_SCALE,
    MOST_IMAGE,
    MOST_SCALE,
    Calibration,
    ModelProfile,
)
from hermes_state.store import Store
from hermes_state.values import Millis, Tokens

NOW = Millis(1_767_225_600_000)
ROUTE, MODEL = "chat_completions api.example.com", "lab-128k"
LEARNED = Calibration(scale=1.31, image_tokens=765.5, samples=4, image_samples=2)


async def test_a_model_that_is_not_known_has_the_defaults(store: Store) -> None:
    assert await store.read(profiles.load_profile, ROUTE, MODEL) == ModelProfile()


async def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    first = await Store.open(tmp_path / "state.db")
    await first.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    await first.write(profiles.learn_context, ROUTE, MODEL, Tokens(65_536), NOW)
    await first.close()
    second = await Store.open(tmp_path / "state.db")
    try:
        found = await second.read(profiles.load_profile, ROUTE, MODEL)
    finally:
        await second.close()
    assert found == ModelProfile(calibration=LEARNED, learned_context=Tokens(65_536))


async def test_models_and_routes_are_kept_apart(store: Store) -> None:
    await store.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    assert await store.read(profiles.load_profile, ROUTE, "another") == ModelProfile()
    assert await store.read(profiles.load_profile, "elsewhere", MODEL) == ModelProfile()


async def test_a_window_only_becomes_smaller(store: Store) -> None:
    for stated in (65_536, 131_072, 32_768, 40_000):
        await store.write(profiles.learn_context, ROUTE, MODEL, Tokens(stated), NOW)
    found = await store.read(profiles.load_profile, ROUTE, MODEL)
    assert found == ModelProfile(learned_context=Tokens(32_768))


async def test_a_new_calibration_leaves_the_window(store: Store) -> None:
    await store.write(profiles.learn_context, ROUTE, MODEL, Tokens(65_536), NOW)
    await store.write(profiles.save_calibration, ROUTE, MODEL, LEARNED, NOW)
    found = await store.read(profiles.load_profile, ROUTE, MODEL)
    assert found == ModelProfile(calibration=LEARNED, learned_context=Tokens(65_536))


@pytest.mark.parametrize(
    "stored", ["", "[]", "{", '{"scale": 0}', '{"scale": 1e9}', '{"image_tokens": -1}', '{"scale": null}']
)
async def test_a_calibration_that_cannot_be_right_is_learned_again(store: Store, stored: str) -> None:
    await store.write(profiles.learn_context, ROUTE, MODEL, Tokens(65_536), NOW)
    await store.write(lambda db: db.execute("UPDATE model_profiles SET calibration = ?", (stored,)) and None)
    found = await store.read(profiles.load_profile, ROUTE, MODEL)
    assert found == ModelProfile(learned_context=Tokens(65_536))


@given(
    st.builds(
        Calibration,
        scale=st.floats(LEAST_SCALE, MOST_SCALE),
        image_tokens=st.floats(LEAST_IMAGE, MOST_IMAGE),
        samples=st.integers(0, 10**9),
        image_samples=st.integers(0, 10**9),
    )
)
def test_a_calibration_comes_back_exactly(calibration: Calibration) -> None:
    assert profiles._decode(profiles.msgspec.json.encode(calibration)) == calibration
