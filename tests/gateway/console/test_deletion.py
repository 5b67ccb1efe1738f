"""Deletion of a chat: what the question lists, and who may delete."""

from pathlib import Path

import pytest

from agent.memory.notes import MemoryDirectory, added
from gateway.console.chats import FORGETTING, delete, forget, load_forgetting
from gateway.console.chats import load_deletion as load
from hermes_state.admin.audit import load as load_audit
from hermes_state.admin.deletion import load_hidden_chats, load_requests
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


async def test_an_admin_deletes_any_chat_or_person_and_this_is_recorded(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        chat = await store.write(ensure_chat, chat_key("main"), ChatKind.LOCAL, None, START)
        values = await load_forgetting(context, OWNER, {"what": "local:main"})
        assert values["sentences"][0] == "This removes the chat. You cannot undo this."
        with pytest.raises(CommandError, match="No person has the id"):
            await forget(context, OWNER, {"what": "person telegram:7"})
        assert "has begun" in await forget(context, OWNER, {"what": "local:main"})
        assert [one.chat_id for one in await store.read(load_requests)] == [chat]
        [entry] = await store.read(load_audit, 10)
        assert (entry.action, entry.subject) == ("forget", "local:main")
        assert not GUEST.may_see(FORGETTING.about)
