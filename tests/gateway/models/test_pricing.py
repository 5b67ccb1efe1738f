"""Cost settings: parsing, errors, and the prices and caps of model clients."""

import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent.model.caps import SpendingCaps, SpendingCapSettings, UnpricedCaps, day_start
from agent.model.catalog import FREE
from gateway.config import ConfigRejected, load_config
from gateway.config.overlay import AgentConfig
from gateway.config.settings import Config
from gateway.models.pricing import (
    SpendingControl,
    cap_limits,
    estimated_models,
    price_in,
    unpriced_models,
    unpriced_sentence,
)
from hermes_state.store.writer import Store
from hermes_state.values import MicroUsd, Millis, SystemClock
from tests.gateway.helpers import Load

BERLIN = ZoneInfo("Europe/Berlin")


def loaded(folder: Path, yaml: str = "", **environ: str) -> Config:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml)
    return load_config({"HERMES_HOME": str(folder), **environ}).config


def test_nothing_is_capped_by_default(tmp_path: Path) -> None:
    config = loaded(tmp_path / "home")
    assert cap_limits(config) == SpendingCapSettings(zone=None)
    assert not config.costs.has_caps
    assert unpriced_models([AgentConfig(config=config, skills=tmp_path)]) == []


def test_caps_are_dollars_and_days_begin_in_the_agents_time_zone(tmp_path: Path) -> None:
    config = loaded(
        tmp_path / "home",
        "costs: {daily_cap: 5, chat_daily_cap: 0.5}\nagent: {time_zone: Europe/Berlin}",
        HERMES_COSTS__CONVERSATION_CAP="2.25",
    )
    assert cap_limits(config) == SpendingCapSettings(
        daily=MicroUsd(5_000_000), chat_daily=MicroUsd(500_000), conversation=MicroUsd(2_250_000), zone=BERLIN
    )


@pytest.mark.parametrize(
    ("noon", "midnight"),
    [
        (datetime(2026, 1, 15, 12, tzinfo=BERLIN), datetime(2026, 1, 15, tzinfo=BERLIN)),
        (datetime(2026, 7, 15, 12, tzinfo=BERLIN), datetime(2026, 7, 15, tzinfo=BERLIN)),
    ],
)
def test_days_in_the_machines_zone_begin_at_midnight_in_winter_and_summer(
    noon: datetime, midnight: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        zone = cap_limits(Config()).zone
        assert day_start(Millis(round(noon.timestamp() * 1_000)), zone) == midnight.timestamp() * 1_000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_prices_come_from_the_file_or_as_json_from_a_variable(tmp_path: Path) -> None:
    expected = {"gpt-x*": {"input": 1.0, "output": 2.5, "cache_read": 0.1}}
    yaml = "costs:\n  prices:\n    gpt-x*: {input: 1, output: 2.5, cache_read: 0.1}"
    assert loaded(tmp_path / "one", yaml).costs.prices == expected
    variable = '{"gpt-x*": {"input": 1, "output": 2.5, "cache_read": 0.1}}'
    assert loaded(tmp_path / "two", HERMES_COSTS__PRICES=variable).costs.prices == expected


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ("{m: {input: 1}}", "m.output is missing"),
        ("{m: {input: 1, output: -2}}", "m.output must be a price in US dollars"),
        ("{m: {input: 1, output: two}}", "m.output must be a price in US dollars"),
        ("{m: {input: .inf, output: 2}}", "m.input must be a price in US dollars"),
        ("{m: {input: true, output: 2}}", "m.input must be a price in US dollars"),
        ("{m: {input: 1, output: 2, cache_reads: 1}}", "did you mean cache_read?"),
        ("{m: 3}", "a block of model patterns"),
        ("[m]", "a block of names"),
    ],
)
def test_invalid_prices_are_named(tmp_path: Path, prices: str, words: str) -> None:
    with pytest.raises(ConfigRejected, match=r"costs\.prices") as refused:
        loaded(tmp_path / "home", f"costs: {{prices: {prices}}}")
    assert words in str(refused.value)


