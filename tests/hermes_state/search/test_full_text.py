import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.search.full_text import SNIPPET_CHARACTERS, FoundMessage, search
from hermes_state.search.query import parse_query
from hermes_state.search.ranking import RANKED_HITS
from hermes_state.sessions import Session, ensure_active, reset
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append, append_view_row
from hermes_state.values import ChatKey, ChatKind, MessageId, MessageRole, Millis, Origin
from tests.hermes_state.rows import add_chat, migrated
from tests.sampling import examples


def start(db: Connection, chat_ref: str) -> Session:
    key = ChatKey(platform="local", account="local", chat_ref=chat_ref)
    return ensure_active(db, add_chat(db, key, ChatKind.LOCAL), Millis(0))


def say(db: Connection, session: Session, text: str, *, at: int = 0, role: MessageRole = MessageRole.USER) -> MessageId:
    origin = Origin.HUMAN if role is MessageRole.USER else Origin.ASSISTANT
    return append(db, session.id, NewMessage(role=role, origin=origin, text=text), Millis(at))


async def tell(store: Store, *texts: str) -> Session:
    """Store messages of one conversation."""
    session = await store.write(start, "a")
    for text in texts:
        await store.write(say, session, text)
    return session


def texts(hits: list[FoundMessage]) -> list[str]:
    return [hit.text for hit in hits]


async def test_a_hit_names_its_chat_session_and_message(store: Store) -> None:
    session = await store.write(start, "a")
    message_id = await store.write(say, session, "the red door", at=7, role=MessageRole.ASSISTANT)
    (hit,) = await store.read(search, "door")
    assert hit == FoundMessage(
        message_id=message_id,
        session_id=session.id,
        session_key=session.key,
        lineage_id=session.lineage_id,
        lineage_key=session.key,
        chat_id=session.chat_id,
        chat=ChatKey(platform="local", account="local", chat_ref="a"),
        role=MessageRole.ASSISTANT,
        origin=Origin.ASSISTANT,
        sender_name=None,
        created_at=Millis(7),
        text="the red door",
        snippet="the red door",
        score=hit.score,
    )
    assert hit.score > 0


async def test_a_search_can_be_narrowed(store: Store) -> None:
    first, second = await store.write(start, "a"), await store.write(start, "b")
    await store.write(say, first, "door one", at=1)
    await store.write(say, second, "door two", at=2)
    await store.write(say, second, "door three", at=3, role=MessageRole.ASSISTANT)
    assert texts(await store.read(search, "door", order="newest")) == ["door three", "door two", "door one"]
    assert texts(await store.read(search, "door", chat_id=first.chat_id)) == ["door one"]
    assert texts(await store.read(search, "door", lineage_id=second.lineage_id, role=MessageRole.USER)) == ["door two"]
    assert texts(await store.read(search, "door", since=Millis(2), order="newest")) == ["door three", "door two"]
    assert texts(await store.read(search, "door", since=Millis(3), order="best")) == ["door three"]
    assert texts(await store.read(search, "door", limit=1, order="newest")) == ["door three"]


async def test_leaving_out_chats_finds_the_same_in_the_same_order_as_naming_the_others(store: Store) -> None:
    chats = [await store.write(start, name) for name in "abcd"]
    for number, session in enumerate(chats * 5):
        await store.write(say, session, f"a door{' and a door' * (number % 7)} in house {number}", at=number)
    mine, others = [one.chat_id for one in chats[:2]], [one.chat_id for one in chats[2:]]
    for query in ("door", '"a door"', "door house", "house -door", "doo*"):
        named = await store.read(search, query, chat_ids=mine)
        assert texts(await store.read(search, query, other_than=others)) == texts(named), query
    assert len(await store.read(search, "door", other_than=others)) == 10


async def test_a_search_for_an_agent_finds_only_its_conversations_also_in_a_chat_of_several_agents(
    store: Store,
) -> None:
    def fill(db: Connection) -> None:
        for name, agent in (("a", ""), ("a", "ops"), ("b", "ops"), ("c", ""), ("d", "desk")):
            session = start(db, name)
            session = reset(db, session.chat_id, Millis(0)) if session.message_count else session
            db.execute("UPDATE sessions SET agent = ? WHERE id = ?", (agent, session.id))
            say(db, session, f"a door of {agent or 'default'} in {name}")

    await store.write(locks(EVERYTHING)(fill))
    everyone = {"ops": ["ops in a", "ops in b"], "": ["default in a", "default in c"], "desk": ["desk in d"]}
    for agent, wanted in everyone.items():
        hits = texts(await store.read(search, "door", order="newest", agent=agent))
        assert hits[::-1] == [f"a door of {place}" for place in wanted]
        assert len(await store.read(search, "is there a door", agent=agent)) == len(wanted)
    [chat_id] = await store.read(lambda db: db.execute("SELECT id FROM chats WHERE chat_ref = 'a'").fetchone())
    assert texts(await store.read(search, "door", chat_id=chat_id, agent="ops")) == ["a door of ops in a"]
    assert await store.read(search, "door", agent="nobody") == []


