"""Search for questions: names, dates, forms of words, neighbours, and no messages of other chats."""

import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from hermes_state.engines.sqlite.index import complete_index
from hermes_state.search.full_text import load_beside, marked, search, snippet_of
from hermes_state.sessions import Session, load_other_lineages, reset
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import MessageId, MessageRole, Millis, Origin, TurnId
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_full_text import say, start

SAID = [
    ("2026-03-02", "Ada", "I am allergic to walnuts, my throat swells up"),
    ("2026-03-02", "Bob", "good to know, I bring apple cake instead"),
    ("2026-04-05", "Bob", "Ada, are you coming to the lake?"),
    ("2026-04-05", "Ada", "yes, with both dogs"),
    ("2026-05-09", "Will", "we bought the tickets for the ferry"),
    ("2026-05-09", "Will", "cabin 14, it leaves at 6:40"),
    ("2026-06-01", "April", "the ferry was late in the end"),
    ("2026-06-01", "Bob", "the title of the film is The Quiet Harbour"),
    ("2026-07-01", "Bob", "the meeting is moved to Thursday"),
    ("2026-07-02", "Ada", "nothing new from me"),
    ("2026-07-03", "Not", "I sing in a choir"),
    ("2026-07-03", "Or", "so do I"),
]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("eat", "we are eating late"),
        ("writing", "she wrote it"),
        ("box", "two boxes"),
        ("cities", "a city"),
        ("miss", "he missed it"),
        ("used", "I use it"),
    ],
)
def test_short_words_are_found_in_their_other_forms(query: str, text: str) -> None:
    with migrated() as db:
        append(db, start(db, "a").id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), Millis(0))
        assert [hit.text for hit in search(db, query)] == [text]


@pytest.fixture(scope="module")
def group() -> Iterator[tuple[Connection, Session]]:
    with migrated() as db:
        session = start(db, "group")
        for day, name, text in SAID:
            at = Millis(int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1_000))
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, sender_name=name)
            append(db, session.id, row, at)
        yield db, session


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("allergies of Ada", 0),
        ("What is Ada allergic to?", 0),
        ("who has a dog", 3),
        ("When did Will buy the ferry ticket?", 4),
        ("what time does the ferry leave", 5),
        ("the ferry in June 2026", 6),
        ("What did April say about the ferry?", 6),
        ('which film did Bob talk about, was it "The Quiet Harbour"?', 7),
        ('did anybody ever mention the movie "Quiet Title" or its film title', 7),
        ("the meeting is moved to Thursday", 8),
        ("move", 8),
        ("Wer war allergisch gegen Walnuts?", 0),
    ],
)
def test_a_question_finds_its_answer_first(group: tuple[Connection, Session], query: str, first: int) -> None:
    db, session = group
    assert search(db, query, lineage_id=session.lineage_id)[0].text == SAID[first][2]


@pytest.mark.parametrize(("name", "count"), [("Ada", 3), ("ada", 3), ("Will", 2), ("April", 1), ("Not", 1), ("Or", 1)])
def test_a_name_finds_what_its_owner_said(group: tuple[Connection, Session], name: str, count: int) -> None:
    db, session = group
    for filters in ({"lineage_id": session.lineage_id}, {"chat_id": session.chat_id}, {}):
        hits = search(db, name, **filters)  # type: ignore[arg-type]
        said = [hit.sender_name for hit in hits]
        assert said[:count] == [name.capitalize()] * count
        assert all(name.lower() in hit.text.lower() for hit in hits[count:])


def test_the_answer_in_the_next_message_is_found_and_shown(group: tuple[Connection, Session]) -> None:
    db, session = group
    hits = search(db, "did the walnuts surprise anybody", lineage_id=session.lineage_id)
    assert [hit.text for hit in hits[:2]] == [SAID[0][2], SAID[1][2]]
    beside = load_beside(db, hits[:1], TurnId(99))
    assert [row.text for row in beside[hits[0].message_id]] == [SAID[1][2]]
    alone = search(db, "walnuts", lineage_id=session.lineage_id)
    assert [hit.text for hit in alone] == [SAID[0][2]], "a single word finds only messages with this word"


