"""Commands while the database is locked or full: one reply within a second."""

import asyncio

import pytest

from gateway.inbound.admission import NOT_TAKEN
from hermes_state.errors import PlatformUnavailable, StoreUnavailable
from hermes_state.store.writer import Store
from tests.databases import place_of
from tests.gateway.helpers import EVE, GROUP, Serve, TestGateway, calls, eventually, hanging, settled
from tests.gateway.turns.test_lanes import tool
from tests.hermes_state.helpers import locked_by_another_process, set_max_pages

LOCK_SECONDS = 60.0
"""Maximum length of a lock, which usually ends with its block."""


async def test_status_answers_once_from_memory_while_the_database_is_locked(gateway: TestGateway) -> None:
    hang = await hanging(gateway)
    with locked_by_another_process(place_of(gateway.store), LOCK_SECONDS):
        saying = asyncio.create_task(gateway.say("/status"))
        await eventually(gateway.adapter.texts, "an answer")
        assert not saying.done()
    await saying
    [said] = gateway.adapter.texts()
    assert "Database: not writable" in said
    assert "Working on an answer" in said
    assert "telegram: connected" in said
    assert await gateway.inbox_states() == ["claimed", "done"]
    hang.release()
    assert await gateway.replies(2) == [said, "finally"]


async def test_a_status_whose_answer_from_memory_was_lost_is_answered_when_it_is_stored(gateway: TestGateway) -> None:
    gateway.adapter.troubles.append(PlatformUnavailable("no network"))
    with locked_by_another_process(place_of(gateway.store), 1.5):
        await gateway.say("/status")
    [said] = await gateway.replies(1)
    assert "Conversation: none yet" in said


async def test_a_status_repeated_on_a_full_disk_is_answered_once(gateway: TestGateway) -> None:
    await gateway.ask("warm up")
    status = gateway.message("/status" + " " * 50_000)
    await gateway.store.write(set_max_pages, 0)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await gateway.intake.accept(status)
    await gateway.store.write(set_max_pages, None)
    await gateway.intake.accept(status)
    await gateway.quiet()
    await settled()
    assert ["Database: not writable" in text for text in gateway.adapter.texts()] == [False, True]


async def test_an_offline_steer_is_not_acknowledged_before_it_is_stored(serve: Serve, store: Store) -> None:
    gate = asyncio.Event()
    async with serve(tools=[tool("look", lambda: gate)]) as gateway:
        gateway.model.script.append(calls("look"))
        await gateway.say("q")
        await gateway.until_rows("SELECT 1 FROM tool_runs")
        with locked_by_another_process(place_of(store), LOCK_SECONDS):
            saying = asyncio.create_task(gateway.say("/steer in French"))
            await eventually(lambda: gateway.adapter.texts() == [NOT_TAKEN], "an answer")
        await saying
        gate.set()
        assert (await gateway.replies(3))[-1] == "echo: q | in French"


@pytest.mark.parametrize("line", ["/help", "/new", "/queue later"])
async def test_other_offline_commands_get_a_notice_and_run_later(gateway: TestGateway, line: str) -> None:
    with locked_by_another_process(place_of(gateway.store), LOCK_SECONDS):
        saying = asyncio.create_task(gateway.say(line))
        await eventually(lambda: gateway.adapter.texts() == [NOT_TAKEN], "an answer")
    await saying
    assert len(await gateway.replies(2)) == 2


async def test_overheard_commands_are_answered_once_and_only_with_access(gateway: TestGateway) -> None:
    status = gateway.message("/status")
    for event in (status, status, gateway.message("hello"), gateway.message("/status", sender=EVE)):
        await gateway.intake.overhear(event)
    await gateway.intake.overhear(gateway.message("/status", chat=GROUP, is_addressed=False))
    await eventually(gateway.adapter.texts, "an answer")
    await gateway.intake.accept(status)
    await settled()
    assert len(gateway.adapter.requests) == 1
    assert await gateway.inbox_states() == ["done"]
    assert sum(gateway.access.counts.values()) == 1, "what is overheard is judged when it comes to be stored"