async def test_a_query_cannot_escape_the_given_chat(store: Store) -> None:
    first, second = await store.write(start, "a"), await store.write(start, "b")
    await store.write(say, first, "my secret plan")
    escapes = (f"scope:c{first.chat_id}", f'x OR scope:"c{first.chat_id}"', "secret) OR (plan", 'plan" OR "my')
    for query in ("secret", *escapes):
        assert await store.read(search, query, chat_id=second.chat_id) == []


async def test_the_better_of_the_newest_matches_comes_first(store: Store) -> None:
    session = await store.write(start, "a")
    await store.write(say, session, "door door door")
    await store.write(say, session, "a door among very many other words that make it less about one")
    stub = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="summary of the door")
    await store.write(append_view_row, session.id, stub, None, Millis(0))
    best, second = await store.read(search, "door")
    assert best.text == "door door door"
    assert best.score > second.score

    def fill(db: Connection) -> None:
        for _ in range(RANKED_HITS):
            say(db, session, "door and much besides")

    await store.write(fill)
    assert "door door door" not in texts(await store.read(search, "door"))


@pytest.mark.parametrize("query", ["", "   ", "-door", "?!", "AND", '"'])
async def test_a_query_that_asks_for_nothing_finds_nothing(store: Store, query: str) -> None:
    await tell(store, "door")
    assert await store.read(search, query) == []


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("needle", "needle"),
        ("NEEDLE", "needle"),
        ("nee*", "needle"),
        ("absent OR needle", "needle"),
        ('"needle in"', "needle in"),
        ("needle.in", "needle in"),
        ("cafe", "Café"),
        ("数据", "数据库"),
        ("🎉", "🎉"),
    ],
)
async def test_the_snippet_shows_the_match(store: Store, query: str, shown: str) -> None:
    session = await store.write(start, "a")
    filler = "words and\nmore words " * 100
    await store.write(say, session, f"{filler} a needle in Café 数据库 🎉 {filler}")
    (hit,) = await store.read(search, query)
    assert shown in hit.snippet
    assert len(hit.snippet) <= SNIPPET_CHARACTERS + 2
    assert "\n" not in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ('needle OR "🎉🎉🎉🎉🎉🎉z"', "needle " + "🎉" * 50_000),
        ('needle OR "a a a a a a z"', "needle " + "a " * 50_000),
        ('needle OR "a z"', "needle a" + "!" * 100_000 + "a_" * 50_000),
        ('needle OR "🎉 z"', "needle " + "🎉!" * 50_000),
        ("needle " + "x-" * 500_000, "needle"),
    ],
)
async def test_near_misses_are_searched_quickly(store: Store, query: str, text: str) -> None:
    await tell(store, text)
    before = time.process_time()
    await store.read(search, query)
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize(
    ("query", "text", "shown"),
    [
        ("국가", f"기각 {'- ' * 300}국가", " 국가"),
        ("か", f"が {'- ' * 300}か", " か"),
        ("мои", f"мой {'- ' * 300}мои", " мои"),
        ("need", f"needle {'- ' * 300}need", " need"),
        ("in", f"tin {'- ' * 300}in", " in"),
        ("youer", f"{'- ' * 300}请修改youer吧", "youer吧"),
        ("three", "one\ntwo   three", "one two three"),
        ("the rent", f"the {'- ' * 300}the rent is due, {'- ' * 300} the rents", "the rent is due"),
        ("need", f"need {'- ' * 300}needles", "need -"),
    ],
)
async def test_the_snippet_shows_the_place_with_most_words_and_no_similar_ones(
    store: Store, query: str, text: str, shown: str
) -> None:
    await tell(store, text)
    (hit,) = await store.read(search, query)
    assert shown in hit.snippet
    assert text.endswith("s") or not text.endswith(shown) or hit.snippet.endswith(shown)


_WORDS = st.text(alphabet="abcdefg数据库한국🎉_.- ", min_size=1, max_size=30)


@pytest.fixture(scope="module")
def db() -> Iterator[Connection]:
    with migrated() as connection:
        yield connection


@pytest.fixture
def transaction(db: Connection) -> Iterator[Connection]:
    """The module's database, rolled back after the test."""
    db.execute("BEGIN")
    yield db
    db.execute("ROLLBACK")


