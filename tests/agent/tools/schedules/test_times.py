"""Times of schedules, compared with published examples and a check of every minute, also across clock changes."""

import tomllib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.schedules.times import Crontab, Occurrence, last_occurrence, next_occurrence, normalised, parse_crontab
from hermes_state.errors import ToolError
from hermes_state.values import Millis

CORPUS = tomllib.loads((Path(__file__).parent / "crontabs.toml").read_text())
NEW_YORK = "America/New_York"
ZONES = (
    "Europe/Berlin",
    NEW_YORK,
    "America/Sao_Paulo",  # midnight was skipped
    "America/Nuuk",  # the last hour of a day was skipped
    "Australia/Lord_Howe",  # half an hour was skipped
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Pacific/Apia",  # a whole day was skipped
    "UTC",
)


def cases(name: str) -> list[tuple[str, ...]]:
    return [tuple(line.split(" | ")) for line in CORPUS[name]["cases"]]


def millis(local: str, zone: str) -> Millis:
    return Millis(round(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000))


def following(expression: str, zone: str, moment: str) -> Occurrence | None:
    """Return the first occurrence from a local time on."""
    return next_occurrence(normalised(expression, zone), zone, Millis(millis(moment, zone) - 1))


def series(spec: str, zone: str, begin: str, count: int) -> list[str]:
    """Return moments in UTC, each with its local time."""
    after, found = millis(begin, zone), []
    for _ in range(count):
        one = next_occurrence(spec, zone, after)
        found.append(f"{datetime.fromtimestamp(one.at / 1000, UTC):%d %H:%M} {one.key[8:]}")
        after = one.at
    return found


@pytest.mark.parametrize(("expression", "moment", "expected"), cases("next"))
def test_next_times_match_published_examples(expression: str, moment: str, expected: str) -> None:
    assert following(expression, NEW_YORK, moment).at == millis(expected, NEW_YORK)


@pytest.mark.parametrize(("expression", "moment", "is_one"), cases("activation"))
def test_matching_times_agree_with_published_examples(expression: str, moment: str, is_one: str) -> None:
    assert (following(expression, "UTC", moment).at == millis(moment, "UTC")) == (is_one == "yes")


@pytest.mark.parametrize(("expression", "moment", "theirs", "ours"), cases("differs"))
def test_ambiguous_expressions_follow_cron(expression: str, moment: str, theirs: str, ours: str) -> None:
    assert following(expression, NEW_YORK, moment).key == ours != theirs[:16]


@pytest.mark.parametrize("expression", CORPUS["refused"]["cases"])
def test_invalid_cron_expressions_are_refused(expression: str) -> None:
    with pytest.raises(ToolError):
        normalised(expression, "UTC")


def test_the_length_of_an_expression_is_limited() -> None:
    every = " ".join(",".join(map(str, numbers)) for numbers in (range(60), range(24), range(1, 32), range(1, 13)))
    assert following(f"{every} sun,mon,tue,wed,thu,fri,sat", "UTC", "2026-01-01T00:00") is not None
    with pytest.raises(ToolError, match="at most 500 characters"):
        normalised(f"{'0,' * 10_000}0 * * * *", "UTC")


@pytest.mark.parametrize("expression", CORPUS["never"]["cases"])
def test_an_expression_that_never_matches_has_no_time(expression: str) -> None:
    assert following(expression, "UTC", "2026-01-01T00:00") is None


@pytest.mark.parametrize("expression", CORPUS["taken"]["cases"])
def test_expressions_have_the_times_of_their_fields(expression: str) -> None:
    found = following(expression, "UTC", "2026-01-01T00:00")
    crontab, local = parse_crontab(expression), datetime.fromisoformat(found.key)
    assert (local.hour in crontab.hours, local.minute in crontab.minutes, crontab.has(local.date())) == (True,) * 3


def test_sunday_is_0_or_7_or_a_name() -> None:
    for word in ("0", "7", "sun", "SUN"):
        assert parse_crontab(f"0 0 * * {word}").weekdays == {0}
    assert parse_crontab("0 0 * * 1-5").weekdays == parse_crontab("0 0 * * mon-fri").weekdays == {1, 2, 3, 4, 5}
    assert parse_crontab("0 0 * * fri-mon").weekdays == {5, 6, 0, 1}


def test_a_skipped_time_occurs_once_and_an_hour_later() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["29 01:30 29T02:30", "30 00:30 30T02:30"]
    both = series("30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", 2)
    assert both == ["29 01:30 29T02:30", "30 00:30 30T02:30"], "simultaneous occurrences count once"


