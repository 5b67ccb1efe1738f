"""Repairs of real database files, damaged with real bytes."""

import asyncio
import contextlib
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hermes_state import sessions
from hermes_state.admin.repair import RepairReport, SalvageJob, repair_database
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.migrate import migrate, shipped_migrations
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreUnavailable
from hermes_state.inbox import InboxState
from hermes_state.search.full_text import search
from hermes_state.search.index import begin_index
from tests.databases import open_store
from tests.hermes_state.helpers import opened
from tests.hermes_state.rows import START, exchange, make_chat, receive, start
from tests.sampling import sample

PAGE = 4_096
CHATS, TURNS = 4, 150
TABLE_INTERIOR, TABLE_LEAF = 0x05, 0x0D

pytestmark = pytest.mark.timeout(sample(few=300, many=0))  # seconds; 0 means no limit


def _fill(db: sqlite3.Connection) -> None:
    rng = random.Random(7)
    chats = [make_chat(db, str(number)) for number in range(CHATS)]
    for number in range(TURNS):
        words = " ".join(rng.choices(("alpha", "beta", "gamma", "größe", "数据库"), k=rng.randint(20, 120)))
        exchange(db, chats[number % CHATS], f"question{number} {words}", f"answer{number} {words}", at=START + number)
    receive(db, chats[0], "still waits")
    start(db, chats[1], "is being answered")
    db.executemany("INSERT INTO cursors VALUES ('discord', 'discord', ?, 'seen')", [(f"c{n}",) for n in range(900)])
    db.execute("DELETE FROM cursors WHERE channel_ref > 'c5'")  # free pages


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed database with a few hundred messages."""
    path = tmp_path_factory.mktemp("sound") / "state.db"

    async def make() -> None:
        store = await open_store(path)
        try:
            await store.write(_fill)
        finally:
            await store.close()

    asyncio.run(make())
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "state.db"))


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def pages_of(path: Path, name: str) -> list[int]:
    """Return the page numbers of a b-tree, root first."""
    with opened(path) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    data = path.read_bytes()

    def walk(number: int) -> Iterator[int]:
        yield number
        at = (number - 1) * PAGE
        if data[at] in (TABLE_INTERIOR, 0x02):
            cells = int.from_bytes(data[at + 3 : at + 5], "big")
            for cell in range(cells):
                offset = int.from_bytes(data[at + 12 + 2 * cell : at + 14 + 2 * cell], "big")
                yield from walk(int.from_bytes(data[at + offset : at + offset + 4], "big"))
            yield from walk(int.from_bytes(data[at + 8 : at + 12], "big"))

    return list(walk(root))


def cells_on(path: Path, numbers: list[int]) -> int:
    data = path.read_bytes()
    return sum(int.from_bytes(data[(n - 1) * PAGE + 3 : (n - 1) * PAGE + 5], "big") for n in numbers)


def overwrite(path: Path, numbers: list[int], content: Callable[[], bytes]) -> None:
    with path.open("r+b") as file:
        for number in numbers:
            file.seek((number - 1) * PAGE)
            file.write(content())


def noise(rng: random.Random) -> Callable[[], bytes]:
    return lambda: rng.randbytes(PAGE)


def texts(path: Path) -> dict[int, str]:
    with opened(path) as db:
        return dict(db.execute("SELECT id, text FROM messages"))


def counts(path: Path) -> dict[str, int]:
    with opened(path) as db:
        query = "SELECT name FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = [name for (name,) in db.execute(query)]
        return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def repaired(path: Path) -> RepairReport:
    """Repair the database and check what must hold of every result."""
    before = path.read_bytes()
    report = repair_database(path)
    assert report is not None
    kept = Path(report.kept)
    assert kept.read_bytes() == before, "the damaged one is kept as it was"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {one.name: one.rows for one in report.tables}.items() >= {"meta": counts(path)["meta"]}.items()
    with opened(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert {file.name for file in path.parent.iterdir()} <= {"state.db", "state.db.lock", kept.name}
    return report


async def found_again(path: Path) -> set[int]:
    """Return the messages that a search finds in the repaired database."""
    store = await open_store(path)
    try:
        hits = await store.read(lambda db: search(db, "alpha OR beta OR gamma OR 数据", limit=10_000))
        return {hit.message_id for hit in hits}
    finally:
        await store.close()


def test_an_undamaged_database_is_not_changed(path: Path) -> None:
    before = path.read_bytes()
    assert repair_database(path) is None
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"state.db", "state.db.lock"}


@pytest.mark.usefixtures("no_tool")
async def test_damaged_leaf_pages_lose_only_their_own_rows(path: Path) -> None:
    before, leaves = texts(path), pages_of(path, "messages")[1:]
    hit = [leaves[0], leaves[5], leaves[6], leaves[-1]]
    lost = cells_on(path, hit)
    overwrite(path, hit, noise(random.Random(1)))
    report = repaired(path)
    after = texts(path)
    assert after.items() <= before.items()
    assert len(after) == len(before) - lost
    [messages] = [one for one in report.tables if one.name == "messages"]
    assert (messages.rows, messages.expected) == (len(after), len(before))
    assert messages.lost.startswith("1-")
    assert messages.lost.endswith(f"-{max(before)}")
    assert await found_again(path) == {number for number, text in after.items() if " " in text and "a" in text} - {
        number for number, text in after.items() if text in ("still waits", "is being answered")
    }


@pytest.mark.usefixtures("no_tool")
def test_ids_of_lost_messages_are_not_reused(path: Path) -> None:
    greatest = max(texts(path))
    overwrite(path, pages_of(path, "messages")[-1:], noise(random.Random(1)))
    repaired(path)
    with opened(path) as db:
        assert db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone() == (greatest,)


@pytest.mark.usefixtures("no_tool")
@pytest.mark.parametrize("name", ["messages_lineage", "inbox_open", "sqlite_autoindex_messages_1", "messages_turn"])
def test_a_damaged_index_loses_no_row(path: Path, name: str) -> None:
    before = counts(path)
    overwrite(path, pages_of(path, name), noise(random.Random(2)))
    repaired(path)
    assert counts(path) == before


@pytest.mark.usefixtures("no_tool")
def test_a_damaged_header_loses_no_row(path: Path) -> None:
    before = counts(path)
    with path.open("r+b") as file:
        file.write(random.Random(3).randbytes(100))
    report = repaired(path)
    assert counts(path) == before
    assert any("head" in note for note in report.notes)


@pytest.mark.usefixtures("no_tool")
def test_a_damaged_free_list_loses_no_row(path: Path) -> None:
    before = counts(path)
    data = path.read_bytes()
    trunk, free = int.from_bytes(data[32:36], "big"), int.from_bytes(data[36:40], "big")
    assert free > 3, "the database has free pages"
    overwrite(path, [trunk], noise(random.Random(4)))
    repaired(path)
    assert counts(path) == before


@pytest.mark.usefixtures("no_tool")
def test_a_damaged_search_index_is_rebuilt_from_the_messages(path: Path) -> None:
    before = counts(path)
    overwrite(path, pages_of(path, "messages_fts_data"), noise(random.Random(5)))
    repaired(path)
    assert counts(path) == before
    assert len(asyncio.run(found_again(path))) == 2 * TURNS


@pytest.mark.usefixtures("no_tool")
def test_rows_below_a_lost_root_page_are_reported_without_the_tool(path: Path) -> None:
    before = counts(path)
    overwrite(path, pages_of(path, "messages")[:1], noise(random.Random(6)))
    report = repaired(path)
    [messages] = [one for one in report.tables if one.name == "messages"]
    assert (messages.rows, messages.expected) == (0, before["messages"])
    assert any("sqlite3" in note for note in report.notes)


@pytest.fixture
def tool(sound: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `sqlite3` that recovers every row. Not every system has a real one with this command."""
    real = shutil.which("sqlite3")
    if real is None:
        pytest.skip("SQLite's command line tool is not installed")
    folder = tmp_path_factory.mktemp("tool")
    with opened(sound) as db:
        register_functions(db)
        (folder / "rows.sql").write_text("\n".join(db.iterdump()))
    script = f'#!/bin/sh\ncase "$*" in *.recover*) exec cat {folder}/rows.sql;; *) exec {real} "$@";; esac\n'
    (folder / "sqlite3").write_text(script)
    (folder / "sqlite3").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize("what", ["root", "first page"])