CHAT = [
    ("10:00", "Ada", "my mum needs a tablet for her heart every morning"),
    ("10:01", "Bob", "does your heart surgeon play golf?"),
    ("12:00", "Ada", "the boat at the very end of the long pier is blue"),
    ("12:01", "Bob", "so kind"),
    ("14:00", "Ada", "the rug was 420 euros"),
    ("14:01", "Bob", "the rug is lovely"),
    ("16:00", "Bob", f"{'The wind was in the west. ' * 60}The barn burns. {'The wind was in the west. ' * 60}"),
    ("16:01", "Bob", f"The barn is old. {'The wind was in the west. ' * 120}She burns."),
    ("18:00", "Ada", "the concert is on 3 May"),
    ("18:01", "Ada", "the concert will now be on 9 May"),
    ("20:00", "Bob", "is the harbour full?"),
    ("20:01", "Ada", "empty"),
    ("20:02", "Ada", "and cold"),
    ("20:03", "Bob", "I think so"),
    ("20:04", "Bob", "the harbour is full"),
    ("20:05", "Ada", "really"),
]


@pytest.fixture(scope="module")
def chat() -> Iterator[tuple[Connection, Session]]:
    with migrated() as db:
        session = start(db, "group")
        for clock, name, text in CHAT:
            at = Millis(int(datetime.fromisoformat(f"2026-03-02T{clock}").replace(tzinfo=UTC).timestamp() * 1_000))
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, sender_name=name)
            append(db, session.id, row, at)
        yield db, session


@pytest.mark.parametrize(
    ("query", "first"),
    [
        pytest.param("which medicine does the mother take", 0, id="words of similar meaning"),
        pytest.param("does the surgeon golf", 1, id="words of the query"),
        pytest.param("doctor physician surgeon", 1, id="similar words that are both in the query"),
        pytest.param("what kind of boat", 2, id="a word that says little"),
        pytest.param("how much did they spend for that rug", 4, id="a question about a number"),
        pytest.param("a barn that burns", 6, id="words near each other in a long text"),
        pytest.param("when is the concert, please", 9, id="the newer of two alike"),
    ],
)
def test_a_question_in_other_words_finds_its_answer_first(
    chat: tuple[Connection, Session], query: str, first: int
) -> None:
    db, session = chat
    assert search(db, query, lineage_id=session.lineage_id)[0].text == CHAT[first][2]


@pytest.mark.parametrize(
    ("query", "twice", "once"),
    [
        pytest.param("doctor harbour", "the doctor is a physician now", "the doctor is at the harbour", id="own"),
        pytest.param("earn price barn", "they pay", "old barn", id="of two words"),
    ],
)
def test_words_of_one_meaning_count_once(query: str, twice: str, once: str) -> None:
    with migrated() as db:
        session = start(db, "meanings")
        for number, text in enumerate((*["the harbour is calm today"] * 9, once, twice)):
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text)
            append(db, session.id, row, Millis(90_000_000 * number))
        found = [hit.text for hit in search(db, query, lineage_id=session.lineage_id)]
        assert found.index(once) < found.index(twice)


def test_words_between_chinese_characters_count() -> None:
    texts = ["the sqlite file is in graz", "我用sqlite存数据库在graz的服务器", "sqlite is small", "graz is large"]
    with migrated() as db:
        session = start(db, "mixed")
        for number, text in enumerate(texts):
            say(db, session, text, at=90_000_000 * number)
        assert search(db, "sqlite graz 数据库", lineage_id=session.lineage_id)[0].text == texts[1]
        assert {hit.text for hit in search(db, "sqlite graz", lineage_id=session.lineage_id)[:2]} == {*texts[:2]}


def test_a_snippet_shows_and_marks_words_of_similar_meaning() -> None:
    text = f"{'It rained all day. ' * 40}Her mum takes a tablet. {'It rained all day. ' * 40}"
    snippet = snippet_of(text, "which medicine does the mother take")
    assert [piece for piece, is_match in marked(snippet, "medicine mother") if is_match] == ["mum", "tablet"]
    pieces = [("… ", False), ("mum", True), (" ß ½ and ", False), ("mums", True)]
    assert marked("… mum ß ½ and mums", "mum") == pieces, "folding makes this text longer"
    assert marked("my mum", "mother") == [("my mum", False)], "a single word finds only itself"