def test_a_repeated_time_occurs_only_the_first_time() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["25 00:30 25T02:30", "26 01:30 26T02:30"]


def test_a_clock_change_of_half_an_hour() -> None:
    spring = series("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 2)
    assert spring == ["03 15:45 04T02:15", "04 15:15 05T02:15"]
    autumn = series("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", 2)
    assert autumn == ["04 14:45 05T01:45", "05 15:15 06T01:45"]


def test_the_midnight_after_a_short_day_is_not_skipped() -> None:
    monday = next_occurrence("0 0 * * mon", "Europe/Berlin", millis("2026-03-28T00:00", "Europe/Berlin"))
    assert monday.key == "2026-03-30T00:00"
    zone = ZoneInfo("Europe/Berlin")
    trigger = CronTrigger(minute=0, hour=0, day_of_week="mon", timezone=zone)
    theirs = trigger.get_next_fire_time(None, datetime(2026, 3, 28, tzinfo=zone))
    assert theirs.date().isoformat() == "2026-04-06", "if this fails, the library can replace our code"


FIELDS = st.tuples(
    st.sampled_from(["0", "30", "45", "*/15", "7,37"]),
    st.sampled_from(["*", "0", "1", "2", "3", "23", "*/6", "0-3"]),
    st.sampled_from(["*", "1", "28-31", "*/2", "15"]),
    st.sampled_from(["*", "3", "4,10", "oct-nov"]),
    st.sampled_from(["*", "sun", "1-5", "0,6"]),
)
MOMENTS = st.one_of(
    *(
        st.integers(0, 24 * 1_440).map(lambda minutes, day=day: day + timedelta(minutes=minutes))
        for day in (
            datetime(2011, 12, 20, tzinfo=UTC),
            datetime(2017, 10, 10, tzinfo=UTC),
            datetime(2026, 3, 20, tzinfo=UTC),
            datetime(2026, 10, 10, tzinfo=UTC),
        )
    )
)


@given(fields=FIELDS, zone=st.sampled_from(ZONES), moment=MOMENTS)
def test_each_local_time_occurs_exactly_once(fields: tuple[str, ...], zone: str, moment: datetime) -> None:
    spec, place = " ".join(fields), ZoneInfo(zone)
    begin = moment
    end = begin + timedelta(days=3)
    found = []
    after = Millis(round(begin.timestamp() * 1000))
    while (one := next_occurrence(spec, zone, after)) is not None and one.at <= end.timestamp() * 1000:
        found.append(one)
        assert last_occurrence(spec, zone, one.at) == one
        assert last_occurrence(spec, zone, Millis(one.at - 1)) in (None, *found[-2:-1]) or len(found) == 1
        after = one.at
    keys = [one.key for one in found]
    assert all(before.at < later.at for before, later in pairwise(found))
    assert len(set(keys)) == len(keys), "each occurs once"
    meant = _on_the_wall(spec, place, begin, end)
    assert meant <= set(keys), "every shown local time occurs"
    skipped = {key for key in keys if key not in meant}
    assert all(not _exists(key, place) or not begin < _moment(key, place) <= end for key in skipped)


def _on_the_wall(spec: str, zone: ZoneInfo, begin: datetime, end: datetime) -> set[str]:
    """Return the matching local times that a clock first shows between two moments, by checking every minute.

    Times at the same moment as a skipped time are left out, because both count as one occurrence.
    """
    crontab, found = parse_crontab(spec), set()
    minute = begin.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while minute <= end:
        local = minute.astimezone(zone)
        if _fits(local, crontab) and not local.fold and not _falls_together(local, crontab, zone):
            found.add(local.replace(tzinfo=None).isoformat(timespec="minutes"))
        minute += timedelta(minutes=1)
    return found


def _fits(local: datetime, crontab: Crontab) -> bool:
    return local.minute in crontab.minutes and local.hour in crontab.hours and crontab.has(local.date())


def _falls_together(local: datetime, crontab: Crontab, zone: ZoneInfo) -> bool:
    """True if a skipped local time occurs at the same moment."""
    for back in (timedelta(minutes=30), timedelta(hours=1), timedelta(days=1)):
        earlier = local.replace(tzinfo=None) - back
        is_there = earlier.replace(tzinfo=zone).timestamp() == local.timestamp()
        if is_there and _fits(earlier, crontab) and not _exists(earlier.isoformat(), zone):
            return True
    return False


def _exists(key: str, zone: ZoneInfo) -> bool:
    local = datetime.fromisoformat(key)
    return local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local


def _moment(key: str, zone: ZoneInfo) -> datetime:
    return datetime.fromisoformat(key).replace(tzinfo=zone).astimezone(UTC)
