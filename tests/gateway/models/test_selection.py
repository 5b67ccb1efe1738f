"""Model names and the effect of a choice."""

import pytest

from gateway.config.settings import ModelConfig
from gateway.models.selection import choose, known_routes, name_of, route_of
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError

MODEL = ModelConfig(
    name="big",
    api_key="k",  # type: ignore[arg-type]  # pydantic wraps it
    aliases={"fast": "small", "local": {"name": "llama", "base_url": "http://127.0.0.1:1/v1"}},  # type: ignore[dict-item]
    fallbacks=("fast", "Spare"),
)


def test_each_configured_name_is_listed_once() -> None:
    assert list(known_routes(MODEL)) == ["big", "fast", "local", "Spare"]


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(CommandError, match="Did you mean `/model fast`"):
        choose(MODEL, "fats", UserRole.USER)
    with pytest.raises(CommandError) as refused:
        choose(MODEL, "zzz" * 200, UserRole.USER)
    assert "Did you mean" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_an_admin_may_choose_any_model_at_the_same_provider() -> None:
    stored = choose(MODEL, "=hf.co/someone/model:Q4", UserRole.ADMIN)
    assert stored is not None
    route = route_of(MODEL, stored)
    assert route is not None
    assert (route.name, route.api_key) == ("hf.co/someone/model:Q4", MODEL.api_key)
    assert name_of(MODEL, stored) == "hf.co/someone/model:Q4"
    with pytest.raises(CommandError, match="a single word"):
        choose(MODEL, "two words", UserRole.ADMIN)


def test_a_choice_that_is_no_longer_configured_has_no_route() -> None:
    assert route_of(ModelConfig(name="big"), "fast") is None
    assert route_of(ModelConfig(name="big"), "=anything") is not None, "an admin's own choice names no configuration"


def test_a_choice_that_has_become_the_configured_model_is_still_known() -> None:
    swapped = ModelConfig(name="Spare", fallbacks=("big",))
    assert route_of(swapped, "Spare") == swapped.route
