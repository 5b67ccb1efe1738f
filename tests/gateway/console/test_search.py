"""Search: what a person may read, filters, and what the page says if nothing matches."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.console.chats import load as load_chats
from gateway.console.chats import load_message
from gateway.console.chats import load_search as load
from hermes_state.admin import audit
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError
from hermes_state.sessions import ensure_active, set_title
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis
from platforms.console import WebPerson, platform_name
from platforms.local.pages import chat_key
from tests.gateway.console.contexts import GUEST, OWNER, context_of
from tests.gateway.helpers import TestGateway, serving
from tests.hermes_state.rows import START, exchange

DAY = 86_400_000


@contextlib.asynccontextmanager
async def filled(store: Store, tmp_path: Path) -> AsyncIterator[TestGateway]:
    """The owner's chats, a guest's chat, and a Telegram chat."""

    def talk(db: Connection) -> None:
        own = say(
            db, chat_key("main"), ChatKind.LOCAL, "which web framework is small", "Starlette is a small framework"
        )
        set_title(db, ensure_active(db, own, START).id, "Picking a library")
        say(db, chat_key("main", "guest"), ChatKind.LOCAL, "the guest's framework secret", "noted")
        telegram = ChatKey(platform="telegram", account="telegram", chat_ref="42")
        say(db, telegram, ChatKind.DIRECT, "a framework on Telegram", "noted")

    async with serving(store, tmp_path, is_started=False) as made:
        await store.write(talk)
        yield made


def say(db: Connection, key: ChatKey, kind: ChatKind, question: str, answer: str) -> ChatId:
    chat = ensure_chat(db, key, kind, None, Millis(START))
    exchange(db, chat, question, answer)
    return chat


async def hits(gateway: TestGateway, person: WebPerson = OWNER, **query: str) -> list[str]:
    found = (await load(context_of(gateway), person, query))["hits"]
    return ["".join(text for text, _ in hit["pieces"]) for hit in found]


async def test_each_person_finds_only_their_own_chats(store: Store, tmp_path: Path) -> None:
    async with filled(store, tmp_path) as gateway:
        assert {line.split()[0] for line in await hits(gateway, words="framework")} == {"which", "Starlette"}
        assert await hits(gateway, GUEST, words="framework") == ["the guest's framework secret"]
        assert await hits(gateway, GUEST, words="framework", all="1") == ["the guest's framework secret"]
        titles = (await load(context_of(gateway), OWNER, {"words": "LIBRARY pick"}))["titles"]
        assert titles == [("/chat/main", "Picking a library")]
        assert (await load(context_of(gateway), GUEST, {"words": "library"}))["titles"] == []


async def test_an_admin_finds_all_chats_and_that_is_recorded(store: Store, tmp_path: Path) -> None:
    async with filled(store, tmp_path) as gateway:
        assert len(await hits(gateway, words="framework", all="1")) == 4
        assert await hits(gateway, words="framework", all="1", platform="telegram") == ["a framework on Telegram"]
        entries = await gateway.store.read(audit.load, 10)
        assert [(one.action, one.subject) for one in entries] == [("search", "all chats: framework")] * 2


async def test_lists_and_filters_tell_the_bots_of_a_platform_apart(store: Store, tmp_path: Path) -> None:
    def talk_elsewhere(db: Connection) -> None:
        key = ChatKey(platform="telegram", account="telegram/operations", chat_ref="42")
        say(db, key, ChatKind.DIRECT, "a framework for operations", "noted")

    async with filled(store, tmp_path) as gateway:
        await store.write(talk_elsewhere)
        of_one = ["a framework for operations"]
        assert await hits(gateway, words="framework", all="1", platform="telegram/operations") == of_one
        assert len(await hits(gateway, words="framework", all="1", platform="telegram")) == 2
        found = await load_chats(context_of(gateway), OWNER, {"platform": "telegram/operations"})
        assert [row.key.name for row in found["rows"]] == ["telegram/operations:42"]
        assert found["platforms"] == ["local", "telegram", "telegram/operations"]
        assert [platform_name(name) for name in found["platforms"]] == ["Web chat", "Telegram", "Telegram (operations)"]


async def test_matching_words_are_marked(store: Store, tmp_path: Path) -> None:
    async with filled(store, tmp_path) as gateway:
        found = (await load(context_of(gateway), OWNER, {"words": "small framew*"}))["hits"]
        matches = [[text for text, is_match in hit["pieces"] if is_match] for hit in found]
        assert sorted(matches) == [["framew", "small"], ["small", "framew"]], "the databases rank these two differently"


@pytest.mark.parametrize(
    ("dates", "count"),
    [
        ({"since": "2025-12-30", "until": "2030-01-01"}, 2),
        ({"until": "2025-12-31"}, 0),
        ({"since": "2030-01-01"}, 0),
    ],
)
async def test_dates_limit_the_search(store: Store, tmp_path: Path, dates: dict[str, str], count: int) -> None:
    async with filled(store, tmp_path) as gateway:
        assert len(await hits(gateway, words="framework", **dates)) == count


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "what about the zebra gizmo?",
            "other endings, similar spellings and (in English) similar meanings: zebra, gizmo?.",
        ),
        ("AND OR -", "Type at least one word."),
        ('"no such phrase"', "Try the words without them."),
    ],
)
async def test_a_search_without_hits_says_what_it_tried(
    store: Store, tmp_path: Path, words: str, sentence: str
) -> None:
    async with filled(store, tmp_path) as gateway:
        advice = (await load(context_of(gateway), OWNER, {"words": words}))["advice"]
        assert sentence in " ".join("`".join(pieces) for pieces in advice)


async def test_a_message_opens_with_the_messages_around_it(store: Store, tmp_path: Path) -> None:
    async with filled(store, tmp_path) as gateway:
        context = context_of(gateway)
        [own, *_] = (await load(context, OWNER, {"words": "which web"}))["hits"]
        found = await load_message(context, OWNER, {"id": own["id"]})
        assert [one["text"] for one in found["messages"]] == [
            "which web framework is small",
            "Starlette is a small framework",
        ]
        assert found["chat"].startswith("/chat/main#m-")
        with pytest.raises(CommandError, match="There is no message"):
            await load_message(context, GUEST, {"id": own["id"]})
        [other] = (await load(context, GUEST, {"words": "secret"}))["hits"]
        assert (await load_message(context, OWNER, {"id": other["id"]}))["chat"] == ""
        assert (await gateway.store.read(audit.load, 1))[0].subject == "local:main#guest"
        for name in ("local:main", "m99999", "x" * 300):
            with pytest.raises(CommandError):
                await load_message(context, OWNER, {"id": name})
        [start, *_] = await gateway.rows("SELECT substr(key, 1, 4) FROM sessions")  # all sessions start alike
        for name in ("local:main", *start, "m99999", own["id"]):
            with pytest.raises(CommandError, match=rf"^There is no message {name}\.$"):
                await load_message(context, GUEST, {"id": name})
