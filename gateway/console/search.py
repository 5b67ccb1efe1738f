"""Search over everything that a person may read, and the messages around a hit."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from urllib.parse import quote

from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import platform_name
from gateway.models.routes import zone_of
from gateway.operator.lookups import LOOKUP_SECONDS, HistoryRequest, SearchRequest, find_place
from gateway.operator.search_advice import search_advice
from gateway.times import parse_time
from hermes_state.admin import console
from hermes_state.chats import Chat, load_chat
from hermes_state.errors import CommandError, StoreUnavailable
from hermes_state.search.full_text import FoundMessage, marked, search
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.values import MessageRole, Millis, recall_id
from hermes_state.web_chats import find_titled, search_scope
from platforms.console import ConsolePage, Values, WebPerson

MAX_HITS = 30
MAX_TITLES = 8
AROUND = 40
"""Number of messages that the page around a hit shows."""


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Search the person's chats, or all chats if an admin asks for that. A search of all chats is recorded."""
    words = query.get("words", "").strip()[:500]
    is_all = person.is_admin and query.get("all") == "1"
    platform = query.get("platform", "") if is_all else ""
    asked: dict[str, str] = {name: query.get(name, "").strip()[:40] for name in ("since", "until")}
    zone = zone_of(context.live.config)
    since = parse_time(asked["since"], zone) if asked["since"] else None
    until = parse_time(asked["until"], zone) if asked["until"] else None
    if until is not None and len(asked["until"]) == 10:  # a date includes its day
        until = Millis(until + int(timedelta(days=1).total_seconds() * 1_000))
    like = person.chat_key("")

    def read(db: Connection) -> tuple[list[FoundMessage], list[str]]:
        scope = search_scope(db, None if is_all else like, platform)
        if scope is None:
            return [], ["There are no messages to search yet."]
        filters = {**scope, "since": since, "until": until}
        found = search(db, words, limit=MAX_HITS, **filters)  # type: ignore[arg-type]  # a dict of known keys
        return found, [] if found else search_advice(db, words, **filters)  # type: ignore[arg-type]

    def read_titles(db: Connection) -> Sequence[tuple[str, str]]:
        if is_all:
            rows = console.load_chats(db, words, platform, 0, MAX_TITLES)
            return [(f"/console/transcript?chat={quote(row.key.name)}", row.label or row.key.name) for row in rows]
        return [(f"/chat/{chat.name}", chat.shown_name) for chat in find_titled(db, like, words, MAX_TITLES)]

    found, advice, titles = list[FoundMessage](), list[str](), list[tuple[str, str]]()
    if words:
        if is_all:
            await context.record(person, "search", f"all chats: {words[:100]}")
        try:
            found, advice = await context.store.read_within(LOOKUP_SECONDS, read)
        except StoreUnavailable as error:
            raise CommandError("The search took too long or could not read the data. Try rarer words.") from error
        titles = list(await context.store.read(read_titles))
    redact = context.live.redactor()
    request = SearchRequest(words=words)
    safe = await asyncio.to_thread(lambda: [request.redacted(hit, redact) for hit in found])
    return {
        "words": words,
        "is_all": is_all,
        "platform": platform,
        **asked,
        "platforms": [(one, platform_name(one)) for one in await context.store.read(console.load_platforms)],
        "titles": [(address, redact(title)) for address, title in titles],
        "advice": [line.split("`") for line in advice],
        "hits": [
            {
                "id": recall_id(hit.message_id),
                "who": _who(hit.role, hit.sender_name, None),
                "at": hit.created_at,
                "place": "" if hit.chat.platform == "local" else f"{platform_name(hit.chat.platform)}, {hit.chat.name}",
                "pieces": marked(hit.snippet, words),
            }
            for hit in safe
        ],
        "is_full": len(found) == MAX_HITS,
    }


async def load_message(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the messages around one message. If an admin opens another person's chat, this is recorded."""
    name = field_of(query, "id")

    def read(db: Connection) -> tuple[Chat, Values] | None:
        place = find_place(db, name)
        chat = load_chat(db, place.chat_id)
        is_own = chat.key == person.chat_key(chat.key.chat_ref)
        if place.message_id is None or not (is_own or person.is_admin):
            return None
        find_ref = "SELECT ref FROM platform_messages WHERE message_id = ? ORDER BY part LIMIT 1"
        ref = scalar_or_none(db, str, find_ref, (place.message_id,)) or str(place.message_id)
        rows = HistoryRequest(place=name, limit=AROUND).read(db)
        return chat, {"rows": rows, "ref": ref, "is_own": is_own}

    found = await context.store.read(read)
    if found is None:
        raise CommandError(f"There is no message {name[:40]}.")
    chat, values = found
    if not values["is_own"]:
        await context.record(person, "read", chat.key.name)
    redact = context.live.redactor()
    return {
        "id": name.lower(),
        "chat": f"/chat/{chat.key.chat_ref}#m-{values['ref']}" if values["is_own"] else "",
        "chat_name": chat.key.name,
        "messages": [
            {
                "id": row.message,
                "who": _who(row.role, row.sender, row.tool),
                "role": row.role.value,
                "at": row.at,
                "text": redact(row.text),
            }
            for row in values["rows"]
            if row.text
        ],
    }


def _who(role: MessageRole, sender: str | None, tool: str | None) -> str:
    if role is MessageRole.ASSISTANT:
        return "Hermes"
    return f"Tool {tool or 'result'}" if role is MessageRole.TOOL else sender or "Person"


SEARCH = Page(about=ConsolePage(name="search", title="Search", is_for_admins=False), load=load)
MESSAGE = Page(
    about=ConsolePage(name="message", title="Message", is_for_admins=False, is_in_menu=False), load=load_message
)
