"""Keeps open pages equal to what a reload would show."""

import asyncio

import structlog

from hermes_state.errors import StateError
from hermes_state.store.writer import Store
from platforms.local.chats import LiveChat
from platforms.local.entries import Entry
from platforms.local.history import PAGE_ROWS, load_history
from platforms.local.markdown import to_html

log = structlog.get_logger()


async def show_progress(store: Store, chat: LiveChat) -> None:
    """Show new and changed rows of the chat on its open pages. If the database fails, a reload shows them."""
    while chat.stream.watchers:
        version = chat.version
        try:
            entries, _ = await store.read(load_history, chat.key, PAGE_ROWS, None, chat.shown)
        except StateError as error:
            log.debug("local.progress_unreadable", error=type(error).__name__)
            return
        await render_ahead(chat, *chat.changed(entries))
        if version == chat.version:
            chat.show_loaded(entries)
            return


async def render_ahead(chat: LiveChat, *entries: Entry) -> None:
    """Render longer texts to HTML in a thread, because each update of a preview can take a second."""
    texts = [entry.text for entry in entries if not entry.is_plain]
    # Even the slowest text of 500 characters takes only ten milliseconds.
    if chat.stream.watchers and sum(map(len, texts)) > 500:
        await asyncio.to_thread(lambda: [to_html(text) for text in texts])
