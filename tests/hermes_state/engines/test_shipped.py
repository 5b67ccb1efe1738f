"""Databases of every earlier version, created from stored schemas, become databases of this version."""

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hermes_state.engines.sqlite.migrate import migrate, newest_schema
from tests.hermes_state.engines.shipped import (
    POSTGRES,
    SQLITE,
    STORED,
    Objects,
    checksums,
    make_old_file,
    objects_of,
    schema_after,
    stored_checksums,
    stored_objects,
)
from tests.hermes_state.helpers import opened_as_ours, start_python
from tests.sampling import every, sample

INDEX = re.compile(r"messages_fts")
"""Objects of the search index, which the gateway replaces while it runs."""
KILLED = """
import os, signal, sys
from pathlib import Path
from hermes_state.engines.sqlite.migrate import migrate
from tests.hermes_state.helpers import opened_as_ours

def run(path, last):
    def count_down(statement):
        nonlocal last
        last -= 1
        if last == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with opened_as_ours(path) as db:
        db.set_trace_callback(count_down)
        migrate(db, path)

for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        run(folder / "state.db", int(folder.name))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Migrates the database in each folder, in a process that is killed at the statement with the number in its name."""


def plain(objects: Objects) -> Objects:
    """Return a schema without the search index, comments and spacing."""
    texts = {key: re.sub(r"--[^\n]*", "", sql) for key, sql in objects.items() if not INDEX.match(key[1])}
    return {key: re.sub(r"\s+|(?<=[(,])\s*|\s*(?=[),])", " ", sql) for key, sql in texts.items()}


def test_no_shipped_migration_has_changed() -> None:
    assert checksums() == stored_checksums()
    assert {path.name for path in STORED.glob("*.sql")} == {migration.name for migration in SQLITE}
    assert POSTGRES[-1].number == newest_schema()


@pytest.mark.fuzz
@pytest.mark.parametrize("number", every(7, range(1, newest_schema() + 1)))
def test_every_stored_schema_becomes_the_newest(tmp_path: Path, number: int) -> None:
    assert stored_objects(number) == schema_after(number)
    path = tmp_path / "state.db"
    make_old_file(path, number)
    with opened_as_ours(path) as db:
        migrate(db, path)
        assert plain(objects_of(db)) == plain(schema_after(newest_schema()))
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("SELECT text FROM messages ORDER BY id LIMIT 1").fetchall() == [
            ("The heron nests at the mill.",)
        ]
    assert len(list(path.parent.glob("backups/*"))) == (number < newest_schema())


@pytest.mark.fuzz
def test_a_kill_during_a_migration_leaves_a_version_that_can_be_upgraded(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(1, 400, sample(60, 4))]
    for folder in folders:
        folder.mkdir()
        make_old_file(folder / "state.db", 1)
    output, _ = start_python(KILLED, *folders).communicate(timeout=100)
    codes = [int(line) for line in output.split()]
    killed = codes.count(-signal.SIGKILL)
    assert killed > len(folders) / 4
    assert codes == [-signal.SIGKILL] * killed + [0] * (len(folders) - killed)
    versions = set()
    for folder in folders:
        path = folder / "state.db"
        with opened_as_ours(path) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            versions.add(version)
            assert objects_of(db) == schema_after(version), folder.name
            migrate(db, path)
            assert plain(objects_of(db)) == plain(schema_after(newest_schema()))
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        copies = list(folder.glob("backups/*.db"))
        assert copies
        for copy in copies:
            with closing(sqlite3.connect(copy)) as db:
                assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    assert len(versions) > 3
