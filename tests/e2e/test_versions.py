"""A gateway upgrades the database of each earlier version, and an earlier gateway uses the copy from before that."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from gateway.cli import EXIT_CONFIG
from hermes_state.engines.postgres.migrate import FIRST, migrate
from hermes_state.store.segment import SEGMENT_VERSION
from hermes_state.store.sql import save_note
from tests.databases import about_files
from tests.e2e.protocols import CHAT_COMPLETIONS, conversation_of
from tests.e2e.world import ROOT, Program, World, world_in
from tests.hermes_state.engines.shipped import POSTGRES, SQLITE, fill, make_old_file
from tests.postgres import Postgres, connect
from tests.sampling import every

NEWEST = SQLITE[-1]


async def serve_old_conversation(world: World) -> None:
    """Start the gateway, and check that the old conversation continues and is found."""
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await world.until_rows("SELECT value FROM meta WHERE key = 'segment_version'", (str(SEGMENT_VERSION),))
    await world.converse("and now?")
    [request] = await world.asked(1)
    assert "The heron nests at the mill." in conversation_of(request)
    await world.ask("/search heron", "nests at the mill")
    assert await world.gateway.stop() == 0
    assert "Traceback" not in world.gateway.log_text()


@about_files
@pytest.mark.fuzz
@pytest.mark.parametrize("number", every(14, range(1, NEWEST.number)))
async def test_a_file_of_each_version_is_upgraded_and_its_conversation_continues(tmp_path: Path, number: int) -> None:
    async with world_in(tmp_path, CHAT_COMPLETIONS) as world:
        world.home.mkdir(mode=0o700)
        make_old_file(world.home / "state.db", number)
        await serve_old_conversation(world)
        assert len(list(world.home.glob("backups/*"))) == 1


@pytest.mark.cluster
@pytest.mark.fuzz
@pytest.mark.parametrize("number", every(16, range(FIRST, NEWEST.number)))
async def test_a_postgresql_database_of_each_version_is_upgraded(
    tmp_path: Path, postgres: Postgres, number: int
) -> None:
    applied = [migration for migration in POSTGRES if migration.number <= number]
    with postgres.database() as url:
        with connect(url) as db:
            migrate(db, applied)
            fill(db, applied, "postgres")
            save_note(db, "segment_version", "0")  # as after a change of the segmenter
        world = World(tmp_path / "world", CHAT_COMPLETIONS)
        world.address = url
        await world.open()
        try:
            await serve_old_conversation(world)
        finally:
            await world.close()


def earlier_program(folder: Path) -> Program:
    """Copy the last gateway without the newest migration from the history. Skips the test if there is no history."""
    path = f"hermes_state/engines/sqlite/migrations/{NEWEST.name}"
    added = ("git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=%H", "-1", "--", path)
    commit = subprocess.run(added, capture_output=True, text=True).stdout.strip()
    packages = ("gateway", "platforms", "agent", "hermes_state")
    archived = subprocess.run(("git", "-C", str(ROOT), "archive", f"{commit}^", *packages), capture_output=True)
    if not commit or archived.returncode:
        pytest.skip("this copy of the source has no history")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return ("-c", f"import sys; sys.path.insert(0, {str(folder)!r}); from gateway.cli import main; main()", "run")


@about_files
async def test_the_way_back_to_an_earlier_gateway(tmp_path: Path) -> None:
    earlier, newer = earlier_program(tmp_path / "earlier"), ("-m", "gateway", "run")
    async with world_in(tmp_path / "world", CHAT_COMPLETIONS, program=earlier) as world:
        await world.gateway.start()
        await world.converse("the heron nests here")
        assert await world.gateway.stop() == 0

        world.gateway.program = newer
        await world.gateway.start()
        await world.converse("after the upgrade")
        assert await world.gateway.stop() == 0
        [copy] = world.home.glob("backups/*.db")
        assert copy.name.startswith(f"state-schema{NEWEST.number - 1}-")

        world.gateway.program = earlier
        await world.gateway.spawn()
        assert await world.gateway.wait() == EXIT_CONFIG
        assert "was written by a newer version of hermes-gateway" in world.gateway.log_text()

        code, output = await world.command_line("restore", str(copy))
        assert code == 0, output
        assert list(world.home.glob("state-before-restore-*.db"))
        await world.gateway.start()
        await world.converse("and now?")
        seen = conversation_of((await world.asked(3))[-1])
        assert "the heron nests here" in seen
        assert "after the upgrade" not in seen
        assert await world.gateway.stop() == 0
