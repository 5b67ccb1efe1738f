from typing import Any

import pytest

from hermes_state.search.full_text import Order, search_and_tell, tried_words
from hermes_state.sessions import Session
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append
from hermes_state.turns import RunningTurn
from hermes_state.values import MessageRole, Millis, Origin, TurnId
from tests.hermes_state.rows import exchange, make_chat
from tests.hermes_state.rows import start as begin
from tests.hermes_state.search.test_full_text import say, start

SAID = (
    "the staging database listens on port 5433",
    "the production database is on another host",
    "please restart the gateway on the staging host",
    "the configuration of the gateway is in the repository",
    "数据库每天备份",
    "настройки сервера лежат рядом",
)


@pytest.fixture
def session(db: Connection) -> Session:
    made = start(db, "a")
    for number, text in enumerate(SAID):
        say(db, made, text, at=number)
    return made


def asked(
    db: Connection, session: Session | RunningTurn, query: str, **narrow: Any
) -> tuple[list[str], tuple[str, ...]]:
    hits, words = search_and_tell(db, query, lineage_id=session.lineage_id, **narrow)
    return [hit.text for hit in hits], words


@pytest.mark.parametrize(
    ("query", "first", "words"),
    [
        ("staging database", 0, ()),
        ("which socket has the staging database", 0, ("staging", "database")),
        ("host of the production database", 1, ()),
        ("production repository", 3, ()),
        ("5433 gateway", 0, ()),
        ("where is the gateway configured", 3, ()),
        ("备份 时间", 4, ("备份",)),
        ("数据库备份时间", 4, ("数据", "据库", "备份")),
    ],
)
def test_any_word_counts_and_unknown_words_are_told(
    db: Connection, session: Session, query: str, first: int, words: tuple[str, ...]
) -> None:
    texts, named = asked(db, session, query)
    assert texts[0] == SAID[first]
    assert named == words


@pytest.mark.parametrize(
    ("query", "text", "word"),
    [
        ("configration", SAID[3], "configuration"),
        ("confgiuration", SAID[3], "configuration"),
        ("konfiguration", SAID[3], "configuration"),
        ("prduction", SAID[1], "production"),
        ("натсройки", SAID[5], "настройки"),
        ("unheard configration?", SAID[3], "configuration"),
        ("the gateway configration", SAID[3], "configuration"),
    ],
)
def test_a_misspelt_word_is_found(db: Connection, session: Session, query: str, text: str, word: str) -> None:
    texts, words = asked(db, session, query)
    assert texts[0] == text
    assert word in words


@pytest.mark.parametrize(
    "query", ["hots", "prot", "5434", "54333", "a1b2c", "zzzzzzzz", "x" * 2_000, "数居库", "😀😀😀😀😀"]
)
def test_short_words_and_numbers_are_not_corrected(db: Connection, session: Session, query: str) -> None:
    assert asked(db, session, query) == ([], ())


@pytest.mark.parametrize(
    "query",
    [
        *('"staging gateway" database', '"configration"', "configration -door", "configration OR nothing", ""),
        *("staging -database", "configration NOT door", "configration AND door", 'staging "unheard'),
    ],
)
def test_exact_queries_are_not_relaxed(db: Connection, session: Session, query: str) -> None:
    assert asked(db, session, query) == ([SAID[2]] if query == "staging -database" else [], ())


@pytest.mark.parametrize(
    ("query", "order", "sentence"),
    [
        (
            "the gizmo",
            "best",
            "each of these words, also with other endings and similar spellings: gizmo.",
        ),
        ("zebra gizmo", "newest", "also with other endings and similar spellings: zebra, gizmo."),
        ("zebra gizmo", "best", "other endings, similar spellings and (in English) similar meanings: zebra, gizmo."),
        (" ".join(f"word{number}" for number in range(20)), "best", "word6, word7."),
        ('"zebra"', "best", None),
        ("", "best", None),
    ],
)
def test_a_sentence_says_what_was_searched(query: str, order: Order, sentence: str | None) -> None:
    told = tried_words(query, order)
    assert told is None if sentence is None else (told or "").endswith(sentence)


def test_only_three_misspelt_words_are_replaced(db: Connection, session: Session) -> None:
    misspelt = ("configration", "prduction", "databse", "restrt", "staginng")
    assert asked(db, session, " ".join(misspelt))[1] == ("configuration", "production", "database")
    assert asked(db, session, " ".join(misspelt[2:]))[1] == ("database", "restart", "staging")


def test_filters_hold_in_every_step(db: Connection, session: Session) -> None:
    assert asked(db, session, "staging configration", role=MessageRole.ASSISTANT) == ([], ())
    assert asked(db, session, "configration", role=MessageRole.ASSISTANT) == ([], ())
    assert asked(db, session, "configration", since=Millis(4)) == ([], ())
    assert asked(db, session, "configration", since=Millis(3))[0] == [SAID[3]]
    found, words = asked(db, session, "staging repository unheard", since=Millis(3))
    assert (found[0], words) == (SAID[3], ("staging", "repository"))
    assert not set(found) & {*SAID[:3]}


def test_words_of_other_chats_are_neither_found_nor_named(db: Connection, session: Session) -> None:
    other = start(db, "b")
    for text in ("the codename is Zanzibar", "gatewai", "zebra", "stagin"):
        say(db, other, text)
    for query in ("Zanzibar", "Zanzibat", "codename Zanzibar", "zebre", "gatewai", "zebra codename"):
        texts, words = asked(db, session, query)
        assert not {"zanzibar", "codename", "zebra", "gatewai"} & {word.lower() for word in words}
        assert set(texts) <= set(SAID)
    assert asked(db, session, "Zanzibat zebre") == ([], ())
    assert asked(db, other, "Zanzibat")[1] == ("zanzibar",)


def test_the_running_turn_is_not_a_hit(db: Connection) -> None:
    chat_id = make_chat(db)
    exchange(db, chat_id, "the gate code is 4711", "noted")
    turn = begin(db, chat_id, "what is the gate code?")
    assert asked(db, turn, "gate code", turn_id=turn.id)[0] == ["the gate code is 4711", "noted"]


def test_results_of_earlier_searches_are_not_hits(db: Connection, session: Session) -> None:
    text = "Nothing in this conversation matches 'unheard configuration'."
    of_tool = {"tool_call_id": "c", "tool_name": "history_search"}
    append(db, session.id, NewMessage(role=MessageRole.TOOL, origin=Origin.TOOL, text=text, **of_tool), Millis(9))
    assert text not in asked(db, session, "unheard configuration", turn_id=TurnId(99))[0]
    assert asked(db, session, "unheard configuration")[0][0] == text
