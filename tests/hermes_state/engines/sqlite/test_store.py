import asyncio
import random
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest

import hermes_state
from hermes_state.engines.sqlite.connections import connect
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import ReaderHealth, Store
from tests.hermes_state.helpers import (
    commits_in_log,
    file_states,
    locked_by_another_process,
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
    async def test_what_was_written_is_there_after_reopening(self, tmp_path: Path) -> None:
        path = tmp_path / "home" / "state.db"
        first = await SqliteStore.open(path)
        await first.write(save_note, "n", "kept")
        await first.close()
        second = await SqliteStore.open(path)
        assert await second.read(load_note, "n") == "kept"
        await second.close()

    async def test_database_files_are_private(self, store: Store) -> None:
        await store.write(save_note, "n", "private")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in store.path.parent.iterdir()}
        assert {"state.db", "state.db-wal", "state.db.lock"} <= set(modes)
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700

    async def test_the_file_is_marked_as_ours_with_its_schema(self, store: Store) -> None:
        assert await store.read(pragma, "application_id") == APPLICATION_ID
        assert await store.read(pragma, "user_version") == newest_schema()

    async def test_commits_are_synced_unless_configured_otherwise(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "safe.db")
        assert await store.write(pragma, "synchronous") == 2
        assert await store.write(pragma, "journal_mode") == "wal"
        await store.close()
        other = await SqliteStore.open(tmp_path / "fast.db", synchronous="NORMAL")
        assert await other.write(pragma, "synchronous") == 1
        await other.close()

    async def test_foreign_keys_are_enforced(self, store: Store) -> None:
        def orphan(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO session_context (session_id, pos, message_id) VALUES (1, 0, 1)")

        with pytest.raises(sqlite3.IntegrityError):
            await store.write(orphan)

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

    async def test_an_unwritable_path_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreUnavailable, match="cannot create"):
            await SqliteStore.open(tmp_path / "file" / "state.db")

    async def test_an_unreadable_path_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match="cannot read"):
            await SqliteStore.open(tmp_path / ("x" * 300))


