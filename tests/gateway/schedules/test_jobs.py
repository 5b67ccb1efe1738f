import asyncio
from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from gateway.schedules import expire_idle, run_housekeeping
from gateway.turns.lanes import LaneRegistry
from hermes_state import attachments, inbox
from hermes_state.attachments import StoredFile
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import Millis
from tests.clocks import TurnedClock
from tests.gateway.helpers import DIRECT, Serve, TestGateway, hanging
from tests.hermes_state.helpers import set_max_pages

HOUR = 3_600_000


def seen_count(gateway: TestGateway) -> int:
    """Return the number of rows in the model's last prompt."""
    return len(gateway.model.requests[-1].transcript)


def later(gateway: TestGateway, ahead: int = 0) -> LaneRegistry:
    return replace(gateway.lanes, clock=TurnedClock(ahead))


async def keep_house(gateway: TestGateway, folder: Path, ahead: int = 0) -> None:
    await run_housekeeping(later(gateway, ahead), AttachmentFolder(folder / "attachments"))


async def test_idle_conversations_end_only_if_configured(gateway: TestGateway) -> None:
    await gateway.ask("one")
    await expire_idle(later(gateway, 1_000 * HOUR))
    await gateway.ask("two")
    assert seen_count(gateway) == 3


async def test_the_next_message_after_the_idle_reset_starts_a_new_conversation(serve: Serve) -> None:
    async with serve(sessions={"idle_reset_hours": 2}) as gateway:
        await gateway.ask("one")
        await expire_idle(later(gateway, HOUR))
        await gateway.ask("two")
        assert seen_count(gateway) == 3
        await expire_idle(later(gateway, 2 * HOUR + 60_000))
        await gateway.ask("three")
        assert seen_count(gateway) == 1
        [(key,)] = await gateway.rows("SELECT substr(key, 1, 8) FROM sessions ORDER BY id LIMIT 1")
        notice = (
            f"Your last conversation was idle for a long time, so this is a new one. To go back, send `/resume {key}`."
        )
        assert gateway.adapter.texts().count(notice) == 1
        assert await gateway.rows("SELECT end_reason FROM sessions ORDER BY id") == [("expired",), (None,)]


async def test_a_running_turn_keeps_its_conversation(serve: Serve) -> None:
    async with serve(sessions={"idle_reset_hours": 2}) as gateway:
        hang = await hanging(gateway, "one")
        await expire_idle(later(gateway, 9 * HOUR))
        hang.release()
        await gateway.quiet()
        assert await gateway.rows("SELECT end_reason FROM sessions") == [(None,)]


async def test_housekeeping_deletes_old_keys_and_the_oldest_files(serve: Serve, store: Store, tmp_path: Path) -> None:
    async with serve(attachments={"total_bytes": 1_048_576}) as gateway:
        await gateway.ask("one")
        [(chat,)] = await gateway.rows("SELECT id FROM chats")
        for number, name in enumerate(("old", "new")):
            path = tmp_path / "attachments" / "aa" / name
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.write_bytes, b"x")
            await asyncio.to_thread((path.parent / f"{name}.2000-3500000").write_bytes, b"a copy for models")
            stored = StoredFile(sha256=name, path=f"aa/{name}", name=name, mime=None, size_bytes=700_000)
            await store.write(attachments.insert, chat, stored, Millis(number))
        await keep_house(gateway, tmp_path, 31 * 24 * HOUR)
        assert {path.name for path in (tmp_path / "attachments" / "aa").iterdir()} == {"new", "new.2000-3500000"}
        assert await gateway.rows("SELECT name FROM attachments") == [("new",)]
        assert await gateway.inbox_states() == []
        assert await gateway.rows("SELECT count(*) FROM outbox") == [(0,)]
        assert await gateway.ask("two") == "echo: two"


async def test_housekeeping_removes_files_left_by_a_crash(gateway: TestGateway, tmp_path: Path) -> None:
    folder = tmp_path / "attachments"
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread((folder / "incoming-x").write_bytes, b"half")
    await keep_house(gateway, tmp_path)
    assert len(list(folder.iterdir())) == 1
    await keep_house(gateway, tmp_path, 25 * HOUR)
    assert list(folder.iterdir()) == []


async def test_failed_housekeeping_is_postponed(gateway: TestGateway, tmp_path: Path) -> None:
    await gateway.ask("one")
    gateway.store.loss = "the file is gone"
    with capture_logs() as said:
        await keep_house(gateway, tmp_path)
    assert [line["event"] for line in said] == ["housekeeping.delayed"]
    gateway.store.loss = None
    assert await gateway.store.read(inbox.load_chats_with_waiting) == []
    assert await gateway.turns_of(DIRECT) == [("finished", "one")]


async def test_files_are_removed_even_while_the_database_is_full(gateway: TestGateway, tmp_path: Path) -> None:
    folder = tmp_path / "attachments"
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread((folder / "incoming-x").write_bytes, b"half")
    await gateway.store.write(set_max_pages, 0)
    await keep_house(gateway, tmp_path, 25 * HOUR)
    await gateway.store.write(set_max_pages, None)
    assert list(folder.iterdir()) == []
