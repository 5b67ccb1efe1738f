"""Dividers in a chat where a compression replaced older messages for the model."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, load_points, plan_undo, split, undo_compression
from hermes_state.sessions import reset
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import ChatId, ChatKind, LineageId, MessageRole, Millis, Origin
from platforms.local.pages import chat_key
from tests.hermes_state.rows import START, exchange
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.local.harness import LocalHarness

SUMMARY = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="a summary")


@pytest.fixture
async def local(tmp_path: Path, intake: RecordingIntake) -> AsyncIterator[LocalHarness]:
    async with LocalHarness(tmp_path) as harness, running(harness.adapter, intake):
        await harness.sign_in()
        yield harness


def talk(db: Connection, at: int) -> LineageId:
    chat = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(START))
    return exchange(db, chat, f"question at {at}", f"answer at {at}", at=START + at).lineage_id


def compress(db: Connection, lineage: LineageId, at: int) -> ChatId:
    """Compress the whole view from 16,471 to 10,705 tokens."""
    row = CompressionRow(layer="manual", tokens_before=16_471, tokens_after=10_705)
    parent = load_view(db, lineage).session
    split(db, SplitPlan(parent=parent, context=(SUMMARY,), row=row), Millis(START + at))
    return parent.chat_id


def undo(db: Connection, lineage: LineageId, at: int) -> None:
    plan = plan_undo(db, lineage)
    assert plan is not None
    undo_compression(db, plan, Millis(START + at))


def dividers(html: str) -> list[str]:
    found = re.findall(r'class="entry condensed.*?</div>', html, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>|^[^>]*>", " ", one).split()) for one in found]


async def test_a_divider_stands_between_the_messages_before_and_after_a_compression(local: LocalHarness) -> None:
    lineage = await local.store.write(talk, 0)
    await local.store.write(compress, lineage, 1_000)
    await local.store.write(talk, 2_000)
    html = await local.page()
    assert dividers(html) == ["Older messages were condensed here: 16,471 → 10,705 tokens view summary undo"]
    assert html.index("question at 0") < html.index("entry condensed") < html.index("question at 2000")


async def test_only_the_newest_compression_that_was_not_undone_can_be_undone(local: LocalHarness) -> None:
    lineage = await local.store.write(talk, 0)
    chat = await local.store.write(compress, lineage, 1_000)
    await local.store.write(compress, lineage, 2_000)
    await local.store.write(compress, lineage, 3_000)

    async def states() -> list[str]:
        points = await local.store.read(load_points, chat, 0)
        return ["undone" if one.is_undone else "undoable" if one.is_undoable else "" for one in points]

    assert await states() == ["", "", "undoable"]
    await local.store.write(undo, lineage, 4_000)
    assert await states() == ["", "undoable", "undone"]
    found = dividers(await local.page())
    assert [line.endswith("undo") for line in found] == [False, True, False]
    assert "undone" in found[-1]
    await local.store.write(reset, chat, Millis(START + 5_000))
    assert await states() == ["", "", "undone"]


async def test_an_open_page_shows_what_happens_to_a_compression_at_once(local: LocalHarness) -> None:
    lineage = await local.store.write(talk, 0)
    async with local.opened() as stream:
        chat = await local.store.write(compress, lineage, 500)
        await local.adapter.show_typing(chat_key("main"))
        assert dividers(await stream.until("writing-now"))[0].endswith("undo")
        await local.store.write(compress, lineage, 1_000)
        await local.adapter.show_typing(chat_key("main"))
        assert [one.endswith("undo") for one in dividers(await stream.until("writing-now"))] == [False, True]
        await local.store.write(undo, lineage, 2_000)
        await local.adapter.show_typing(chat_key("main"))
        first, second = dividers(await stream.until("writing-now"))
        assert first.endswith("undo")
        assert "undone" in second
        await local.store.write(reset, chat, Millis(START + 3_000))
        await local.adapter.show_typing(chat_key("main"))
        [first] = dividers(await stream.until("writing-now"))
        assert first.endswith("view summary")


async def test_each_page_of_a_long_chat_has_the_dividers_of_its_own_time(local: LocalHarness) -> None:
    lineage = await local.store.write(talk, 0)
    await local.store.write(compress, lineage, 500)
    for at in range(1_000, 71_000, 1_000):
        await local.store.write(talk, at)
    await local.store.write(compress, lineage, 80_000)
    html = await local.page()
    assert len(dividers(html)) == 1
    before = re.search(r"earlier\?before=(\d+)", html)
    assert before is not None
    url = f"{local.root}/chat/main/earlier?before={before[1]}"
    async with local.browser.get(url, headers=local.headers()) as answer:
        assert len(dividers(await answer.text())) == 1