def test_a_question_lends_more_to_its_answer_than_a_statement_to_the_next_message(
    chat: tuple[Connection, Session],
) -> None:
    db, session = chat
    found = [hit.text for hit in search(db, "the full harbour", lineage_id=session.lineage_id)]
    assert found.index("empty") < found.index("really")


@pytest.mark.parametrize(("hours", "last"), [(20, "late"), (0, "late " * 80)], ids=["after a pause", "to a long one"])
def test_a_message_lends_less(hours: int, last: str) -> None:
    with migrated() as db:
        session = start(db, "pause")
        for hour, text in ((0, "the full harbour"), (0, "soon"), (20, "a full harbour"), (20 + hours, last)):
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, sender_name="Ada")
            append(db, session.id, row, Millis(3_600_000 * hour))
        found = [hit.text for hit in search(db, "full harbour", lineage_id=session.lineage_id)]
        assert found.index("soon") < found.index(last)


BAD = ["OR", "Not", "the of and", "🎉🎉 😀", "May", "x" * 10_000, "who " * 2_500, '"' * 99, "a\0b c", "\ud800 what now"]


@pytest.mark.parametrize("query", BAD, ids=range(len(BAD)))
def test_any_query_is_answered(group: tuple[Connection, Session], query: str) -> None:
    db, session = group
    assert len(search(db, query, lineage_id=session.lineage_id)) <= len(SAID)


WORDS = [word for _, name, text in SAID for word in (name, *text.split())]


def test_no_hit_is_from_another_chat() -> None:
    """Thousands of queries over chats with the same words and people, and over their earlier conversations."""
    chosen, found = random.Random(3), 0
    with migrated() as db:
        sessions = [start(db, chat) for chat in "abc"]
        for number in range(240):
            if number % 80 == 79:
                sessions = [reset(db, session.chat_id, Millis(number)) for session in sessions]
            session, name = chosen.choice(sessions), chosen.choice(SAID)[1]
            text = " ".join(chosen.sample(WORDS, chosen.randint(1, 6)))
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, sender_name=name)
            append(db, session.id, row, Millis(number))
        say(db, sessions[2], "secretword and walnuts")
        if isinstance(db, sqlite3.Connection):
            complete_index(db)  # otherwise each search would read all messages
        for _ in range(1_400):
            query = " ".join(chosen.sample([*WORDS, "walnutz", "secretwort", "secretword", "-the", '"Ada'], 3))
            session = chosen.choice(sessions[:2])
            others = load_other_lineages(db, session.chat_id, session.lineage_id, 50)
            own = search(db, query, lineage_id=session.lineage_id)
            earlier = search(db, query, chat_id=session.chat_id, lineage_ids=others)
            chat = search(db, query, chat_ids=[session.chat_id])
            assert {hit.chat_id for hit in (*own, *earlier, *chat)} <= {session.chat_id}, query
            assert {hit.lineage_id for hit in own} <= {session.lineage_id}
            assert session.lineage_id not in {hit.lineage_id for hit in earlier}
            beside = load_beside(db, [*own, *earlier], TurnId(99))
            assert {_chat_of(db, row.id) for rows in beside.values() for row in rows} <= {session.chat_id}
            found += len(own) + len(earlier)
    assert found > 1_400


def _chat_of(db: Connection, message_id: MessageId) -> int:
    return int(db.execute("SELECT chat_id FROM messages WHERE id = ?", (message_id,)).fetchone()[0])


def test_a_search_with_a_date_finds_messages_behind_many_older_ones() -> None:
    with migrated() as db:
        session = start(db, "dated")
        for number in range(405):
            text = "the red boat and the blue harbour" if number < 400 else f"a red boat {number}"
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text)
            append(db, session.id, row, Millis(1_000 * number))
        found = search(db, "red boat blue harbour", lineage_id=session.lineage_id, since=Millis(400_000), limit=10)
        assert len(found) == 5