MODEL = "model: {name: lab-128k, base_url: 'http://127.0.0.1:1/v1'}\n"


async def test_a_client_gets_its_price_and_the_caps(tmp_path: Path, store: Store) -> None:
    spending = SpendingControl(store, SystemClock())
    free = loaded(tmp_path / "a", MODEL)
    assert (price_in(free, "lab-128k"), spending.caps_in(free, "lab-128k")) == (None, None)
    capped = loaded(tmp_path / "b", MODEL + "costs: {daily_cap: 1, prices: {lab-*: {input: 1, output: 2}}}")
    assert price_in(capped, "lab-128k") is not None
    assert isinstance(spending.caps_in(capped, "lab-128k"), SpendingCaps)
    assert isinstance(spending.caps_in(capped, "another"), UnpricedCaps)
    assert price_in(capped, None) == FREE


async def test_an_unknown_model_of_a_known_family_is_called_under_a_cap(tmp_path: Path, store: Store) -> None:
    yaml = "model: {name: claude-opus-99, fallbacks: [gpt-5-mini, gpt-99-mini]}\ncosts: {daily_cap: 1}"
    config = loaded(tmp_path / "home", yaml)
    assert price_in(config, "claude-opus-99") is not None
    assert isinstance(SpendingControl(store, SystemClock()).caps_in(config, "claude-opus-99"), SpendingCaps)
    alone = [AgentConfig(config=config, skills=tmp_path)]
    assert (unpriced_models(alone), estimated_models(alone)) == ([], ["claude-opus-99", "gpt-99-mini"])


@pytest.mark.parametrize(("cap", "names"), [("{}", []), ("{daily_cap: 1}", ["own"])])
def test_only_the_models_of_an_agent_with_a_cap_need_prices(load: Load, cap: str, names: list[str]) -> None:
    written = f"agents: {{ops: {{model: {{name: own, base_url: http://127.0.0.1:1/v1}}, costs: {cap}}}}}"
    assert unpriced_models(load(written).agents) == names


@pytest.mark.parametrize(("ttl", "write"), [("5m", 3.75), ("1h", 6.0)])
def test_a_longer_claude_cache_costs_more(tmp_path: Path, ttl: str, write: float) -> None:
    price = price_in(loaded(tmp_path / "home", f"model: {{cache_ttl: {ttl}}}"), "claude-sonnet-4-5")
    assert price is not None
    assert price.cache_write == pytest.approx(write)


def test_every_model_blocked_by_a_cap_is_named(load: Load) -> None:
    yaml = """
    model:
      name: lab-128k
      base_url: http://127.0.0.1:1/v1
      fallbacks: [gpt-4.1-mini, lab-4k]
      aliases: {fast: lab-8k, known: claude-sonnet-4-5}
    auxiliary: {compression: {model: lab-16k}}
    transcription: {model: lab-ears}
    costs: {daily_cap: 1, prices: {lab-8k: {input: 1, output: 2}}}
    agents: {ops: {model: lab-32k}}
    """
    names = unpriced_models(load(yaml).agents)
    assert names == ["lab-128k", "lab-4k", "lab-16k", "lab-ears", "lab-32k"]
    assert "costs.prices" in unpriced_sentence(names)


def test_a_model_blocked_by_the_cap_of_an_agent_is_named(tmp_path: Path) -> None:
    yaml = """
    model: {name: lab-128k, base_url: "http://127.0.0.1:1/v1"}
    costs: {prices: {lab-8k: {input: 1, output: 2}}}
    agents:
      capped: {model: lab-4k, costs: {daily_cap: 1}}
      priced: {model: lab-8k, costs: {chat_daily_cap: 1}}
      free: {model: lab-16k}
    """
    (tmp_path / "config.yaml").write_text(yaml)
    found = load_config({"HERMES_HOME": str(tmp_path)})
    assert unpriced_models(found.agents) == ["lab-4k"]
