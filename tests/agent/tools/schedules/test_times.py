"""Times of schedules, against expressions that others wrote, a look at every minute, and clocks that are put by."""

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
    "America/Nuuk",  # the last hour of a day is
    "Australia/Lord_Howe",  # half an hour
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
    """The first occurrence from a local time on."""
    return next_occurrence(normalised(expression, zone), zone, Millis(millis(moment, zone) - 1))


def series(spec: str, zone: str, begin: str, count: int) -> list[str]:
    """Moments in UTC, each with the local time that is meant."""
    after, found = millis(begin, zone), []
    for _ in range(count):
        one = next_occurrence(spec, zone, after)
        assert one is not None
        found.append(f"{datetime.fromtimestamp(one.at / 1000, UTC):%d %H:%M} {one.key[8:]}")
        after = one.at
    return found


@pytest.mark.parametrize(("expression", "moment", "expected"), cases("next"))
def test_the_next_time_is_what_others_say(expression: str, moment: str, expected: str) -> None:
    found = following(expression, NEW_YORK, moment)
    assert found is not None
    assert found.at == millis(expected, NEW_YORK)


@pytest.mark.parametrize(("expression", "moment", "is_one"), cases("activation"))
def test_a_moment_is_one_or_not_as_others_say(expression: str, moment: str, is_one: str) -> None:
    found = following(expression, "UTC", moment)
    assert found is not None
    assert (found.at == millis(moment, "UTC")) == (is_one == "yes")


@pytest.mark.parametrize(("expression", "moment", "theirs", "ours"), cases("differs"))
def test_where_dialects_differ_it_is_as_in_cron(expression: str, moment: str, theirs: str, ours: str) -> None:
    found = following(expression, NEW_YORK, moment)
    assert found is not None
    assert found.key == ours != theirs[:16]


@pytest.mark.parametrize("expression", CORPUS["refused"]["cases"])
def test_what_is_no_cron_expression_is_refused(expression: str) -> None:
    with pytest.raises(ToolError):
        normalised(expression, "UTC")


def test_an_endless_expression_is_refused_and_the_longest_that_says_something_new_is_not() -> None:
    every = " ".join(",".join(map(str, numbers)) for numbers in (range(60), range(24), range(1, 32), range(1, 13)))
    assert following(f"{every} sun,mon,tue,wed,thu,fri,sat", "UTC", "2026-01-01T00:00") is not None
    with pytest.raises(ToolError, match="at most 500 characters"):
        normalised(f"{'0,' * 10_000}0 * * * *", "UTC")


@pytest.mark.parametrize("expression", CORPUS["never"]["cases"])
def test_what_never_comes_has_no_time(expression: str) -> None:
    assert following(expression, "UTC", "2026-01-01T00:00") is None


@pytest.mark.parametrize("expression", CORPUS["taken"]["cases"])
def test_what_people_write_has_the_times_of_its_fields(expression: str) -> None:
    found = following(expression, "UTC", "2026-01-01T00:00")
    assert found is not None
    crontab, local = parse_crontab(expression), datetime.fromisoformat(found.key)
    assert (local.hour in crontab.hours, local.minute in crontab.minutes, crontab.has(local.date())) == (True,) * 3


def test_sunday_is_0_and_7_and_a_name() -> None:
    for word in ("0", "7", "sun", "SUN"):
        assert parse_crontab(f"0 0 * * {word}").weekdays == {0}
    assert parse_crontab("0 0 * * 1-5").weekdays == parse_crontab("0 0 * * mon-fri").weekdays == {1, 2, 3, 4, 5}
    assert parse_crontab("0 0 * * fri-mon").weekdays == {5, 6, 0, 1}


def test_a_time_that_spring_skips_comes_an_hour_later_and_once() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["29 01:30 29T02:30", "30 00:30 30T02:30"]
    both = series("30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", 2)
    assert both == ["29 01:30 29T02:30", "30 00:30 30T02:30"], "what falls together comes once"


def test_a_time_that_autumn_repeats_comes_the_first_time_only() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["25 00:30 25T02:30", "26 01:30 26T02:30"]


def test_a_clock_that_is_put_by_half_an_hour() -> None:
    spring = series("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 2)
    assert spring == ["03 15:45 04T02:15", "04 15:15 05T02:15"]
    autumn = series("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", 2)
    assert autumn == ["04 14:45 05T01:45", "05 15:15 06T01:45"]


def test_no_midnight_is_left_out_behind_a_short_day() -> None:
    monday = next_occurrence("0 0 * * mon", "Europe/Berlin", millis("2026-03-28T00:00", "Europe/Berlin"))
    assert monday is not None
    assert monday.key == "2026-03-30T00:00"
    zone = ZoneInfo("Europe/Berlin")
    trigger = CronTrigger(minute=0, hour=0, day_of_week="mon", timezone=zone)
    theirs = trigger.get_next_fire_time(None, datetime(2026, 3, 28, tzinfo=zone))
    assert theirs.date().isoformat() == "2026-04-06", "when this fails, the library can be asked instead of us"


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
def test_each_local_time_has_one_moment_and_none_is_left_out(
    fields: tuple[str, ...], zone: str, moment: datetime
) -> None:
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
    assert len(set(keys)) == len(keys), "each comes once"
    meant = _on_the_wall(spec, place, begin, end)
    assert meant <= set(keys), "what the wall clock shows comes"
    skipped = {key for key in keys if key not in meant}
    assert all(not _exists(key, place) or not begin < _moment(key, place) <= end for key in skipped)


def _on_the_wall(spec: str, zone: ZoneInfo, begin: datetime, end: datetime) -> set[str]:
    """Local times that the clock shows for the first time between two moments and that fit, looked at one by one.

    Those that fall together with one that was skipped are left out: both come at that moment, under one name.
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
    """True where a local time that does not exist comes at the same moment."""
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