async def test_rows_found_only_by_sqlites_tool_are_saved(path: Path, what: str) -> None:
    before = counts(path)
    overwrite(path, [1] if what == "first page" else pages_of(path, "messages")[:1], noise(random.Random(6)))
    report = repaired(path)
    assert counts(path) == before
    assert any("own tool found" in note for note in report.notes)
    assert len(await found_again(path)) == 2 * TURNS


@pytest.mark.usefixtures("no_tool")
@pytest.mark.parametrize("name", ["sessions", "chats"])
async def test_messages_survive_the_loss_of_their_session_or_chat_row(path: Path, name: str) -> None:
    before = texts(path)
    overwrite(path, pages_of(path, name), noise(random.Random(8)))
    report = repaired(path)
    assert texts(path) == before
    assert any("recreated" in note for note in report.notes)
    store = await open_store(path)
    try:
        listed = await store.read(
            lambda db: db.execute("SELECT id, lineage_id, depth, kind, next_seq FROM sessions").fetchall()
        )
        assert len(listed) == CHATS
        for session_id, lineage_id, *_ in listed:
            assert await store.read(sessions.count_messages, lineage_id) > 0, session_id
    finally:
        await store.close()


@pytest.mark.usefixtures("no_tool")
def test_messages_of_a_lost_turn_are_settled_as_dead(path: Path) -> None:
    overwrite(path, pages_of(path, "turns"), noise(random.Random(9)))
    report = repaired(path)
    with opened(path) as db:
        states = dict(db.execute("SELECT state, count(*) FROM inbox GROUP BY state"))
    assert states == {InboxState.DONE: TURNS, InboxState.NEW: 1, InboxState.DEAD: 1}
    assert any("send them again" in note for note in report.notes)


