"""Chats and their messages: list, transcript, search, the history of one message, and deletion.

If an admin looks at another person's messages, this is recorded in the audit list.
"""

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from agent.memory.notes import MemoryDirectory, Target, entries_in
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.models.routes import zone_of
from gateway.models.selection import name_of
from gateway.operator.forgetting import describe, find_target, stays
from gateway.operator.lookups import LOOKUP_SECONDS, HistoryMessage, HistoryRequest, SearchRequest, find_place
from gateway.operator.search_advice import search_advice
from gateway.operator.why import load_explained, why_lines
from gateway.times import parse_time
from hermes_state.admin import audit, console
from hermes_state.admin.deletion import DeletionTarget, hide, is_busy, load_extent
from hermes_state.admin.deletion import request as request_deletion
from hermes_state.agents import stored_name
from hermes_state.chats import Chat, load_chat
from hermes_state.errors import CommandError, StoreUnavailable, ToolError
from hermes_state.search.full_text import FoundMessage, marked, search
from hermes_state.search.ranking import SearchFilter
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.text import whole_number
from hermes_state.values import ChatId, ChatKey, Millis, parse_recall_id, recall_id
from hermes_state.web_chats import existing, find_titled, search_scope
from platforms.console import ConsolePage, Values, WebPerson

PAGE_CHATS = 50
PAGE_MESSAGES = 100
MAX_HITS = 30
MAX_TITLES = 8


# ---- chats and transcripts


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    words, platform = query.get("words", "").strip()[:200], query.get("platform", "")
    first = whole_number(query.get("from", ""), 8) or 0
    rows = await context.store.read(
        console.load_chats, words, platform, first, PAGE_CHATS + 1, stored_name(query.get("agent"))
    )
    return {
        "rows": rows[:PAGE_CHATS],
        "platforms": await context.store.read(console.load_platforms),
        "words": words,
        "platform": platform,
        "first": first,
        "next": first + PAGE_CHATS if len(rows) > PAGE_CHATS else None,
        "model_name": lambda row: name_of(context.runtime.of(row.agent).config.model, row.model),
    }


