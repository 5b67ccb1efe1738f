"""Previews of turns that run on another node, which the tests play."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gateway.cluster import previews as remote
from gateway.cluster.previews import RemotePreview, RemotePreviews, StoredPreview
from hermes_state import outbox
from hermes_state.aio import cancel_all
from hermes_state.chats import ensure_chat
from hermes_state.outbox import Reply
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn, store_preview, take_up
from hermes_state.values import ChatKind
from tests.gateway.helpers import DIRECT, Hang, Serve, TestGateway, eventually, serving, settled
from tests.hermes_state.rows import START, finish, start


def _start(db: Connection) -> RunningTurn:
    return start(db, ensure_chat(db, DIRECT, ChatKind.DIRECT, None, START), "q")


@asynccontextmanager
async def showing(store: Store, folder: Path) -> AsyncIterator[tuple[TestGateway, RemotePreviews, RunningTurn]]:
    """Account owner that shows a stored turn of another node, before the first preview."""
    async with serving(store, folder) as gateway:
        make = partial(gateway.turns.previews.live, kind=RemotePreview)
        shown = RemotePreviews(store=store, adapters=gateway.adapters, make=make)
        gateway.delivery.close_remote = shown.close
        task = asyncio.create_task(shown.run())
        try:
            yield gateway, shown, await store.write(_start)
        finally:
            await cancel_all([task])


async def say(store: Store, shown: RemotePreviews, turn: RunningTurn, text: str) -> None:
    """Store the text so far as the other node, and deliver the hint."""
    await store.write(store_preview, turn, text, START)
    shown.note(turn.id)


async def test_an_answer_grows_in_one_message_and_the_final_replaces_it(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        await say(store, shown, turn, "")
        await eventually(lambda: gateway.adapter.typed, "typing")
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
        await say(store, shown, turn, "the whole")
        await eventually(lambda: gateway.adapter.texts() == ["the whole"], "it grows")
        await store.write(finish, turn, "the whole answer")
        gateway.delivery.wake(turn.chat_id)
        assert await gateway.replies(1) == ["the whole answer"]


async def test_the_final_answer_waits_for_a_preview_in_flight_and_replaces_it(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        gateway.adapter.may_show.clear()
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.previews, "a preview is in flight")
        await say(store, shown, turn, "the whole")
        await eventually(lambda: shown._shown[turn.id].text == "the whole", "more to show")
        await store.write(finish, turn, "the whole answer")
        gateway.delivery.wake(turn.chat_id)
        shown.note(turn.id)  # a hint that is late
        await settled()
        assert gateway.adapter.requests == []
        gateway.adapter.may_show.set()
        assert await gateway.replies(1) == ["the whole answer"]
        await settled()
        assert len(gateway.adapter.previews) == 1


async def test_a_preview_continues_after_a_notice(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
        notice = Reply(chat_id=turn.chat_id, markdown="by the way", dedupe_key="notice")
        await store.write(outbox.enqueue, notice, START)
        gateway.delivery.wake(turn.chat_id)
        await eventually(lambda: gateway.adapter.texts() == ["the", "by the way"], "the notice")
        await say(store, shown, turn, "the whole")
        await eventually(lambda: gateway.adapter.texts() == ["the whole", "by the way"], "it grows in its place")


async def test_typing_is_renewed_only_after_a_write_of_the_other_node(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotePreview, "_typing_overlap_seconds", 5.0)
    async with showing(store, tmp_path) as (gateway, shown, turn):
        for count in (1, 2):
            await say(store, shown, turn, "")
            await eventually(lambda count=count: len(gateway.adapter.typed) == count, "typing")  # type: ignore[misc]
            await settled()
        assert len(gateway.adapter.typed) == 2


async def test_a_node_that_resumes_the_turn_continues_in_the_same_message(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        gateway.adapter.may_show.clear()
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.previews, "a preview is in flight")
        taken = await store.write(take_up, turn)
        gateway.adapter.may_show.set()
        await eventually(
            lambda: gateway.adapter.texts() == ["the"], "the placeholder, which the old node's epoch names"
        )
        await say(store, shown, taken, "another")
        await eventually(lambda: gateway.adapter.texts() == ["another"], "it grows in the same place")
        await store.write(finish, taken, "another answer")
        gateway.delivery.wake(turn.chat_id)
        assert await gateway.replies(1) == ["another answer"]


async def test_the_account_owner_resumes_the_turn_in_the_same_message(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
        gateway.lanes.wake(turn.chat_id)  # it finds the open turn
        assert await gateway.replies(1) == ["echo: q"]


async def test_the_next_turn_leaves_the_previous_answer_in_place(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
        await store.write(finish, turn, "the whole answer")  # at another node; its hint is on its way
        hang = Hang(says="the next")
        gateway.model.script.append(hang)
        await gateway.say("and then?")
        await eventually(lambda: "the next" in gateway.adapter.texts(), "a preview of the next turn")
        hang.release()
        await gateway.replies(2)
        assert gateway.adapter.texts()[0] == "the whole answer"


async def test_a_silent_preview_ends(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(remote, "SILENT_SECONDS", 0.1)
    async with showing(store, tmp_path) as (gateway, shown, turn):
        await say(store, shown, turn, "the")
        await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
        await eventually(lambda: not shown._shown, "it ends")


async def test_a_node_that_does_not_serve_the_account_shows_no_preview(store: Store, tmp_path: Path) -> None:
    async with showing(store, tmp_path) as (gateway, shown, turn):
        gateway.adapters.supervised[DIRECT.account].ownership = None
        await say(store, shown, turn, "the")
        shown._hinted.add(turn.id)  # as if it had the account when the hint came
        shown._arrived.set()
        await settled()
        assert gateway.adapter.previews == gateway.adapter.typed == []


async def test_a_worker_stores_the_preview_of_its_turn(
    serve: Serve, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.previews.STORE_SECONDS", 0.0)
    async with serve() as gateway:
        turn = await store.write(_start)
        previews = replace(gateway.turns.previews, elsewhere=partial(StoredPreview, store=store, clock=gateway.clock))
        gateway.adapters.supervised[DIRECT.account].ownership = None
        preview = previews.of(turn)
        assert isinstance(preview, StoredPreview)
        preview.begin()
        await gateway.until_rows("SELECT 1 FROM previews WHERE text = ''")
        preview.show("the")
        await gateway.until_rows("SELECT 1 FROM previews WHERE text = 'the'")
        await preview.close()
        assert preview.is_stored
        assert gateway.adapter.previews == []