@pytest.mark.usefixtures("no_tool")
def test_a_row_with_damaged_json_is_dropped(path: Path) -> None:
    with opened(path) as db:
        db.execute("UPDATE inbox SET payload = '{\"text\": \"br' WHERE state = 'new'")
    overwrite(path, pages_of(path, "messages_turn"), noise(random.Random(2)))
    report = repaired(path)
    [waiting] = [one for one in report.tables if one.name == "inbox"]
    assert waiting.rows == TURNS + 1
    assert waiting.lost == str(TURNS + 1)


def test_an_unfinished_search_index_is_not_damage(path: Path) -> None:
    with opened(path) as db:
        begin_index(db, keeps_old=False)
    assert repair_database(path) is None


def test_a_full_disk_stops_the_repair_and_is_not_reported_as_damage(path: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(path.with_name("new.db"), isolation_level=None)) as new,
        opened(path) as old,
    ):
        register_functions(new)
        migrate(new, path.with_name("new.db"), shipped_migrations())
        new.execute("PRAGMA foreign_keys = OFF")
        (pages,) = new.execute("PRAGMA page_count").fetchone()
        new.execute(f"PRAGMA max_page_count = {pages + 5}")
        with pytest.raises(OSError, match="disk is full"):
            SalvageJob("messages", old, new).run()


