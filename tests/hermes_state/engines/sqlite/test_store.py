import asyncio
import contextlib
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest

import hermes_state
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import ReaderHealth, Store
from tests.hermes_state.helpers import (
    closed_after,
    commits_in_log,
    connected_nowhere,
    file_states,
    in_one_batch,
    locked_by_another_process,
    noting,
    one_batch,
    opened,
    raising,
    set_max_pages,
    start_python,
)

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"


def count_notes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM meta WHERE key LIKE 'n%'").fetchone()[0])


def pragma(db: sqlite3.Connection, name: str) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


class TestOpening:
    async def test_database_files_are_private_and_marked_as_ours(self, store: Store) -> None:
        await store.write(save_note, "n", "private")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in store.path.parent.iterdir()}
        assert {"state.db", "state.db-wal", "state.db.lock"} <= set(modes)
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
        assert await store.read(pragma, "application_id") == APPLICATION_ID
        assert await store.read(pragma, "user_version") == newest_schema()
        orphan = "INSERT INTO session_context (session_id, pos, message_id) VALUES (1, 0, 1)"
        with pytest.raises(sqlite3.IntegrityError):
            await store.write(lambda db: db.execute(orphan))

    async def test_commits_are_synced_unless_configured_otherwise(self, tmp_path: Path) -> None:
        async with closed_after(SqliteStore.open(tmp_path / "home" / "safe.db")) as store:
            assert await store.write(pragma, "synchronous") == 2
            assert await store.write(pragma, "journal_mode") == "wal"
        async with closed_after(SqliteStore.open(tmp_path / "fast.db", synchronous="NORMAL")) as other:
            assert await other.write(pragma, "synchronous") == 1

    async def test_a_second_opener_learns_who_holds_the_database(self, store: Store) -> None:
        with pytest.raises(LockUnavailable, match=r"state\.db") as caught:
            await SqliteStore.open(store.path)
        assert "process " in caught.value.holder
        await store.write(save_note, "n", "still writing")

    async def test_the_lock_is_free_after_closing_and_after_a_failed_opening(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        await (await SqliteStore.open(path)).close()
        with opened(path) as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('migration:0001', 'other')")
        for _ in range(2):
            with pytest.raises(DatabaseRejected):
                await SqliteStore.open(path)

    async def test_an_unusable_path_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreUnavailable, match="cannot create"):
            await SqliteStore.open(tmp_path / "file" / "state.db")
        with pytest.raises(StoreUnavailable, match="cannot read"):
            await SqliteStore.open(tmp_path / ("x" * 300))


OURS = f"PRAGMA application_id = {APPLICATION_ID};"
FOREIGN_FILES = {
    "tables": "CREATE TABLE sessions (id TEXT)",
    "another application id": "PRAGMA application_id = 252006674; PRAGMA user_version = 1",
    "a newer schema": f"{OURS} PRAGMA user_version = {newest_schema() + 1}",
    "a log": "PRAGMA journal_mode = WAL; CREATE TABLE messages (id TEXT)",
    "text": None,
    "a log without its database": None,
}


class TestForeignFiles:
    @pytest.mark.parametrize("kind", FOREIGN_FILES)
    async def test_another_programs_file_is_refused_untouched(self, tmp_path: Path, kind: str) -> None:
        path, made = tmp_path / "state.db", FOREIGN_FILES[kind]
        with contextlib.ExitStack() as others:
            if made is not None:
                others.enter_context(opened(path)).executescript(made)
            if kind != "a log":  # which exists only while a program has the file open
                others.close()
            if kind == "text":
                path.write_text("notes of someone\n" * 100)
            elif kind == "a log without its database":
                path.with_name("state.db-wal").write_bytes(b"rows that were never copied")
            before = file_states(tmp_path)
            newer = " was written by a newer version" if kind == "a newer schema" else ""
            with pytest.raises(DatabaseRejected, match=rf"state\.db{newer}"):
                await SqliteStore.open(path)
            assert file_states(tmp_path) == before, "a file that is not ours was touched"

    @pytest.mark.parametrize("is_empty", [True, False])
    async def test_an_interrupted_creation_is_completed(self, tmp_path: Path, is_empty: bool) -> None:
        (tmp_path / "state.db").touch()
        if not is_empty:
            with opened(tmp_path / "state.db") as db:
                db.executescript(OURS)
        async with closed_after(SqliteStore.open(tmp_path / "state.db")) as store:
            assert await store.read(pragma, "user_version") == newest_schema()


