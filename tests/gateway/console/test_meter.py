"""The context meter of a chat: the same figures as `/status`."""

from pathlib import Path

from gateway.console.lineage import load_meter as load
from hermes_state.chats import ensure_chat
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, ChatKind, Millis
from platforms.local.pages import chat_key
from tests.gateway.console.contexts import GUEST, OWNER, context_of
from tests.gateway.helpers import serving
from tests.hermes_state.rows import START, exchange


def talk(db: Connection, text: str) -> ChatId:
    chat = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(START))
    exchange(db, chat, text, "noted")
    return chat


async def test_the_meter_shows_the_prompt_the_window_and_where_each_layer_starts(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        assert (await load(context, OWNER, {"chat": "main"}))["used"] is None
        await store.write(talk, "a short question")
        small = await load(context, OWNER, {"chat": "main"})
        await store.write(talk, "many words " * 30_000)
        large = await load(context, OWNER, {"chat": "main"})
        assert 0 < small["used"] < large["used"] < large["window"]
        assert [label for label, _, _ in large["ticks"]] == ["Compression starts", "Hygiene starts"]
        threshold = large["ticks"][0][1]
        assert (small["is_near"], large["is_near"]) == (False, large["used"] >= threshold * 85 // 100)
        assert (await load(context, GUEST, {"chat": "main"}))["used"] is None