@pytest.mark.parametrize("is_head_damaged", [False, True])
def test_rows_in_the_write_ahead_log_are_saved(sound: Path, tmp_path: Path, is_head_damaged: bool) -> None:
    """The log of a killed process contains commits that exist nowhere else."""
    path = Path(shutil.copy(sound, tmp_path / "live.db"))
    with opened(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        register_functions(db)
        db.execute("UPDATE messages SET sender_name = 'from the log' WHERE id = 3")
        target = tmp_path / "killed" / "state.db"
        target.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{target}{suffix}")
    overwrite(target, pages_of(sound, "messages_turn"), noise(random.Random(2)))
    if is_head_damaged:
        with target.open("r+b") as file:
            file.write(b"\xff" * 100)
    report = repair_database(target)
    assert report is not None
    with opened(target) as db:
        assert db.execute("SELECT sender_name FROM messages WHERE id = 3").fetchone() == ("from the log",)
    assert Path(report.kept + "-wal").exists()


def test_a_repair_keeps_an_older_schema(tmp_path: Path) -> None:
    path, version = tmp_path / "state.db", len(shipped_migrations()) - 1

    async def make() -> None:
        await (await open_store(path)).close()

    asyncio.run(make())
    with opened(path) as db:
        db.execute("ALTER TABLE sessions DROP COLUMN reasoning_effort")
        db.execute(f"DELETE FROM meta WHERE key = 'migration:{version + 1:04d}'")
        db.execute(f"PRAGMA user_version = {version}")
        db.execute(
            "INSERT INTO chats (id, platform, account, chat_ref, kind, created_at, updated_at) "
            "VALUES (1, 'local', 'local', 'a', 'local', 0, 0)"
        )
    overwrite(path, pages_of(path, "sqlite_autoindex_chats_1"), noise(random.Random(2)))
    assert repair_database(path) is not None
    with opened(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
    asyncio.run(make())
    assert counts(path)["chats"] == 1


def test_an_unrepairable_database_is_not_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    overwrite(path, [1], noise(random.Random(10)))
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"is unchanged.*sqlite3"):
        repair_database(path)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"state.db", "state.db.lock"}


def test_a_newer_database_is_not_touched(path: Path) -> None:
    with opened(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseRejected, match="newer hermes-gateway"):
        repair_database(path)


async def test_the_database_of_a_running_gateway_is_not_repaired(path: Path) -> None:
    store = await open_store(path)
    try:
        with pytest.raises(LockUnavailable):
            await asyncio.to_thread(repair_database, path)
    finally:
        await store.close()


def test_a_missing_database_cannot_be_repaired(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no database"):
        repair_database(tmp_path / "state.db")


def _damage(path: Path, rng: random.Random) -> str:
    """Damage some pages other than the first, in a typical way. Return the way."""
    last = path.stat().st_size // PAGE
    numbers = rng.sample(range(2, last + 1), rng.choice((1, 1, 2, 4, 8)))
    way = rng.choice(("noise", "zeros", "another page", "half", "cut"))
    data = path.read_bytes()
    if way == "cut":
        with path.open("r+b") as file:
            file.truncate((last - len(numbers)) * PAGE)
        return way
    for number in numbers:
        page = data[(number - 1) * PAGE : number * PAGE]
        other = rng.randrange(1, last) * PAGE
        content = {
            "noise": rng.randbytes(PAGE),
            "zeros": bytes(PAGE),
            "another page": data[other : other + PAGE],
            "half": page[: PAGE // 2] + rng.randbytes(PAGE // 2),
        }[way]
        overwrite(path, [number], partial(bytes, content))
    return way


@pytest.mark.fuzz
@pytest.mark.usefixtures("no_tool")
def test_random_damage_loses_only_damaged_rows_and_invents_none(sound: Path, tmp_path: Path) -> None:
    before, total, shares = texts(sound), sum(counts(sound).values()), []
    circle = 145  # a misplaced page made the order of keys return to itself
    for seed in sorted({*range(sample(few=12, many=300)), circle}):
        path = tmp_path / str(seed) / "state.db"
        path.parent.mkdir()
        shutil.copy(sound, path)
        way = _damage(path, random.Random(seed))
        try:
            report = repair_database(path)
        except StoreUnavailable:  # without the tables' definitions only the tool finds the rows
            with opened(path) as db, pytest.raises(sqlite3.DatabaseError):
                db.execute("SELECT * FROM sqlite_schema").fetchall()
            shares.append(0.0)
            continue
        with opened(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], (seed, way)
        changed = {number for number, text in texts(path).items() if before.get(number) != text}
        assert not changed or way == "half", (seed, way, changed)
        if report is not None:
            shares.append(min(1.0, sum(counts(path).values()) / total))
        shutil.rmtree(path.parent)
    print(f"\nrows saved: mean {sum(shares) / len(shares):.1%}, least {min(shares):.1%}, of {len(shares)} damages")
    assert sum(shares) / len(shares) > 0.8
