"""Both engines find a text in every form in which people type it."""

import contextlib
import unicodedata
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.operator.lookups import incompleteness
from hermes_state.engines.postgres.tsvector import RENEWED_ROWS, VERSION_NOTE, renew_words, tokens
from hermes_state.search.full_text import SNIPPET_CHARACTERS, search, snippet_of
from hermes_state.search.index import keep_index, load_progress
from hermes_state.store.segment import folded, segment_query
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import MessageRole, Millis, Origin
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_full_text import say, start
from tests.postgres import Postgres


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


PAIRS = [
    (decomposed("한국어"), "나는 한국어를 배운다"),
    ("한국어", decomposed("나는 한국어를 배운다")),
    ("국", decomposed("나는 한국어를 배운다")),
    ("ガイド", decomposed("このガイドは")),
    (decomposed("がくせい"), "彼はがくせいだ"),
    ("ガイド", "このｶﾞｲﾄﾞは"),
    ("ｶﾞｲﾄﾞ", "このガイドは"),
    ("ABC123", "製品ＡＢＣ１２３です"),
    ("ＡＢＣ", "the abc of it"),
    ("１２３", "number 123 here"),
    ("محمد", "قال مُحَمَّدٌ ذلك"),
    ("مُحَمَّد", "قال محمد ذلك"),
    ("الى", "ذهب إلى البيت"),
    ("احمد", "جاء أحمد اليوم"),
    ("مدرسه", "هذه مدرسة كبيرة"),
    ("کتاب", "هذا كتاب جديد"),
    ("محمد", "قال محـــمد ذلك"),
    ("2024", "سنة ٢٠٢٤ انتهت"),
    ("۲۰۲۴", "the year 2024"),
    ("میروم", "من می\u200cروم خانه"),
    ("שלום", "אמר שָׁלוֹם לכולם"),
    ("שָׁלוֹם", "אמר שלום לכולם"),
    ("กิน", "ฉันกินข้าวแล้ว"),
    ("ข้าว", "ฉันกินข้าวแล้ว"),
    ("ข้าว", "ไป กินข้าว"),
    ("ภาษาไทย", "ฉันพูดภาษาไทยได้"),
    ("ນ້ຳ", "ຂ້ອຍດື່ມນ້ຳແລ້ວ"),
    ("ລາວ", "ພາສາລາວງາມ"),
    ("ភាសា", "ខ្ញុំរៀនភាសាខ្មែរ"),
    ("မြန်မာ", "ကျွန်တော်မြန်မာစာဖတ်တယ်"),
    ("किताब", "यह किताब अच्छी है"),
    ("क़लम", "मेरा \u0958लम कहाँ है"),
    ("istanbul", "İSTANBUL güzel"),
    ("İstanbul", "istanbul güzel"),
    ("ısparta", "ISPARTA gülleri"),
    ("strasse", "Die Straße ist lang"),
    ("STRASSE", "Die straße ist lang"),
    ("Straße", "Die STRASSE ist lang"),
    ("fix", "the ﬁx is in"),
    ("x2", "so x² it is"),
    ("H2O", "mostly H₂O"),
    ("łódź", "w lodz jest"),
    ("lodz", "w Łódź jest"),
    ("σοφος", "ὁ ΣΟΦΌΣ εἶπεν"),
    ("елка", "новая ёлка"),
    ("мой", decomposed("это мой дом")),
    ("tiếng việt", decomposed("nói Tiếng Việt")),
    ("tieng viet", "nói Tiếng Việt"),
    ("𝐛𝐨𝐥𝐝", "a bold word"),
    ("bold", "a 𝐛𝐨𝐥𝐝 word"),
    ("cooperate", "they co\u00adoperate"),
    ("Mikhail", "Mikhaʾil wrote"),
    ("Mikhāʾīl", "about Mikhail"),
    ("Yeshua", "Yeshuʿa said"),
    ("o'zbek", "Oʻzbek tili"),
    ("oʻzbek", "o'zbek tili"),
    ("п'ять", "їх пʼять"),
    ("oeuvre", "une œuvre"),
    ("œuvre", "une oeuvre"),
    ("encyclopaedia", "encyclopædia britannica"),
    ("Thor", "Þór kom"),
    ("hobz", "il-ħobż"),
    ("हिंदी", "हिन्दी भाषा"),
    ("हिन्दी", "हिंदी भाषा"),
    ("जिंदगी", "ज़िंदगी है"),
    ("लड़का", "लडका गया"),
    ("เเละ", "และฉัน"),
    ("ہے", "یہ هے"),
    ("👍🏽", "good 👍"),
]
DIFFERENT = [
    ("กัน", "ฉันกินข้าวแล้ว"),
    ("दान", "अच्छा दिन है"),
    ("かくせい", "彼はがくせいだ"),
    ("ハス", "バスに乗る"),
    ("мои", "это мой дом"),
    ("моі", "це мої друзі"),
    ("कल", "यह कुल है"),
]
NOISE = ("nothing of the kind", "完全不同", "ไม่มีอะไร", "كلمة أخرى")


