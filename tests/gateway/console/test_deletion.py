"""Deletion of a chat: what the question lists, and who may delete."""

from pathlib import Path

import pytest

from agent.memory.notes import MemoryDirectory, added
from gateway.console.chats import delete
from gateway.console.chats import load_deletion as load
from hermes_state.admin.deletion import load_hidden_chats
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError
from hermes_state.store.writer import Store
from hermes_state.values import ChatKind
from platforms.local.pages import chat_key
from tests.gateway.console.contexts import GUEST, OWNER, context_of
from tests.gateway.helpers import serving
from tests.hermes_state.rows import START


async def test_only_the_person_of_a_chat_deletes_it_with_its_notes(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        chat = await store.write(ensure_chat, chat_key("main"), ChatKind.LOCAL, None, START)
        notes = MemoryDirectory(path=context.live.loaded.home / "memory")
        notes.change(chat, "memory", None, lambda text: added(text, "likes tea"))
        values = await load(context, OWNER, {"chat": "main"})
        assert values["notes"] == ["likes tea"]
        assert values["sentence"].startswith("This removes the chat. You cannot undo this.")
        for act in (load, delete):
            with pytest.raises(CommandError, match="no longer exists"):
                await act(context, GUEST, {"chat": "main"})
        assert "has been deleted" in await delete(context, OWNER, {"chat": "main"})
        assert await store.read(load_hidden_chats) == [chat]
