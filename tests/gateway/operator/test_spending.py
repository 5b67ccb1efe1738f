"""Spending reports for people; the daemon, the file and the command line give the same ones."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from agent.model.base import Payer
from agent.model.caps import SETTLED_MILLIS, DailyUsage, SpendingCaps, SpendingCapSettings, day_start
from gateway.cli import app
from gateway.config import load_config
from gateway.models.pricing import limits_in
from gateway.operator.spending import (
    WIDTH,
    InsightsReport,
    UsageReport,
    insights_block,
    insights_notes,
    insights_row,
    load_daily_caps,
    load_insights,
    load_usage,
    money,
    report,
    today_lines,
    usage_lines,
    usage_row,
)
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.agents import RoutedAgent, settle
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError, SpendingCapExceeded
from hermes_state.models import ledger
from hermes_state.models.ledger import TotalUsage
from hermes_state.sessions import load_tip
from hermes_state.store.writer import Store
from hermes_state.values import CanonicalUsage, ChatId, ChatKind, LineageId, MicroUsd, Millis
from tests.clocks import SetClock
from tests.hermes_state.rows import CALL, START, exchange, key_of, make_chat, migrated
from tests.sampling import examples

PRICED = replace(CALL, cost=MicroUsd(250_000))
HOUR = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        yield connection


def terms(now: int = START, **limits: int) -> tuple[SpendingCapSettings, Millis]:
    caps = {name: MicroUsd(limit) for name, limit in limits.items()}
    return SpendingCapSettings(**caps), Millis(now)


def usage_of(db: sqlite3.Connection, chat: ChatId, lineage_id: LineageId | None = None, **limits: int) -> UsageReport:
    session = None if lineage_id is None else load_tip(db, lineage_id)
    return load_usage(db, *terms(**limits), LookupResult(chat_id=chat, session=session))


def reported(db: sqlite3.Connection, name: str, args: dict[str, object], **limits: int) -> dict[str, object]:
    caps, now = terms(**limits)
    return report(db, name, lambda _: caps, now, args)


# ---- days


@pytest.mark.parametrize(
    ("now", "zone", "expected"),
    [
        (START, UTC, START),
        (START + 24 * HOUR - 1, UTC, START),
        (START, BERLIN, START - HOUR),  # it is one o'clock there
        (START - HOUR - 1, BERLIN, START - 25 * HOUR),
        (1_774_756_800_000, BERLIN, 1_774_738_800_000),  # 2026-03-29, an hour short: midnight was five hours ago
    ],
)
def test_a_day_begins_at_midnight_in_the_configured_time_zone(now: int, zone: ZoneInfo, expected: int) -> None:
    assert day_start(Millis(now), zone) == expected


def test_calls_around_midnight_count_for_their_local_day(db: sqlite3.Connection) -> None:
    for at in (START - HOUR - 1, START - HOUR, START - 1, START):
        ledger.record(db, None, None, PRICED, Millis(at))
    berlin = load_insights(db, SpendingCapSettings(zone=BERLIN), START, 2)
    assert [(day.day, spent.calls) for day, spent in berlin.days] == [(31, 1), (1, 3)]
    assert [(day.day, spent.calls) for day, spent in load_insights(db, *terms(), 2).days] == [(31, 3), (1, 1)]


# ---- caps


async def spend(store: Store, at: int, chat_id: ChatId | None = None) -> None:
    await store.write(ledger.record, None, None, PRICED, Millis(at), chat_id)


async def test_a_daily_cap_resets_at_midnight(store: Store) -> None:
    clock = SetClock(START + HOUR)
    caps = SpendingCaps(store, SpendingCapSettings(daily=MicroUsd(500_000), zone=BERLIN), DailyUsage(store), clock)
    await caps.check(Payer())
    await spend(store, clock.at)
    await caps.check(Payer())
    await spend(store, clock.at)
    with pytest.raises(SpendingCapExceeded) as refused:
        await caps.check(Payer())
    assert (refused.value.cap, refused.value.spent, refused.value.limit) == ("costs.daily_cap", 500_000, 500_000)
    clock.at = START + 23 * HOUR - 1
    with pytest.raises(SpendingCapExceeded):
        await caps.check(Payer())
    clock.at += 1
    await caps.check(Payer())


async def test_sums_of_a_day_are_right_with_concurrent_reads(store: Store) -> None:
    day, since = DailyUsage(store), Millis(START)
    for number in range(1, 9):
        now = Millis(START + number * HOUR)
        looks = [day.cost(since, now) for _ in range(4)]
        await asyncio.gather(*looks, spend(store, now), *[day.cost(since, now) for _ in range(4)])
        assert await day.cost(since, now) == number * 250_000
    assert await DailyUsage(store).cost(Millis(now + 1), now) == 0


async def test_a_call_committed_after_one_with_a_higher_id_is_counted(store: Store) -> None:
    """With several writers, ids are assigned in one order and committed in another."""
    day, since, now = DailyUsage(store), Millis(START), Millis(START + HOUR)

    async def spend_as(call_id: int, at: int) -> None:
        await spend(store, at)
        move = "UPDATE model_calls SET id = ? WHERE id = (SELECT max(id) FROM model_calls)"
        await store.write(lambda db: db.execute(move, (call_id,)))

    await spend_as(200, now - HOUR // 2)
    await spend_as(300, now)
    assert await day.cost(since, now) == 500_000
    await spend_as(100, now - 9 * 60_000)
    assert await day.cost(since, now) == 750_000


async def test_settled_calls_are_summed_once(store: Store) -> None:
    day, since, now = DailyUsage(store), Millis(START), Millis(START + HOUR)
    for at in (now - HOUR // 2, now - SETTLED_MILLIS, now):
        await spend(store, at)
    assert await day.cost(since, now) == 750_000
    await store.write(lambda db: db.execute("DELETE FROM model_calls WHERE created_at < ?", (now - SETTLED_MILLIS,)))
    assert await day.cost(since, now) == 750_000
    assert await day.cost(since, Millis(now + SETTLED_MILLIS)) == 750_000


async def test_a_clock_that_was_ahead_for_a_while_hides_no_calls(store: Store) -> None:
    day, since, now = DailyUsage(store), Millis(START), Millis(START + HOUR)
    assert await day.cost(since, Millis(now + 5 * HOUR)) == 0
    await spend(store, now)
    assert await day.cost(since, now) == 250_000


async def test_a_chat_cap_counts_only_calls_of_its_chat(store: Store) -> None:
    one, two = [await store.write(make_chat, ref) for ref in ("1", "2")]
    caps = SpendingCaps(store, SpendingCapSettings(chat_daily=MicroUsd(1)), DailyUsage(store), SetClock(START))
    await spend(store, START, one)
    await caps.check(Payer(chat_id=two))
    await caps.check(Payer())
    with pytest.raises(SpendingCapExceeded):
        await caps.check(Payer(chat_id=one))


# ---- reports


def test_usage_shows_unknown_and_estimated_parts(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")  # without a price
    guess = replace(PRICED, purpose="summary", is_estimated=True, usage=CanonicalUsage(input=1_000, cache_read=3_000))
    ledger.record(db, None, turn.lineage_id, guess, START)
    ledger.record(db, None, turn.lineage_id, replace(CALL, outcome="timeout", usage=None), START)
    usage = usage_of(db, chat, turn.lineage_id, conversation=200_000, daily=10**6)
    assert usage_lines(usage) == [
        "- Cost: about $0.250, plus 1 call with an unknown price (see `costs.prices`)",
        "- Input: about 4,015 tokens (1,010 new, 3,003 or 74 % from the cache, 2 written to the cache)",
        "- Output: about 5 tokens, 1 of them reasoning",
        "- Model calls: 3 (1 failed, 1 estimated), including 1 summary for $0.250",
    ]
    assert today_lines(usage, tells_all=False) == [
        "- This conversation: $0.250 of $0.200: used up, `costs.conversation_cap`",
        "- This chat today: $0.250+",
        "- The whole gateway today: $0.250 of $1.00 (25 %), `costs.daily_cap`",
    ]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([("title", 4_000), ("title", 5_000)], "2 titles for $0.0090"),
        ([("summary", None), ("summary", 1_000_000)], "2 summaries for $1.00+"),
        ([("title", None), ("summary", 1_000_000)], "1 title, 1 summary for $1.00"),
    ],
)
def test_usage_shows_the_purpose_of_extra_calls(
    db: sqlite3.Connection, calls: list[tuple[str, int | None]], said: str
) -> None:
    turn = exchange(db, chat := make_chat(db), "q", "a")
    for purpose, cost in calls:
        ledger.record(db, None, turn.lineage_id, replace(PRICED, purpose=purpose, cost=cost), START)
    assert usage_lines(usage_of(db, chat, turn.lineage_id))[-1].endswith(f", including {said}")


def test_the_whole_gateways_spending_is_shown_only_on_request(db: sqlite3.Connection) -> None:
    usage = usage_of(db, make_chat(db))
    assert today_lines(usage, tells_all=False) == ["- This chat today: $0.00"]
    assert today_lines(usage, tells_all=True)[1:] == ["- The whole gateway today: $0.00"]


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (TotalUsage(), "$0.00"),
        (TotalUsage(cost=MicroUsd(1)), "<$0.0001"),
        (TotalUsage(cost=MicroUsd(4_200)), "$0.0042"),
        (TotalUsage(cost=MicroUsd(12_345_678)), "$12.35"),
        (TotalUsage(unpriced_calls=2), "unknown"),
        (TotalUsage(cost=MicroUsd(1_500_000), unpriced_calls=1), "$1.50+"),
    ],
)
def test_an_amount_of_money_is_never_understated(spent: TotalUsage, said: str) -> None:
    assert money(spent) == said


def test_a_chart_has_a_line_for_every_day_with_a_bar_for_its_cost(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    day = 24 * HOUR
    for at, count in ((START, 4), (START + day, 2), (START + 2 * day, 1)):
        for _ in range(count):
            ledger.record(db, None, None, PRICED, Millis(at), chat)
    ledger.record(db, None, None, replace(PRICED, cost=MicroUsd(1), model="tiny"), Millis(START + 3 * day))
    lines = insights_block(load_insights(db, *terms(START + 3 * day), 5)).splitlines()
    assert lines[:5] == [
        "Wed 31                                 -",
        "Thu  1 ██████████████████████      $1.00",
        "Fri  2 ███████████                $0.500",
        "Sat  3 █████▌                     $0.250",
        "Sun  4 ▏                        <$0.0001",
    ]
    assert lines[6:9] == [
        "CHAT                        COST   CALLS",
        "telegram:42                $1.75       7",
        "no chat                 <$0.0001       1",
    ]
    assert lines[-1] == "total                      $1.75       8"


def test_insights_name_a_chat_by_its_title_unless_another_chat_has_the_same(db: sqlite3.Connection) -> None:
    for ref, title in (("-1", "Doors"), ("-2", "Team"), ("-3", "Team")):
        chat = ensure_chat(db, key_of(ref), ChatKind.GROUP, title, START)
        ledger.record(db, None, None, PRICED, START, chat)
    found = load_insights(db, *terms(), 1)
    shown = [line.split("  ")[0] for line in insights_block(found).splitlines() if line.startswith(("Doors", "tele"))]
    assert shown == ["Doors", "telegram:-2", "telegram:-3"]
    assert [(row["chat"], row["chat_name"]) for row in insights_row(found)["chats"]] == [
        ("telegram:-1", "Doors"),
        ("telegram:-2", ""),
        ("telegram:-3", ""),
    ]


_amounts = st.integers(0, 10**11)
_spent = st.builds(
    TotalUsage,
    calls=st.integers(0, 10**8),
    failed_calls=st.integers(0, 100),
    input_tokens=_amounts,
    output_tokens=_amounts,
    cache_read_tokens=_amounts,
    cost=_amounts.map(MicroUsd),
    unpriced_calls=st.integers(0, 3),
)
_named = st.lists(st.tuples(st.text("abc-/:é", min_size=1, max_size=60), _spent), max_size=14).map(tuple)


@examples(40)
@given(days=st.lists(_spent, min_size=1, max_size=366), chats=_named, models=_named, total=_spent)
def test_charts_fit_a_phone_for_any_spending(
    days: list[TotalUsage],
    chats: tuple[tuple[str, TotalUsage], ...],
    models: tuple[tuple[str, TotalUsage], ...],
    total: TotalUsage,
) -> None:
    entries = tuple((date(2026, 1, 1) + timedelta(days=number), spent) for number, spent in enumerate(days))
    found = InsightsReport(days=entries, chats=chats, models=models, purposes=(), total=total)
    assert max(map(len, insights_block(found).splitlines())) <= WIDTH
    assert len(insights_block(found).splitlines()) < 70
    assert all(note.endswith(".") for note in insights_notes(total))


def test_without_any_price_the_chart_shows_tokens(db: sqlite3.Connection) -> None:
    ledger.record(db, None, None, CALL, START)
    found = load_insights(db, *terms(), 1)
    assert "20       1" in insights_block(found)
    assert "$" not in insights_block(found)
    assert "costs.prices" in insights_notes(found.total)[0]


# ---- over the control socket and back


@examples(40)
@given(days=st.lists(st.tuples(st.dates(), _spent)).map(tuple), chats=_named, total=_spent)
def test_a_report_crosses_the_socket_unchanged(
    days: tuple[tuple[date, TotalUsage], ...], chats: tuple[tuple[str, TotalUsage], ...], total: TotalUsage
) -> None:
    found = InsightsReport(days=days, chats=chats, models=(), purposes=(), total=total)
    assert msgspec.json.decode(msgspec.json.encode(found), type=InsightsReport) == found


def test_the_caps_of_a_place_are_those_of_its_agent(db: sqlite3.Connection, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "costs: {chat_daily_cap: 100}\nagents: {ops: {costs: {daily_cap: 0.1, chat_daily_cap: 2}}, desk: }"
    )
    limits_of = partial(limits_in, load_config({"HERMES_HOME": str(tmp_path)}))
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")
    (key,) = db.execute("SELECT key FROM sessions").fetchone()
    settle(db, chat, RoutedAgent(name="ops", known="||ops|"), Millis(START))
    ledger.record(db, None, None, PRICED, Millis(START), chat_id=chat)
    ledger.record(db, None, None, PRICED, Millis(START), chat_id=chat, agent="desk")

    def caps(place: str | None) -> list[tuple[str, int]]:
        found = msgspec.convert(report(db, "usage", limits_of, Millis(START), {"place": place}), UsageReport)
        return [(cap.key, cap.limit) for cap in found.caps]

    daily = ("agents.ops.costs.daily_cap", 100_000)
    assert caps(None) == [daily]
    assert caps("telegram:42") == [("costs.chat_daily_cap", 2_000_000), daily]
    assert caps(key) == [("costs.chat_daily_cap", 100_000_000)], f"the agent of turn {turn.id} was the unnamed one"
    [cap] = load_daily_caps(db, limits_of(None), Millis(START))
    assert (cap.key, cap.spent, cap.is_reached) == ("agents.ops.costs.daily_cap", 250_000, True)
    assert cap.warning.endswith("has been reached, so this agent no longer calls the model.")


def test_the_spending_of_an_agent_without_a_cap_is_shown_only_on_request(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    usage = load_usage(db, SpendingCapSettings(agent=""), Millis(START), LookupResult(chat_id=chat))
    assert today_lines(usage, tells_all=False) == ["- This chat today: $0.00"]
    assert today_lines(usage, tells_all=True)[1] == "- Agent default today: $0.00"


def test_reports_for_the_command_line_equal_those_for_the_chat(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")
    ledger.record(db, turn.id, turn.lineage_id, PRICED, START)
    limits = {"daily": 10**6, "chat_daily": 10**5}
    (key,) = db.execute("SELECT key FROM sessions").fetchone()
    caps = terms(**limits)
    usage = usage_of(db, chat, turn.lineage_id, **limits)
    sent = orjson.loads(orjson.dumps(reported(db, "usage", {"place": key}, **limits)))
    assert msgspec.convert(sent, UsageReport) == usage
    insights = orjson.loads(orjson.dumps(reported(db, "insights", {"days": 3}, **limits)))
    assert msgspec.convert(insights, InsightsReport) == load_insights(db, *caps, 3)
    assert msgspec.convert(reported(db, "usage", {}, **limits), UsageReport) == load_usage(db, *caps, None)


def test_json_rows_show_the_same_costs_in_dollars(db: sqlite3.Connection) -> None:
    turn = exchange(db, chat := make_chat(db), "q", "a")
    ledger.record(db, turn.id, turn.lineage_id, PRICED, START)
    usage = usage_row(usage_of(db, chat, turn.lineage_id, daily=10**6))
    assert (usage["scope"], usage["chat"], usage["cost_usd"], usage["unpriced_calls"]) == (
        "conversation",
        "telegram:42",
        0.25,
        1,
    )
    assert usage["caps"] == [{"cap": "costs.daily_cap", "limit_usd": 1.0, "spent_usd": 0.25, "is_reached": False}]
    assert usage_row(load_usage(db, *terms(), None))["scope"] == "gateway"
    (day,) = insights_row(load_insights(db, *terms(), 1))["days"]
    assert (day["day"], day["cost_usd"], day["calls"]) == ("2026-01-01", 0.25, 2)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *(("insights", {"days": days}) for days in (0, 367, True, "7", 2.0, None)),
        *(("usage", {"place": place}) for place in ("nobody", 7, "m1")),
    ],
)
def test_invalid_arguments_are_refused(db: sqlite3.Connection, name: str, args: dict[str, object]) -> None:
    with pytest.raises(CommandError):
        reported(db, name, args)


@pytest.mark.parametrize("words", [["usage"], ["insights"], ["usage", "--json"]])
def test_without_a_database_the_command_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, CommandError)
    assert "no database yet" in str(result.exception)
