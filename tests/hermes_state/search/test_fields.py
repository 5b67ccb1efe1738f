import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.admin.repair import repair_database
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import complete_index
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, migrate, shipped_migrations
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.search.full_text import search
from hermes_state.search.index import OUTDATED, find_fault, mend_index
from hermes_state.sessions import Session, load_session
from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import (
    Document,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    Quote,
    SessionId,
    ToolCall,
)
from tests.databases import sqlite_only
from tests.hermes_state.helpers import check_index, closed_after, execute
from tests.hermes_state.rows import make_chat, migrated
from tests.hermes_state.search.test_full_text import say, start
from tests.sampling import examples

_CONTENT = "first line\nupstream 青い鳥 {\tport 8471"
ARGUMENTS = json.dumps({"path": "/etc/nginx/sites.conf", "content": _CONTENT, "env": {"DB_HOST": ["lapwing"]}})


def put(
    db: Connection, session: Session, body: MessageBody, text: str | None = None, role: MessageRole = MessageRole.USER
) -> MessageId:
    origin = Origin.HUMAN if role is MessageRole.USER else Origin.ASSISTANT
    return append(db, session.id, NewMessage(role=role, origin=origin, text=text, body=body), Millis(0))


def fault_of(store: Store) -> str | None:
    """Return the fault of a database file's index."""
    return find_fault(store.path) if isinstance(store, SqliteStore) else None


def called(arguments: str, name: str = "write_file") -> MessageBody:
    return MessageBody(calls=(ToolCall(id="c1", name=name, arguments=arguments),))


DOCUMENT = MessageBody(
    documents=(Document(name="lease_2024.txt", text="words " * 200 + "the heron pays 1,250 for 苍鹭"),)
)
QUOTE = MessageBody(quote=Quote(message_ref="1", author="Ann", text="the bittern moved to the reeds"))


@pytest.mark.parametrize(
    ("body", "query", "shown"),
    [
        (DOCUMENT, "heron", "the heron pays"),
        (DOCUMENT, "苍鹭", "for 苍鹭"),
        (DOCUMENT, "lease_2024", "lease_2024.txt"),
        (QUOTE, "bittern reeds", "the bittern moved"),
        (called(ARGUMENTS), "write_file", "write_file"),
        (called(ARGUMENTS), "upstream", "upstream"),
        (called(ARGUMENTS), "青い鳥", "青い鳥"),
        (called(ARGUMENTS), "8471", "port 8471"),
        (called(ARGUMENTS), '"first line upstream"', "first line"),
        (called(ARGUMENTS), "nginx/sites.conf", "/etc/nginx/sites.conf"),
        (called(ARGUMENTS), "lapwing", "lapwing"),
        (called('{"broken": "no \\u82cd\\u9dfa", "half'), "苍鷺", "苍鷺"),
        (called("not JSON at all, lapwing"), "lapwing", "lapwing"),
    ],
)
async def test_every_field_is_found_and_shown_where_the_match_is(
    store: Store, body: MessageBody, query: str, shown: str
) -> None:
    session = await store.write(start, "a")
    for number in range(5):
        await store.write(say, session, f"something else {number}")
    message_id = await store.write(put, session, body, "please look at this " * 20)
    hit, *_ = await store.read(search, query)
    assert hit.message_id == message_id
    assert shown in hit.snippet
    assert hit.text == "please look at this " * 20


async def test_a_row_with_only_calls_is_found(store: Store) -> None:
    session = await store.write(start, "a")
    await store.write(put, session, called(ARGUMENTS), None, MessageRole.ASSISTANT)
    for order in ("best", "newest"):
        (hit,) = await store.read(search, "upstream", order=order, role=MessageRole.ASSISTANT)
        assert hit.text == ""
        assert "upstream" in hit.snippet


