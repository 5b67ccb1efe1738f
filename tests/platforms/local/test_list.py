"""The list of chats: its groups and parts, and what a person can do with a chat."""

from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from hermes_state.chats import ensure_chat
from hermes_state.store.sql import Connection
from hermes_state.values import ChatKind, Millis
from hermes_state.web_chats import ListedChat
from platforms.local.list_routes import grouped, zone_named
from platforms.local.pages import chat_key
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.local.harness import LocalHarness

HOUR = 3_600_000
NOON = Millis(1_795_608_000_000)  # 25 November 2026, 12:00 UTC


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalHarness]:
    async with LocalHarness(tmp_path) as harness, running(harness.adapter, RecordingIntake()):
        yield harness


async def make(local: LocalHarness, count: int, person: str = "") -> None:
    def store(db: Connection) -> None:
        for number in range(count):
            ensure_chat(db, chat_key(f"c{number}", person), ChatKind.LOCAL, None, Millis(NOON + number * HOUR))

    await local.store.write(store)


async def post(local: LocalHarness, path: str, **fields: str) -> tuple[int, str]:
    await local.sign_in()
    async with local.browser.post(f"{local.root}{path}", data=fields, headers=local.headers()) as answer:
        return answer.status, await answer.text()


def listed(hours: float, *, is_pinned: bool = False) -> ListedChat:
    at = Millis(NOON - int(hours * HOUR))
    return ListedChat(
        id=1, name="c", given_name=None, title=None, used_at=at, is_pinned=is_pinned, is_archived=False, is_unread=False
    )  # type: ignore[arg-type]


def test_chats_are_grouped_by_the_readers_day() -> None:
    chats = [listed(900, is_pinned=True), listed(0), listed(11), listed(13), listed(60), listed(200), listed(9_000)]
    found = [(one.heading, one.is_first, one.clock) for one in grouped(chats, UTC, NOON)]
    assert found == [
        ("Pinned", True, "00:00"),
        ("Today", True, "12:00"),
        ("Today", False, "01:00"),
        ("Yesterday", True, "23:00"),
        ("Monday", True, "00:00"),
        ("17 November", True, "04:00"),
        ("15 November 2025", True, "12:00"),
    ]
    [entry] = grouped([listed(11)], ZoneInfo("America/New_York"), NOON)
    assert (entry.heading, entry.clock) == ("Yesterday", "20:00")
    [entry] = grouped([listed(1)], UTC, NOON, "Today")
    assert not entry.is_first, "the heading is above an earlier part of the list"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "Nowhere/Town", "x" * 5_000, "\0"])
def test_an_unknown_zone_is_utc(name: str) -> None:
    assert zone_named(name) is UTC


async def test_the_list_comes_in_parts(local: LocalHarness) -> None:
    await make(local, 120)
    first = await local.listed("c119")
    assert first.count('class="chat-entry"') == 50
    assert 'hx-trigger="revealed"' in first
    assert (await local.listed("c119", count="120")).count('class="chat-entry"') == 120, (
        "a refresh keeps what was loaded"
    )
    assert (await local.listed("c119", after="0-1-1")).count('class="chat-entry"') == 0


@pytest.mark.parametrize("after", ["x", "1-2", "1-2-3-4", "-1-2-3", "9" * 40 + "-1-1", "²-1-1"])
async def test_a_bad_position_is_the_beginning(local: LocalHarness, after: str) -> None:
    await make(local, 2)
    assert (await local.listed("c1", after=after)).count('class="chat-entry"') == 2


async def test_a_chat_of_another_person_cannot_be_changed(local: LocalHarness) -> None:
    await make(local, 1, person="ann")
    for action in ("rename", "pin", "archive", "restore", "unpin"):
        status, said = await post(local, f"/chats/c0/{action}", name="mine")
        assert (status, "no longer exists" in said) == (409, True)
    assert (await post(local, "/chats/c0/explode"))[0] == 404
    assert "c0" not in await local.listed()