async def load_transcript(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the newest messages of a chat, or those before the message `before`, without secrets."""
    name, before = field_of(query, "chat"), whole_number(query.get("before", ""))
    request = HistoryRequest(place=name, limit=PAGE_MESSAGES, before=before)
    chat, rows = await context.store.read(lambda db: (load_chat(db, find_place(db, name).chat_id), request.read(db)))
    if not person.owns(chat.key):
        await context.record(person, "read", chat.key.name)
    earlier = rows[0].message[1:] if len(rows) == PAGE_MESSAGES else None
    return {"name": name, "messages": rows, "earlier": earlier, "redact": context.live.redactor()}


async def load_audit(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    return {"entries": await context.store.read(audit.load, 200)}


# ---- search


async def load_search(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Search the person's chats, or all chats if an admin asks for that. A search of all chats is recorded."""
    words = query.get("words", "").strip()[:500]
    is_all = person.is_admin and query.get("all") == "1"
    platform = query.get("platform", "") if is_all else ""
    dates = {name: query.get(name, "").strip()[:40] for name in ("since", "until")}
    like, times = None if is_all else person.chat_key(""), _times(context, dates)
    scope = (like, platform, stored_name(query.get("agent")))
    if words and is_all:
        await context.record(person, "search", f"all chats: {words[:100]}")
    try:
        found, advice = await context.store.read_within(LOOKUP_SECONDS, _search, words, scope, times)
    except StoreUnavailable as error:
        raise CommandError("The search took too long or could not read the data. Try less common words.") from error
    titles = await context.store.read(_titles, words, scope)
    redact, request = context.live.redactor(), SearchRequest(words=words)
    safe = await asyncio.to_thread(lambda: [request.redacted(hit, redact) for hit in found])
    return {
        "words": words,
        "is_all": is_all,
        "platform": platform,
        **dates,
        "platforms": await context.store.read(console.load_platforms),
        "titles": [(address, redact(title)) for address, title in titles],
        "advice": [line.split("`") for line in advice],
        "hits": [{"id": recall_id(one.message_id), "pieces": marked(one.snippet, words), "row": one} for one in safe],
        "is_full": len(found) == MAX_HITS,
    }


def _times(context: ConsoleContext, dates: Mapping[str, str]) -> SearchFilter:
    zone = zone_of(context.live.config)
    since, until = (parse_time(text, zone) if (text := dates[name]) else None for name in ("since", "until"))
    if until is not None and len(dates["until"]) == 10:  # a date includes its day
        until = Millis(until + 86_400_000)
    return {"since": since, "until": until}


def _search(
    db: Connection, words: str, scope: tuple[ChatKey | None, str, str | None], times: SearchFilter
) -> tuple[list[FoundMessage], list[str]]:
    """Return the best matches, or suggestions for a better search if there are none."""
    if not words:
        return [], []
    like, platform, agent = scope
    if (filters := search_scope(db, like, platform)) is None:
        return [], ["There are no messages to search yet."]
    found = search(db, words, limit=MAX_HITS, **SearchFilter(**{**filters, **times, "agent": agent}))
    return found, [] if found else search_advice(words)


def _titles(db: Connection, words: str, scope: tuple[ChatKey | None, str, str | None]) -> list[tuple[str, str]]:
    """Return addresses and titles of the chats whose titles match. A person's own list does not tell agents apart."""
    like, platform, agent = scope
    if not words or (like is not None and agent is not None):
        return []
    if like is not None:
        return [(f"/chat/{chat.name}", chat.shown_name) for chat in find_titled(db, like, words, MAX_TITLES)]
    rows = console.load_chats(db, words, platform, 0, MAX_TITLES, agent)
    return [(f"/console/transcript?chat={quote(row.key.name)}", row.label or row.key.name) for row in rows]


# ---- one message


async def load_message(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the messages around one message."""
    name = field_of(query, "id")
    if not person.is_admin and parse_recall_id(name) is None:
        raise CommandError(f"There is no message {name[:40]}.")  # other refusals tell which chats exist

    def read(db: Connection) -> tuple[Chat, str, list[HistoryMessage]] | None:
        place = find_place(db, name)
        chat = load_chat(db, place.chat_id)
        if place.message_id is None or not (person.is_admin or person.owns(chat.key)):
            return None
        find_ref = "SELECT ref FROM platform_messages WHERE message_id = ? AND ref >= 'A' ORDER BY part LIMIT 1"
        ref = scalar_or_none(db, str, find_ref, (place.message_id,)) or str(place.message_id)
        return chat, ref, HistoryRequest(place=name, limit=40).read(db)

    if (found := await context.store.read(read)) is None:
        raise CommandError(f"There is no message {name[:40]}.")
    chat, ref, rows = found
    if not (is_own := person.owns(chat.key)):
        await context.record(person, "read", chat.key.name)
    redact = context.live.redactor()
    return {
        "id": name.lower(),
        "chat": f"/chat/{chat.key.chat_ref}#m-{ref}" if is_own else "",
        "chat_name": chat.key.name,
        "messages": [{**msgspec.structs.asdict(row), "text": redact(row.text)} for row in rows if row.text],
    }


async def load_why(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the history of one message, from its arrival to its delivery."""
    if not (name := query.get("message", "").strip()[:40]):
        return {"name": "", "lines": [], "chat": ""}
    found = await context.store.read(load_explained, name)
    chat = found.turn.chat.name
    await context.record(person, "explain", f"{name} in {chat}")
    lines, redact = why_lines(found, zone_of(context.live.config))[1:], context.live.redactor()
    return {"name": name, "lines": [redact(line.removeprefix("- ")) for line in lines], "chat": chat}


# ---- deletion


async def load_deletion(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load a summary of what deleting a chat removes, and the notes in the chat's long-term memory."""
    key = person.chat_key(field_of(query, "chat"))
    chat_id = (await context.store.read(existing, key)).id
    target = DeletionTarget(chat_id=chat_id)
    extent = await context.store.read(load_extent, target)
    home = context.live.loaded.home
    folders = [MemoryDirectory(path=path) for path in (home / "memory", *home.glob("agents/*/memory"))]
    notes = await asyncio.to_thread(lambda: [note for folder in folders for note in _notes(folder, chat_id)])
    return {
        "sentence": " ".join([describe(extent), *stays(target, extent)]),
        "notes": [context.live.redactor()(note) for note in notes],
    }


def _notes(directory: MemoryDirectory, chat_id: ChatId) -> list[str]:
    found: list[str] = []
    targets: tuple[Target, ...] = ("memory", "user")
    for target in targets:
        try:
            found += [entry.text for entry in entries_in(directory.read(chat_id, target))]
        except ToolError as error:
            found.append(str(error))
    return found


async def delete(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    key = person.chat_key(field_of(form, "chat"))
    if (lineage_id := await context.store.write(hide, key, context.clock.now())) is not None:
        await context.runtime.agent.context.pending.drop(lineage_id)
    context.remove_deleted()
    return "The chat has been deleted. You will get a message when it is gone from the database."


async def load_forgetting(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load a summary of what deleting a chat, a conversation or a person removes."""
    words = field_of(query, "what").split()
    target = await context.store.read(find_target, words)
    extent = await context.store.read(load_extent, target)
    return {"what": " ".join(words), "sentences": [describe(extent), *stays(target, extent)]}


async def forget(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    what = field_of(form, "what")
    target = await context.store.read(find_target, what.split())
    if await context.store.read(is_busy, target):
        raise CommandError("An answer is being written there. Stop it or wait for it, then try again.")
    await context.store.write(request_deletion, target)
    await context.record(person, "forget", what)
    context.remove_deleted()
    return "The deletion has begun and takes a few seconds."


CHATS = Page(about=ConsolePage(name="chats", title="Chats"), load=load)
TRANSCRIPT = Page(about=ConsolePage(name="transcript", title="Transcript", is_in_menu=False), load=load_transcript)
AUDIT = Page(about=ConsolePage(name="audit", title="Audit list", is_in_menu=False), load=load_audit)
SEARCH = Page(about=ConsolePage(name="search", title="Search", is_for_admins=False), load=load_search)
MESSAGE = Page(
    about=ConsolePage(name="message", title="Message", is_for_admins=False, is_in_menu=False), load=load_message
)
WHY = Page(about=ConsolePage(name="why", title="Explain a message"), load=load_why)
DELETION = Page(
    about=ConsolePage(name="deletion", title="Delete a chat", is_for_admins=False, is_in_menu=False),
    load=load_deletion,
    actions={"delete": delete},
)
FORGETTING = Page(
    about=ConsolePage(name="forget", title="Delete", is_in_menu=False), load=load_forgetting, actions={"forget": forget}
)