@pytest.fixture(scope="module")
def sqlite() -> Iterator[Connection]:
    with migrated() as db:
        yield db


@pytest.fixture(scope="module")
def postgres_database(postgres: Postgres) -> Iterator[Connection]:
    # imported here, because most runs do not need it
    from hermes_state.engines.postgres.connection import PostgresConnection

    with postgres.fresh_database() as url, contextlib.closing(PostgresConnection.open(url)) as db:
        yield db


def wrong(db: Connection) -> list[tuple[str, str]]:
    """Return pairs of a query and a text that it does not find, or not alone."""
    session = start(db, "folding")
    texts = dict.fromkeys(chain(NOISE, (text for _, text in (*PAIRS, *DIFFERENT))))
    for number, text in enumerate(texts):
        append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), Millis(number))
    found = {query: {hit.text for hit in search(db, query, limit=50)} for query, _ in (*PAIRS, *DIFFERENT)}
    missed = [(query, text) for query, text in PAIRS if text not in found[query] or found[query] & {*NOISE}]
    return missed + [(query, text) for query, text in DIFFERENT if text in found[query]]


def test_each_spelling_finds_the_others(sqlite: Connection) -> None:
    assert wrong(sqlite) == []


@pytest.mark.cluster
def test_each_spelling_finds_the_others_on_postgresql(postgres_database: Connection) -> None:
    postgres_database.execute("BEGIN")
    assert wrong(postgres_database) == []
    postgres_database.execute("ROLLBACK")


@pytest.mark.cluster
async def test_words_from_an_earlier_version_are_stored_again(postgres: Postgres) -> None:
    from hermes_state.engines.postgres.store import PostgresStore  # imported here, because most runs do not need it

    with postgres.fresh_database() as url:
        store = await PostgresStore.open(url)
        session = await store.write(start, "a")
        for number in range(RENEWED_ROWS + 20):
            await store.write(say, session, f"{decomposed('한국어')} {number}")
        as_before = "UPDATE message_words SET words = CAST('old' AS tsvector)"
        await store.write(lambda db: db.execute(as_before))
        assert await store.read(load_progress) is None, "of a new database"
        await store.write(lambda db: db.execute("DELETE FROM meta WHERE key = ?", (VERSION_NOTE,)))
        assert await store.read(search, "한국어") == []
        assert await store.read(load_progress) == 0
        assert not await store.write(renew_words)
        assert await store.read(load_progress) == 100 * RENEWED_ROWS // (RENEWED_ROWS + 20)
        assert await store.read(incompleteness) is not None
        await keep_index(store)  # like the next start
        assert len(await store.read(search, "한국어", limit=200)) == RENEWED_ROWS + 20
        assert await store.read(load_progress) is None
        await store.close()


@pytest.mark.parametrize(("query", "text"), PAIRS)
def test_a_snippet_shows_the_original_where_it_matches(query: str, text: str) -> None:
    filler = "".join(f"{decomposed('été')} ﬃ ^{'q' * (number % 7)} " for number in range(300))
    shown = snippet_of(f"{filler}{text} {filler}", query)
    assert text in shown
    assert len(shown) <= SNIPPET_CHARACTERS + 2


@given(st.text(max_size=60))
def test_folding_twice_changes_nothing(text: str) -> None:
    assert folded(folded(text)) == folded(text)


@given(st.text(max_size=40))
def test_a_composed_and_a_decomposed_text_have_the_same_words(text: str) -> None:
    assert tokens(unicodedata.normalize("NFC", text)) == tokens(unicodedata.normalize("NFD", text))
    assert segment_query(text) == segment_query(unicodedata.normalize("NFC", text)) or text.isascii()
