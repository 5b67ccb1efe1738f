"""The command line reads databases of earlier versions, which no newer gateway has started with yet."""

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.model.caps import SpendingCapSettings
from gateway.config import load_config
from gateway.operator.checks import check_database, check_removed
from gateway.operator.lookups import look_up_at_rest
from gateway.operator.spending import report
from hermes_state.engines.opening import open_offline
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, migrate, shipped_migrations
from hermes_state.store.sql import Connection
from hermes_state.values import Millis
from tests.hermes_state.rows import START

if TYPE_CHECKING:
    from tests.postgres import Postgres

CHAT = """INSERT INTO chats (platform, account, chat_ref, thread_ref, user_ref, kind, created_at, updated_at)
VALUES ('telegram', 'telegram', '42', '', '', 'direct', 1, 1)"""
SESSION = """INSERT INTO sessions (key, chat_id, lineage_id, depth, kind, system_prompt, started_at, message_count)
VALUES ('01k0000000000000000000000', 1, 1, 0, 'root', '', 1, 1)"""


def fill(db: Connection) -> None:
    db.execute(CHAT)
    db.execute(SESSION)


def check(db: Connection | None, home: Path) -> None:
    assert db is not None
    caps = SpendingCapSettings(agents_daily={"ops": 5})
    [one] = look_up_at_rest(db, "sessions", {"chat": "telegram:42", "agent": "default"}, str)
    assert one["agent"] == ""
    assert len(look_up_at_rest(db, "lineage", {"place": "telegram:42"}, str)) == 1
    assert look_up_at_rest(db, "history", {"place": "telegram:42"}, str) == []
    assert look_up_at_rest(db, "search", {"words": "door", "agent": "default"}, str) == []
    for place in (None, "telegram:42"):
        assert report(db, "usage", lambda _: caps, Millis(START), {"place": place})
    assert report(db, "insights", lambda _: caps, Millis(START), {})
    assert check_removed(db, load_config({"HERMES_HOME": str(home)})) == []
    assert check_database(db)


@pytest.mark.parametrize("version", [1, 2, 12, 13, 27, len(shipped_migrations())])
def test_files_of_every_version_can_be_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        register_functions(db)
        migrate(db, path, shipped_migrations()[:version])
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        fill(db)
    with open_offline(path) as old:
        check(old, tmp_path)


@pytest.mark.cluster
@pytest.mark.parametrize("version", [13, 20, 27])
def test_databases_of_every_version_can_be_read(postgres: "Postgres", tmp_path: Path, version: int) -> None:
    # imported here, because most runs do not need it
    from hermes_state.engines.postgres import migrate as other
    from hermes_state.engines.postgres.connection import PostgresConnection

    with postgres.database() as url:
        with contextlib.closing(PostgresConnection.open(url)) as db:
            other.migrate(db, [one for one in other.shipped_migrations() if one.number <= version])
            fill(db)
        with open_offline(tmp_path / "state.db", url) as old:
            check(old, tmp_path)