@sqlite_only
async def test_changed_and_deleted_rows_leave_no_index_entries(store: Store) -> None:
    session = await store.write(start, "a")
    message_id = await store.write(put, session, called(ARGUMENTS))
    await execute(store, "UPDATE messages SET body = NULL WHERE id = ?", message_id)
    assert await store.read(search, "upstream") == []
    other = await store.write(put, session, DOCUMENT)
    await execute(store, "DELETE FROM messages WHERE id = ?", other)
    assert await store.read(search, "heron") == []
    for body in ("{", "[1]", '{"calls": 7}'):
        await execute(store, "UPDATE messages SET body = ? WHERE id = ?", body, message_id)
        assert await store.read(lambda db: db.execute("SELECT count(*) FROM messages_search").fetchone()) == (1,)
        assert find_fault(store.path) is None, "an invalid body does no harm"
    await check_index(store)


@pytest.mark.parametrize(
    "arguments",
    [
        '"' + '\\"' * 300_000,
        "[" * 300_000,
        '{"a": "' * 60_000,
        '{"n": ' + "9" * 300_000 + "}",
        '{"half": "\\ud83d", "nul": "\\u0000", "odd": "\\q\\',
        "\\" * 300_001,
    ],
    ids=["quotes", "depth", "open", "number", "halves", "backslashes"],
)
async def test_arguments_of_any_kind_are_stored(store: Store, arguments: str) -> None:
    session = await store.write(start, "a")
    before = time.process_time()
    message_id = await store.write(put, session, called(arguments), "findable")
    assert time.process_time() - before < 2
    (hit,) = await store.read(search, "findable")
    assert hit.message_id == message_id
    assert fault_of(store) is None
    await execute(store, "DELETE FROM messages WHERE id = ?", message_id)
    assert fault_of(store) is None


async def test_a_long_row_is_indexed_up_to_the_limit(store: Store) -> None:
    session = await store.write(start, "a")
    documents = (Document(name="a", text="word " * (INDEXED_CHARACTERS // 5)), Document(name="b", text="beyond"))
    await store.write(put, session, MessageBody(documents=documents), "lapwing")
    assert len(await store.read(search, "lapwing word")) == 1
    assert await store.read(search, "beyond") == []


@pytest.fixture(scope="module")
def db() -> Iterator[Connection]:
    with migrated() as connection:
        yield connection


_STRINGS = st.lists(st.text(alphabet='abc数据库é😀"\\\n\t/ ', max_size=12), min_size=1, max_size=4)


@examples(60)
@given(strings=_STRINGS, is_ascii=st.booleans())
def test_every_string_of_any_arguments_is_found(db: Connection, strings: list[str], is_ascii: bool) -> None:
    db.execute("BEGIN")
    session = start(db, "a")
    own = put(db, session, called(json.dumps({"list": strings}, ensure_ascii=is_ascii)))
    for string in strings:
        for words in string.replace('"', " ").replace("\\", " ").split():
            hits = search(db, f'"{words}"', lineage_id=session.lineage_id)
            assert not any(map(str.isalnum, words)) or own in [hit.message_id for hit in hits]
    if isinstance(db, sqlite3.Connection):
        complete_index(db)
        db.execute("INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)")
    db.execute("ROLLBACK")


async def test_an_earlier_versions_index_is_used_until_the_new_one_is_built(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        register_functions(old)
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(old, path, shipped_migrations()[:7])
        old.execute("INSERT INTO meta VALUES ('segment_version', '1') ON CONFLICT DO NOTHING")
        chat = make_chat(old)
        old.execute("INSERT INTO sessions (key, chat_id, lineage_id, started_at) VALUES ('00000x', ?, 1, 0)", (chat,))
        said = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text="the door is red", body=DOCUMENT)
        append(old, SessionId(1), said, Millis(0))
    await (await SqliteStore.open(path)).close()
    assert find_fault(path) == OUTDATED
    assert repair_database(path) is None, "it is sound"
    async with closed_after(SqliteStore.open(path)) as store:
        assert len(await store.read(search, "door")) == 1
        assert await store.read(search, "heron") == []
        session = await store.read(load_session, SessionId(1))
        message_id = await store.write(put, session, QUOTE, "the door is blue")
        await execute(store, "UPDATE messages SET text = 'no more' WHERE id = ?", message_id)
        assert [hit.text for hit in await store.read(search, "door")] == ["the door is red"]
        await mend_index(store)
        assert len(await store.read(search, "heron")) == 1
        assert len(await store.read(search, "bittern")) == 1
        assert find_fault(path) is None
        await check_index(store)
