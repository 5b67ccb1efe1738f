"""Chats of all platforms, and the transcript of one of them. Every look at a transcript is recorded."""

from collections.abc import Mapping

from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import platform_name
from gateway.models.selection import name_of
from gateway.operator.lookups import HistoryRequest, find_place
from hermes_state.admin import audit, console
from hermes_state.chats import load_chat
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection
from hermes_state.text import dollars
from hermes_state.values import MessageRole
from platforms.console import ConsolePage, Values, WebPerson

PAGE_CHATS = 50
PAGE_MESSAGES = 100


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    words, platform = query.get("words", "").strip()[:200], query.get("platform", "")
    first = int(start) if (start := query.get("from", "")).isascii() and start.isdecimal() and len(start) < 9 else 0

    def read(db: Connection) -> Values:
        rows = console.load_chats(db, words, platform, first, PAGE_CHATS + 1)
        return {"rows": rows, "platforms": console.load_platforms(db)}

    values, model = await context.store.read(read), context.live.config.model
    rows = [
        {
            "name": row.key.name,
            "label": row.label or row.key.name,
            "platform": platform_name(row.key.platform),
            "kind": row.kind.value,
            "model": name_of(model, row.model),
            "used_at": row.used_at,
            "cost": dollars(row.cost),
            "is_unreachable": row.is_unreachable,
        }
        for row in values["rows"]
    ]
    return {
        "rows": rows[:PAGE_CHATS],
        "platforms": [(name, platform_name(name)) for name in values["platforms"]],
        "words": words,
        "platform": platform,
        "first": first,
        "next": first + PAGE_CHATS if len(rows) > PAGE_CHATS else None,
    }


async def load_transcript(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the newest messages of a chat, or those before the message `before`, without secrets."""
    name, before = field_of(query, "chat"), query.get("before", "")
    request = HistoryRequest(
        place=name, limit=PAGE_MESSAGES, before=int(before) if before.isdecimal() and len(before) < 18 else None
    )

    def read(db: Connection) -> Values:
        chat_id = find_place(db, name).chat_id
        return {"chat": load_chat(db, chat_id), "messages": request.read(db)}

    values = await context.store.read(read)
    chat = values["chat"].key
    if chat != person.chat_key(chat.chat_ref):
        await context.record(person, "read", chat.name)
    redact = Redactor(context.live.loaded.secrets())
    shown = [
        {
            "id": message.message,
            "who": message.tool if message.role is MessageRole.TOOL else message.sender or "Hermes",
            "role": message.role.value,
            "at": message.at,
            "text": redact(message.text),
            "calls": message.calls,
            "is_undone": message.taken_back,
        }
        for message in values["messages"]
    ]
    return {
        "name": name,
        "messages": shown,
        "earlier": values["messages"][0].message[1:] if len(shown) == PAGE_MESSAGES else None,
    }


async def load_audit(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    return {"entries": await context.store.read(audit.load, 200)}


CHATS = Page(about=ConsolePage(name="chats", title="Chats"), load=load)
TRANSCRIPT = Page(about=ConsolePage(name="transcript", title="Transcript", is_in_menu=False), load=load_transcript)
AUDIT = Page(about=ConsolePage(name="audit", title="Audit list", is_in_menu=False), load=load_audit)