class TestWriting:
    async def test_writes_are_stored_in_the_order_they_came_with_their_results(self, store: Store) -> None:
        def echo(db: sqlite3.Connection, number: int) -> str | None:
            save_note(db, "n", str(number))
            return load_note(db, "n")

        results = await asyncio.gather(*(store.write(echo, number) for number in range(1_000)))
        assert results == [str(number) for number in range(1_000)]

    async def test_many_waiting_writes_share_one_commit(self, store: Store) -> None:
        async with one_batch(store):
            tasks = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(200)]
            before = commits_in_log(store.path)
        await asyncio.gather(*tasks)
        assert await store.read(count_notes) == 200
        assert commits_in_log(store.path) == before + 1

    @pytest.mark.parametrize("count", [0, 3], ids=["alone", "in a batch"])
    async def test_a_raising_function_undoes_only_its_own_changes(self, store: Store, count: int) -> None:
        def fails(db: sqlite3.Connection) -> None:
            save_note(db, "bad", "half done")
            db.execute("SELECT * FROM nowhere")

        def add_one(db: sqlite3.Connection) -> int:
            save_note(db, "n", str(int(load_note(db, "n") or 0) + 1))
            return int(load_note(db, "n") or 0)

        errors = [LookupError(str(number)) for number in range(count)]
        raised = map(raising, errors)
        *results, error = await in_one_batch(store, *[add_one] * count, *raised, *[add_one] * count, fails)
        assert results == [1, 2, 3, *errors, 4, 5, 6][: 3 * count]
        assert isinstance(error, sqlite3.OperationalError)
        assert "no such table" in str(error)
        assert await store.read(load_note, "bad") is None
        await store.write(save_note, "n", "and on it goes")

    @pytest.mark.parametrize("error", [StopIteration("x"), KeyError("x"), asyncio.CancelledError("x")])
    async def test_no_exception_stops_the_writer(self, store: Store, error: BaseException) -> None:
        with pytest.raises((RuntimeError, KeyError, asyncio.CancelledError)):
            await store.write(raising(error))
        await store.write(save_note, "n", "alive")

    async def test_a_deferred_constraint_fails_only_its_own_function(self, store: Store) -> None:
        good = [noting(f"n{number}") for number in range(4)]
        *stored, error, last = await in_one_batch(store, *good[:3], connected_nowhere, good[3])
        assert [*stored, last] == [None] * 4
        assert isinstance(error, sqlite3.IntegrityError)
        assert await store.read(count_notes) == 4

    async def test_a_function_that_ends_the_transaction_is_not_acknowledged(self, store: Store) -> None:
        results = await in_one_batch(store, noting("n1"), lambda db: db.execute("ROLLBACK"), noting("n3"))
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert await store.read(count_notes) == 0

    async def test_a_caller_cancelled_while_its_function_runs_does_not_stop_the_writer(self, store: Store) -> None:
        entered, release = threading.Event(), threading.Event()

        def slow(db: sqlite3.Connection) -> None:
            entered.set()
            assert release.wait(60)
            save_note(db, "n", "")

        task = asyncio.ensure_future(store.write(slow))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await store.write(save_note, "n2", "")

    async def test_callers_wait_when_the_queue_is_full_and_take_no_place_once_cancelled(self, store: Store) -> None:
        async with one_batch(store):
            inside = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(10_000)]
            await asyncio.sleep(0)
            outside = [asyncio.ensure_future(store.write(save_note, f"n-{number}", "")) for number in range(50)]
            await asyncio.sleep(0)
            assert store.pulse.waiting == 10_000
            for task in (inside[2], *outside[::2]):
                task.cancel()
        results = await asyncio.gather(*inside, *outside, return_exceptions=True)
        assert [type(result) for result in results].count(asyncio.CancelledError) == 1 + 25
        assert await store.read(count_notes) in (10_000 - 1 + 25, 10_000 + 25), "its write may have begun"
        assert store.pulse.waiting == 0

    async def test_the_pulse_reports_the_age_of_the_oldest_write(self, store: Store) -> None:
        await store.write(save_note, "n", "")
        assert store.pulse.last_commit_seconds > 0
        assert store.pulse.oldest_wait_seconds == 0
        async with one_batch(store):
            await asyncio.sleep(0.05)
            assert store.pulse.oldest_wait_seconds > 0.04
            assert store.pulse.since_commit_seconds >= 0.05
            assert (store.pulse.writers, store.pulse.busy) == (1, 1)
        assert store.pulse.busy == 0

    async def test_reads_waiting_for_a_connection_are_counted(self, store: Store) -> None:
        release, begun = threading.Event(), threading.Semaphore(0)

        def wait(_db: sqlite3.Connection) -> bool:
            begun.release()
            return release.wait(10)

        assert store.readers == ReaderHealth(readers=2, busy=0, waiting=0)
        reading = [asyncio.ensure_future(store.read_within(10, wait)) for _ in range(3)]
        for _ in range(2):
            await asyncio.to_thread(begun.acquire)
        assert store.readers == ReaderHealth(readers=2, busy=2, waiting=1)
        release.set()
        await asyncio.gather(*reading)
        assert store.readers == ReaderHealth(readers=2, busy=0, waiting=0)