class TestForeignFiles:
    async def refused(self, path: Path, match: str = r"state\.db") -> None:
        before = file_states(path.parent)
        with pytest.raises(DatabaseRejected, match=match):
            await SqliteStore.open(path)
        assert file_states(path.parent) == before, "a file that is not ours was touched"

    async def test_another_programs_database_is_refused_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with opened(path) as db:
            db.execute("CREATE TABLE sessions (id TEXT)")
        await self.refused(path)

    async def test_another_application_id_is_refused_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with opened(path) as db:
            db.execute("PRAGMA application_id = 252006674")
            db.execute("PRAGMA user_version = 1")
        await self.refused(path)

    async def test_another_programs_database_in_use_is_refused_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with opened(path) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE messages (id TEXT)")
            await self.refused(path)

    async def test_a_file_that_is_not_a_database_is_refused_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        path.write_text("notes of someone\n" * 100)
        await self.refused(path)

    async def test_a_log_without_its_database_is_refused_untouched(self, tmp_path: Path) -> None:
        (tmp_path / "state.db-wal").write_bytes(b"rows that were never copied")
        await self.refused(tmp_path / "state.db")

    async def test_a_newer_schema_is_refused_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with opened(path) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {newest_schema() + 1}")
        await self.refused(path, r"state\.db was written by a newer version")

    async def test_an_interrupted_creation_is_completed(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with opened(path) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        store = await SqliteStore.open(path)
        assert await store.read(pragma, "user_version") == newest_schema()
        await store.close()

    async def test_an_empty_file_becomes_a_database(self, tmp_path: Path) -> None:
        (tmp_path / "state.db").touch()
        await (await SqliteStore.open(tmp_path / "state.db")).close()


class TestWriting:
    async def test_writes_are_stored_in_the_order_they_came(self, store: Store) -> None:
        await asyncio.gather(*(store.write(save_note, "n", str(number)) for number in range(1_000)))
        assert await store.read(load_note, "n") == "999"

    async def test_each_caller_gets_its_own_result(self, store: Store) -> None:
        def echo(db: sqlite3.Connection, number: int) -> int:
            return int(db.execute("SELECT ?", (number,)).fetchone()[0])

        assert await asyncio.gather(*(store.write(echo, number) for number in range(600))) == list(range(600))

    async def test_many_waiting_writes_share_one_commit(self, store: Store) -> None:
        async with one_batch(store):
            tasks = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(200)]
            before = commits_in_log(store.path)
        await asyncio.gather(*tasks)
        assert await store.read(count_notes) == 200
        assert commits_in_log(store.path) == before + 1

    async def test_a_raising_function_undoes_only_its_own_changes(self, store: Store) -> None:
        def fails(db: sqlite3.Connection) -> None:
            save_note(db, "n-bad", "half done")
            raise LookupError("my own reason")

        async with one_batch(store):
            writes = [
                asyncio.ensure_future(store.write(save_note, "n1", "one")),
                asyncio.ensure_future(store.write(fails)),
                asyncio.ensure_future(store.write(save_note, "n2", "two")),
            ]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(results[1], LookupError)
        assert await store.read(load_note, "n1") == "one"
        assert await store.read(load_note, "n2") == "two"
        assert await store.read(load_note, "n-bad") is None

    async def test_a_raising_function_in_a_batch_of_one_undoes_its_changes(self, store: Store) -> None:
        def fails(db: sqlite3.Connection) -> None:
            save_note(db, "n-bad", "half done")
            raise LookupError

        with pytest.raises(LookupError):
            await store.write(fails)
        assert await store.read(load_note, "n-bad") is None
        await store.write(save_note, "n", "and on it goes")

    @pytest.mark.parametrize("error", [StopIteration("x"), KeyError("x"), asyncio.CancelledError("x")])
    async def test_no_exception_stops_the_writer(self, store: Store, error: BaseException) -> None:
        with pytest.raises((RuntimeError, KeyError, asyncio.CancelledError)):
            await store.write(raising(error))
        await store.write(save_note, "n", "alive")

    async def test_a_deferred_constraint_fails_only_its_own_function(self, store: Store) -> None:
        def dangling(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO chats (platform, account, chat_ref, kind, active_session_id, created_at, updated_at)"
                " VALUES ('local', 'local', 'a', 'local', 99, 0, 0)"
            )

        async with one_batch(store):
            good = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(3)]
            bad = asyncio.ensure_future(store.write(dangling))
            good.append(asyncio.ensure_future(store.write(save_note, "n3", "")))
        await asyncio.gather(*good)
        with pytest.raises(sqlite3.IntegrityError):
            await bad
        assert await store.read(count_notes) == 4

    async def test_sql_errors_reach_the_caller_unchanged(self, store: Store) -> None:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await store.write(lambda db: db.execute("SELECT * FROM nowhere"))

    async def test_a_function_that_ends_the_transaction_is_not_acknowledged(self, store: Store) -> None:
        def rolls_back(db: sqlite3.Connection) -> None:
            db.execute("ROLLBACK")

        async with one_batch(store):
            first = asyncio.ensure_future(store.write(save_note, "n1", ""))
            second = asyncio.ensure_future(store.write(rolls_back))
            third = asyncio.ensure_future(store.write(save_note, "n3", ""))
        results = await asyncio.gather(first, second, third, return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert await store.read(count_notes) == 0

    async def test_a_cancelled_caller_does_not_cancel_its_batch(self, store: Store) -> None:
        async with one_batch(store):
            tasks = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(5)]
            await asyncio.sleep(0)
            tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results].count(asyncio.CancelledError) == 1
        assert await store.read(count_notes) >= 4

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

    async def test_callers_wait_when_the_queue_is_full(self, store: Store) -> None:
        async with one_batch(store):
            tasks = [asyncio.ensure_future(store.write(save_note, "n", str(number))) for number in range(10_300)]
            await asyncio.sleep(0)
            assert store.pulse.waiting == 10_000
        await asyncio.gather(*tasks)
        assert await store.read(load_note, "n") == "10299"

    async def test_a_caller_cancelled_before_the_queue_takes_no_place(self, store: Store) -> None:
        async with one_batch(store):
            inside = [asyncio.ensure_future(store.write(save_note, "n", "")) for _ in range(10_000)]
            await asyncio.sleep(0)
            outside = [asyncio.ensure_future(store.write(save_note, f"n{number}", "")) for number in range(50)]
            await asyncio.sleep(0)
            for task in outside[::2]:
                task.cancel()
        await asyncio.gather(*inside, *outside, return_exceptions=True)
        assert await store.read(count_notes) == 1 + 25
        assert store.pulse.waiting == 0

    async def test_a_neighbour_of_a_failing_function_is_stored_once(self, store: Store) -> None:
        def add_one(db: sqlite3.Connection) -> int:
            save_note(db, "n", str(int(load_note(db, "n") or 0) + 1))
            return int(load_note(db, "n") or 0)

        async with one_batch(store):
            counting = [asyncio.ensure_future(store.write(add_one)) for _ in range(3)]
            failing = [asyncio.ensure_future(store.write(raising(LookupError(number)))) for number in range(3)]
            counting += [asyncio.ensure_future(store.write(add_one)) for _ in range(3)]
        assert await asyncio.gather(*counting) == [1, 2, 3, 4, 5, 6]
        errors = await asyncio.gather(*failing, return_exceptions=True)
        assert [str(error) for error in errors] == ["0", "1", "2"]

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
    async def test_a_lock_held_by_another_process_delays_and_loses_nothing(self, store: Store) -> None:
        with locked_by_another_process(store.path, seconds=60) as locker:
            writes = asyncio.gather(*(store.write(save_note, f"n{number}", "") for number in range(20)))
            for _ in range(100):  # more than a second: longer than one attempt to get the lock
                await asyncio.sleep(0.012)
            assert locker.poll() is None, "the event loop waited for the lock"
            assert not writes.done(), "the lock was not felt"
            locker.kill()
            await writes
        assert await store.read(count_notes) == 20

    async def test_reading_continues_while_another_process_holds_the_lock(self, store: Store) -> None:
        await store.write(save_note, "n", "before")
        with locked_by_another_process(store.path, seconds=30):
            assert await asyncio.wait_for(store.read(load_note, "n"), 20) == "before"

    async def test_a_lock_that_stays_is_a_clear_error_and_work_resumes_after_it(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db", busy_seconds=0.2)
        try:
            with locked_by_another_process(store.path, seconds=30):
                results = await asyncio.gather(
                    *(store.write(save_note, f"n{number}", "") for number in range(3)), return_exceptions=True
                )
                assert [type(result) for result in results] == [StoreUnavailable] * 3
                assert "another process has locked the database" in str(results[0])
            assert await store.read(count_notes) == 0
            await store.write(save_note, "n", "")
        finally:
            await store.close()


class TestDiskFull:
    @pytest.mark.parametrize("hungry", range(5))
    async def test_a_full_disk_fails_the_whole_batch(self, store: Store, hungry: int) -> None:
        await store.write(set_max_pages, 2)

        async with one_batch(store):
            writes = [
                asyncio.ensure_future(store.write(save_note, f"n{number}", "x" * (200_000 if number == hungry else 10)))
                for number in range(5)
            ]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 5
        assert all("disk is full" in str(result) for result in results)
        assert await store.read(count_notes) == 0

        await store.write(set_max_pages, None)
        await asyncio.gather(*(store.write(save_note, f"n{number}", "x" * 100_000) for number in range(5)))
        assert await store.read(count_notes) == 5

    async def test_a_function_that_swallows_a_full_disk_is_not_acknowledged(self, store: Store) -> None:
        def swallows(db: sqlite3.Connection) -> None:
            try:
                save_note(db, "n1", "x" * 200_000)
            except sqlite3.OperationalError:
                return

        await store.write(set_max_pages, 2)
        async with one_batch(store):
            writes = [
                asyncio.ensure_future(store.write(save_note, "n0", "")),
                asyncio.ensure_future(store.write(swallows)),
                asyncio.ensure_future(store.write(save_note, "n2", "")),
            ]
        results = await asyncio.gather(*writes, return_exceptions=True)
        acknowledged = sum(not isinstance(result, BaseException) for result in results)
        stored = await store.read(count_notes)
        assert (acknowledged, stored) in ((0, 0), (3, 2)), "acknowledged and stored must agree"

    async def test_small_writes_succeed_after_a_large_one_did_not_fit(self, store: Store) -> None:
        await store.write(set_max_pages, 2)
        with pytest.raises(StoreUnavailable):
            await store.write(save_note, "n-large", "x" * 200_000)
        await store.write(save_note, "n", "small")


class TestReading:
    async def test_a_reader_cannot_write(self, store: Store) -> None:
        with pytest.raises(StoreUnavailable):
            await store.read(save_note, "n", "sneaked in")

    async def test_a_read_sees_one_snapshot(self, store: Store) -> None:
        entered, release = threading.Event(), threading.Event()

        def twice(db: sqlite3.Connection) -> tuple[int, int]:
            first = count_notes(db)
            entered.set()
            assert release.wait(60)
            return first, count_notes(db)

        reading = asyncio.ensure_future(store.read(twice))
        await asyncio.to_thread(entered.wait)
        await store.write(save_note, "n", "")
        release.set()
        assert await reading == (0, 0)

    async def test_a_slow_read_is_stopped_and_the_reader_stays_usable(self, store: Store) -> None:
        def endless(db: sqlite3.Connection) -> None:
            db.execute(ENDLESS).fetchone()

        with pytest.raises(StoreUnavailable, match="took too long"):
            await store.read_within(0.05, endless)
        for _ in range(4):
            assert await store.read(count_notes) == 0

    async def test_a_slow_read_does_not_hold_up_the_next(self, store: Store) -> None:
        release = threading.Event()
        slow = asyncio.ensure_future(store.read(lambda db: release.wait(60)))
        await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.wait_for(store.read(count_notes), 20)
        release.set()
        assert await slow

    async def test_a_function_that_raises_leaves_the_reader_usable(self, store: Store) -> None:
        for _ in range(3):
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

    async def test_closing_twice_or_concurrently_is_safe(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        await asyncio.gather(store.close(), store.close())
        await store.close()

    async def test_a_closed_store_raises(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
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


class TestTheDoor:
    async def test_aiosqlite_still_lets_us_run_a_function_on_its_thread(self, tmp_path: Path) -> None:
        connection = await connect(tmp_path / "any.db")
        try:
            thread, kind = await connection.run(lambda db: (threading.current_thread(), type(db)))
            assert kind is sqlite3.Connection
            assert thread is not threading.current_thread()
            assert thread.daemon
        finally:
            await connection.close()


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


_WRITING = """
import asyncio, itertools, sys
from pathlib import Path
from hermes_state.store.sql import save_note
from hermes_state.engines.sqlite.store import SqliteStore

async def writer(store, name):
    for number in itertools.count():
        await store.write(save_note, f"n{name}-{number}", "x" * 50)
        print(f"n{name}-{number}", flush=True)

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    print("open", flush=True)
    await asyncio.gather(*(writer(store, f"{sys.argv[2]}-{name}") for name in range(4)))

asyncio.run(main())
"""


def test_no_acknowledged_write_is_lost_to_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    seed = random.randrange(1 << 32)
    pauses = random.Random(seed)
    acknowledged: set[str] = set()
    for run in range(10):
        process = start_python(_WRITING, path, run)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(pauses.uniform(0.002, 0.06))
        process.kill()
        lines = process.communicate()[0].splitlines(keepends=True)
        acknowledged.update(line.strip() for line in lines if line.endswith("\n"))
        with opened(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"seed {seed}"
            stored = {row[0] for row in db.execute("SELECT key FROM meta WHERE key LIKE 'n%'")}
        assert acknowledged <= stored, f"seed {seed}: lost {len(acknowledged - stored)}"
    assert acknowledged, "nothing was acknowledged before a kill: the test shows nothing"


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
    assert sorted(places) == ["batch.py", *nobody_uses_yet]
