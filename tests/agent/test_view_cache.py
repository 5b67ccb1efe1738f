"""A cached view always equals the view loaded from the rows."""

import random

import pytest

from hermes_state import transcripts as views
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.sessions import Session, load_tip, start_session
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, ViewCache, append, hide, load_view
from hermes_state.values import ChatKind, MessageRole, Millis, Origin
from tests.hermes_state.rows import START, key_of


async def conversation(store: Store) -> Session:
    chat = await store.write(ensure_chat, key_of(), ChatKind.DIRECT, None, START)
    return await store.write(start_session, chat, START)


async def say(store: Store, session: Session, text: str) -> None:
    row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text)
    await store.write(append, session.id, row, START)


async def test_the_cache_equals_the_rows_after_any_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_CACHED_ROWS", 3)
    monkeypatch.setattr(views, "MAX_CACHED_BYTES", 4_000)
    chance = random.Random(7)
    cache = ViewCache(store)
    sessions = [await conversation(store) for _ in range(3)]
    for number in range(120):
        session = chance.choice(sessions)
        if chance.random() < 0.15 and (seen := (await store.read(load_view, session.lineage_id)).transcript):
            await store.write(hide, session.id, [chance.choice(seen).id], "undo", Millis(START + number))
        else:
            await say(store, session, f"message {number}")
        assert await cache.load(session.lineage_id) == await store.read(load_view, session.lineage_id)


async def test_a_compressed_conversation_uses_less_of_the_cache(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(views, "MAX_CACHED_BYTES", 10_000)
    cache = ViewCache(store)
    session = await conversation(store)
    await say(store, session, "x" * 8_000)
    view = await cache.load(session.lineage_id)
    plan = SplitPlan(
        parent=view.session,
        context=[NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="handoff")],
        row=CompressionRow(layer="manual"),
    )
    await store.write(split, plan, START)
    first = (await cache.load(session.lineage_id)).transcript[0]
    await say(store, (await store.read(load_tip, session.lineage_id)), "x" * 5_000)
    assert (await cache.load(session.lineage_id)).transcript[0] is first
    assert (await cache.load(session.lineage_id)).transcript[0] is first, "it fits into the cache"


async def test_unused_views_are_evicted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_CACHED_ROWS", 1)
    cache = ViewCache(store)
    session = await conversation(store)
    await say(store, session, "hello")
    first = (await cache.load(session.lineage_id)).transcript[0]
    assert (await cache.load(session.lineage_id)).transcript[0] is first, "not evicted while in use"
    monkeypatch.setattr(views, "MAX_IDLE_SECONDS", -1.0)
    assert (await cache.load(session.lineage_id)).transcript[0] is not first


async def test_a_text_counts_by_its_size_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(views, "MAX_CACHED_BYTES", 3_000)
    cache = ViewCache(store)
    plain, colourful = await conversation(store), await conversation(store)
    await say(store, plain, "x" * 1_000)
    await say(store, colourful, "\N{SLIGHTLY SMILING FACE}" * 1_000)
    for session, is_kept in ((plain, True), (colourful, False)):
        first = (await cache.load(session.lineage_id)).transcript[0]
        assert ((await cache.load(session.lineage_id)).transcript[0] is first) == is_kept