class TestLocked:
    async def test_a_lock_held_by_another_process_delays_writes_and_loses_nothing(self, store: Store) -> None:
        with locked_by_another_process(store.path, seconds=60) as locker:
            writes = asyncio.gather(*(store.write(save_note, f"n{number}", "") for number in range(20)))
            for _ in range(100):  # more than a second: longer than one attempt to get the lock
                await asyncio.sleep(0.012)
            assert locker.poll() is None, "the event loop waited for the lock"
            assert not writes.done(), "the lock was not felt"
            assert await asyncio.wait_for(store.read(count_notes), 20) == 0, "reading continues"
            locker.kill()
            await writes
        assert await store.read(count_notes) == 20

    async def test_a_lock_that_stays_is_a_clear_error_and_work_resumes_after_it(self, tmp_path: Path) -> None:
        async with closed_after(SqliteStore.open(tmp_path / "state.db", busy_seconds=0.2)) as store:
            with locked_by_another_process(store.path, seconds=30):
                writes = [store.write(save_note, f"n{number}", "") for number in range(3)]
                results = await asyncio.gather(*writes, return_exceptions=True)
                assert [type(result) for result in results] == [StoreUnavailable] * 3
                assert "another process has locked the database" in str(results[0])
            assert await store.read(count_notes) == 0
            await store.write(save_note, "n", "")


class TestDiskFull:
    @pytest.mark.parametrize("hungry", range(5))
    async def test_a_full_disk_fails_the_whole_batch_and_small_writes_then_succeed(
        self, store: Store, hungry: int
    ) -> None:
        await store.write(set_max_pages, 2)
        sizes = [200_000 if number == hungry else 10 for number in range(5)]
        results = await in_one_batch(store, *(noting(f"n{at}", "x" * size) for at, size in enumerate(sizes)))
        assert [type(result) for result in results] == [StoreUnavailable] * 5
        assert all("disk is full" in str(result) for result in results)
        assert await store.read(count_notes) == 0
        await store.write(save_note, "n", "small")
        await store.write(set_max_pages, None)
        await asyncio.gather(*(store.write(save_note, f"n{number}", "x" * 100_000) for number in range(5)))
        assert await store.read(count_notes) == 6

    async def test_a_function_that_swallows_a_full_disk_is_not_acknowledged(self, store: Store) -> None:
        def swallows(db: sqlite3.Connection) -> None:
            with contextlib.suppress(sqlite3.OperationalError):
                save_note(db, "n1", "x" * 200_000)

        await store.write(set_max_pages, 2)
        results = await in_one_batch(store, noting("n0"), swallows, noting("n2"))
        acknowledged = sum(not isinstance(result, BaseException) for result in results)
        stored = await store.read(count_notes)
        assert (acknowledged, stored) in ((0, 0), (3, 2)), "acknowledged and stored must agree"


