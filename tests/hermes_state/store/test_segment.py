import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.search.fts5 import match_text
from hermes_state.search.query import MAX_TERMS, parse_query
from hermes_state.store.segment import INDEXED_CHARACTERS, segment
from tests.sampling import examples

CJK = "修改数据库你好こんにちはカタカナ한국어ｱｲｳ々〇𠀋𰻞"
EMOJI = "😀🎉🥲🫠☕→⌚🚀"
ORDINARY = [
    *("what?", "don't", "a/b", "50%", "#channel", "user@example.com", "/compress", "foo-bar", "a:b", "hello -world"),
    *("https://example.com/?q=1&r=2", "C++", "AND", "OR", "NOT", "a AND", "OR b", "NOT c", "NEAR(a b)", "*", "a*b"),
    *("(", ")", "()", "((a)", "a)) b", '"', '""', '"open quote', '"a"b"', "text:a", "scope:c12", "{a b}:c", "", " "),
    *("-", "--", "-a", "- a", "a -", "a NOT", "NOT NOT a", "\\", "'; DROP TABLE messages; --", "\ud83d", "ﷺ", "^a"),
    *("修改youer", "“quotes”", "🙂", "👩‍👩‍👧", "\u200b", "a\u00adb", "½", "①", "ǆ", "İ", "ß", "e\u0301", "\0"),
]


def index(*texts: str) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    register_functions(db)
    db.execute("CREATE VIRTUAL TABLE messages_fts USING fts5(text, scope, tokenize='unicode61 remove_diacritics 2')")
    db.executemany("INSERT INTO messages_fts VALUES (fts_text(?), 'c1')", [(text,) for text in texts])
    return db


def found(db: sqlite3.Connection, query: str) -> set[int]:
    parsed = parse_query(query)
    expression = None if parsed is None else parsed.expression or parsed.whole
    if expression is None:
        return set()
    match = f'text:({match_text(expression)}) AND scope:"c1"'
    return {row[0] - 1 for row in db.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH ?", (match,))}


def matches(query: str, *texts: str) -> list[str]:
    with contextlib.closing(index(*texts)) as db:
        return [texts[number] for number in sorted(found(db, query))]


def test_ascii_text_is_indexed_unchanged_up_to_the_limit() -> None:
    text = "def foo_bar(): return 1  # done"
    assert segment(text) is text
    assert segment(None) == ""
    assert len(segment("a" * (INDEXED_CHARACTERS + 10))) == INDEXED_CHARACTERS


def test_a_cjk_run_becomes_pairs_and_an_emoji_a_word() -> None:
    assert segment("数据库 ok 😀").split() == ["数据", "据库", "库", "ok", "xe1f600"]


def test_a_lone_cjk_character_is_searched_as_a_prefix() -> None:
    parsed = parse_query("库")
    assert parsed is not None
    assert parsed.expression is not None
    assert match_text(parsed.expression) == '" 库 "*'


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("数", "我的数据库坏了"),
        ("了", "我的数据库坏了"),
        ("数据", "我的数据库坏了"),
        ("的数据库坏", "我的数据库坏了"),
        ("修改youer", "请修改youer吧"),
        ("改youer吧", "请修改youer吧"),
        ("😀", "gut😀so"),
        ("好😀", "你好😀"),
        ("🫠", "oh 🫠"),
        ("foo_bar.baz", "call foo_bar.baz() now"),
        ("foo_bar", "call foo_bar.baz() now"),
        ("CAFE", "ein Café"),
        ("café", "ein CAFE"),
        ("dat*", "the database"),
        ("数据*", "我的数据库坏了"),
        ('"the database"', "drop the database now"),
        ("don't", "I don't know"),
        ("#general", "in #general"),
    ],
)
def test_words_in_a_text_are_found(query: str, text: str) -> None:
    assert matches(query, text, "something else", "完全不同") == [text]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("apple pear", ["apple pear", "pear apple plum"]),
        ("apple AND pear", ["apple pear", "pear apple plum"]),
        ("apple OR plum", ["apple", "apple pear", "pear apple plum", "plum"]),
        ("apple -pear", ["apple"]),
        ("apple NOT pear", ["apple"]),
        ("pear NOT (apple OR plum)", []),
        ("(apple OR plum) -pear", ["apple", "plum"]),
        ('"apple pear"', ["apple pear"]),
        ("-apple", []),
        ("apple or pear", []),
        ("(apple", ["apple", "apple pear", "pear apple plum"]),
        ("apple) pear", ["apple pear", "pear apple plum"]),
        ("AND apple", ["apple", "apple pear", "pear apple plum"]),
    ],
)
def test_operators_are_applied(query: str, expected: list[str]) -> None:
    assert matches(query, "apple", "apple pear", "pear apple plum", "plum") == expected


@pytest.mark.parametrize("query", [*ORDINARY, "(" * 5_000 + "apple" + ")" * 5_000])
def test_ordinary_text_is_never_a_syntax_error(query: str) -> None:
    matches(query, "something")


def test_no_letter_is_a_syntax_error(small_index: sqlite3.Connection) -> None:
    for code in range(0, 0x30000, 7):
        found(small_index, chr(code))


def wanted(query: str) -> list[str]:
    parsed = parse_query(query)
    assert parsed is not None
    return [term.text for term in parsed.wanted]


def test_the_wanted_words_of_a_query_are_bounded_and_not_excluded() -> None:
    assert len(wanted(" ".join(f"word{number}" for number in range(10_000)))) == MAX_TERMS
    assert wanted("apple -pear NOT (plum cherry) grape") == ["apple", "grape"]


@pytest.fixture(scope="module")
def small_index() -> sqlite3.Connection:
    return index("something", "别的")


_NOISE = st.lists(
    st.one_of(
        st.sampled_from(['"', "*", "(", ")", "-", "AND", "OR", "NOT", "NEAR", "^", ":", "+", "{", "}", " ", "\0", "a"]),
        st.text(max_size=5),
        st.characters(categories=["Cs", "Co", "Cn", "Lo", "So", "Mn"]),
    ),
    max_size=40,
).map("".join)


@examples(150)
@given(query=_NOISE)
def test_no_query_is_a_syntax_error(small_index: sqlite3.Connection, query: str) -> None:
    found(small_index, query)


@examples(100)
@given(
    texts=st.lists(st.text(alphabet=CJK + EMOJI + " 。a", max_size=12), min_size=1, max_size=8),
    query=st.text(alphabet=CJK + EMOJI, min_size=1, max_size=5),
    data=st.data(),
)
def test_cjk_and_emoji_match_only_where_they_occur(texts: list[str], query: str, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(texts))
    runs = source.translate({ord("。"): " ", ord("a"): " "}).split()
    if runs:  # half of the queries occur in the text
        query = data.draw(st.sampled_from([query, max(runs, key=len)[:5]]))
    with contextlib.closing(index(*texts)) as db:
        assert found(db, query) == {number for number, text in enumerate(texts) if query in text}