@examples(60)
@given(rows=st.lists(_WORDS.filter(lambda text: parse_query(f'"{text}"') is not None), min_size=1, max_size=15))
def test_every_stored_text_is_found_by_its_own_words(db: Connection, rows: list[str]) -> None:
    db.execute("BEGIN")
    session = start(db, "a")
    ids = {say(db, session, text): text for text in rows}
    for message_id, text in ids.items():
        hits = search(db, f'"{text}"', lineage_id=session.lineage_id, limit=RANKED_HITS)
        assert message_id in {hit.message_id for hit in hits}
    db.execute("ROLLBACK")


COMMANDS = (
    *("rm -rf /", 'git commit -m "fix"', "find . -name foo", "docker run --rm -it ubuntu", "make -j8 -C build all"),
    *("ps aux | grep -v grep", "ls -lah --color=auto", "kubectl get pods -owide --all-namespaces", "chmod -R u+x bin/"),
    *("find / -type f -name '*.log' -delete", "java -jar app.jar -Xmx512m", "ssh -oStrictHostKeyChecking=no -p 22 a@b"),
    *("SELECT * FROM t WHERE a IS NOT NULL", "pip install -e '.[dev]'", "gcc -Wall -Werror -o main main.c"),
    *("terraform plan -destroy", "sed -i 's/a/b/g' file.txt", "systemctl --user restart hermes", "NOT (a OR b)"),
    *("curl -sSL https://x.y | sh", "cargo run -- -v", "nmap -sS -p- 10.0.0.1", "openssl req -x509 -nodes -days 365"),
    *("ffmpeg -i in.mp4 -vcodec copy out.mkv", "tar -xzvf backup.tar.gz -C /opt"),
)


@pytest.mark.parametrize("around", ["{}", "I ran `{}` and it hung", "first\n  $ {}\nthen this"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_pasted_command_finds_its_own_row_first(transaction: Connection, command: str, around: str) -> None:
    db = transaction
    session = start(db, "a")
    own = say(db, session, around.format(command))
    for piece in (*command.split(), "rm and docker", "name foo", "a or b"):
        say(db, session, f"{piece} " * 5)
    assert search(db, command)[0].message_id == own
    assert own in {hit.message_id for hit in search(db, command, order="newest")}


async def test_words_side_by_side_come_before_rows_that_match_better(store: Store) -> None:
    session = await store.write(start, "a")
    own = await store.write(say, session, "somewhere in a long text about many things stands docker run once")
    for _ in range(30):
        await store.write(say, session, "run docker docker, it will run. run docker, it will run")
    hits = await store.read(search, "docker run", limit=5)
    assert hits[0].message_id == own
    assert hits[0].score > hits[1].score
    assert "docker run" in hits[0].snippet


@pytest.mark.parametrize(("query", "found"), [("red -door", [1]), ("red \u2212door", [0, 2, 3]), ("苹果 -电脑", [5])])
async def test_an_exclusion_still_excludes(store: Store, query: str, found: list[int]) -> None:
    rows = ["the red door", "the red car", "red - door", "red - a door", "苹果 电脑", "苹果 好吃"]
    await tell(store, *rows)
    hits = texts(await store.read(search, query))
    assert {*hits[: len(found)]} == {rows[number] for number in found}
    assert "-" not in query or len(hits) == len(found)


@pytest.mark.parametrize("option", ["--door", "-d", "-do", "--", "-"])
async def test_options_of_commands_exclude_nothing(store: Store, option: str) -> None:
    await tell(store, "the red door, d and do")
    assert texts(await store.read(search, f"red {option}")) == ["the red door, d and do"]


_TYPED = st.lists(
    st.sampled_from(
        ["rm", "-rf", "--all", "-name", "foo", "NOT", "OR", "AND", '"a b"', "(x", "y)", "数据", "-", "*", "b*"]
    ),
    min_size=2,
    max_size=8,
    unique=True,
).map(" ".join)


@examples(80)
@given(typed=_TYPED.filter(lambda text: (parsed := parse_query(text)) is not None and parsed.whole is not None))
def test_pasted_text_finds_its_row_among_the_first_hits(db: Connection, typed: str) -> None:
    db.execute("BEGIN")
    session = start(db, "a")
    own = say(db, session, f"once {typed} and more")
    for word in typed.split():
        say(db, session, f"{word} {word}")
    say(db, session, " and ".join(typed.split()))
    assert own in [hit.message_id for hit in search(db, typed, lineage_id=session.lineage_id)][:2]
    db.execute("ROLLBACK")