class TestReading:
    async def test_a_read_sees_one_snapshot_and_changes_nothing(self, store: Store) -> None:
        entered, release = threading.Event(), threading.Event()

        def twice(db: sqlite3.Connection) -> tuple[int, int]:
            first = count_notes(db)
            entered.set()
            assert release.wait(60)
            return first, count_notes(db)

        reading = asyncio.ensure_future(store.read(twice))
        await asyncio.to_thread(entered.wait)
        await store.write(save_note, "n", "")
        with pytest.raises(StoreUnavailable):
            await store.read(save_note, "n", "sneaked in")
        release.set()
        assert await reading == (0, 0)

    async def test_a_read_that_fails_or_takes_too_long_leaves_the_reader_usable(self, store: Store) -> None:
        with pytest.raises(StoreUnavailable, match="took too long"):
            await store.read_within(0.05, lambda db: db.execute(ENDLESS).fetchone())
        for _ in range(4):
            with pytest.raises(LookupError):
                await store.read(raising(LookupError()))
            assert await store.read(count_notes) == 0


class TestClosing:
    async def test_closing_stores_queued_writes(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        async with one_batch(store):
            writes = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(700)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
        await asyncio.gather(*writes, closing)
        with opened(store.path) as db:
            assert count_notes(db) == 700

    async def test_a_closed_store_can_be_closed_again_and_raises(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        await asyncio.gather(store.close(), store.close())
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.write(save_note, "n", "")
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.read(count_notes)

    async def test_a_cancelled_close_still_closes(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        threads = threading.active_count()
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await store.close()
        assert threading.active_count() < threads

    async def test_closing_does_not_wait_long_for_a_foreign_lock(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db", busy_seconds=0.2)
        with locked_by_another_process(store.path, seconds=30):
            writes = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(2_000)]
            await asyncio.sleep(0)
            started = time.monotonic()
            await store.close()
            assert time.monotonic() - started < 20
            results = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}

    async def test_closing_ends_a_read_that_still_runs(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        reading = asyncio.ensure_future(store.read_within(60, lambda db: db.execute(ENDLESS).fetchone()))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(store.close(), 20)
        with pytest.raises(StoreUnavailable):
            await reading


_EXITING = """
import asyncio, sys
from pathlib import Path
from hermes_state.store.sql import save_note
from hermes_state.engines.sqlite.store import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    await store.write(save_note, "n", "stored")
    if sys.argv[2] == "closed":
        await store.close()
    if sys.argv[2] == "raising":
        raise SystemExit(3)

asyncio.run(main())
"""


@pytest.mark.parametrize(("ending", "code"), [("closed", 0), ("forgotten", 0), ("raising", 3)])
def test_a_process_always_exits_and_keeps_what_was_acknowledged(tmp_path: Path, ending: str, code: int) -> None:
    path = tmp_path / "state.db"
    process = start_python(_EXITING, path, ending)
    try:
        assert process.wait(20) == code
    finally:
        process.kill()
        process.communicate()
    with opened(path) as db:
        assert load_note(db, "n") == "stored"


def test_only_one_function_commits_writes() -> None:
    """Crash tests count its calls from outside and would miss a second place."""
    package = Path(hermes_state.__file__).parent
    places = [
        file.name
        for file in sorted(package.rglob("*.py"))
        for line in file.read_text().splitlines()
        if 'execute("COMMIT")' in line or ".commit()" in line
    ]
    nobody_uses_yet = ["copy.py", "migrate.py", "migrate.py", "offline.py", "repair.py", "repair.py"]
    assert sorted(places) == sorted(["sql.py", *nobody_uses_yet])


async def test_an_error_between_two_rows_does_not_disturb_other_writes(tmp_path: Path) -> None:
    """A cursor that an error leaves half read must not keep its statement open."""

    def fail(db: sqlite3.Connection) -> None:
        unread = db.execute("INSERT INTO meta VALUES ('n1', 'a'), ('n2', 'b') RETURNING key")
        assert unread.fetchone() == ("n1",)
        raise ValueError("stopped between two rows")

    async with closed_after(SqliteStore.open(tmp_path / "state.db", busy_seconds=1)) as store:
        failed, _ = await asyncio.gather(
            store.write(fail), store.write(save_note, "n3", "kept"), return_exceptions=True
        )
        assert isinstance(failed, ValueError)
        await store.write(save_note, "n4", "later")
        assert await store.read(count_notes) == 2
