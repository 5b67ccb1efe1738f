"""Lanes: turns of a chat run in order, and turns of different chats are independent."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.model.base import ModelReply, ModelRequest
from agent.tools.registry import Tool, ToolContext
from gateway.inbound.admission import STOPPED
from gateway.turns.lanes import DEAD_LETTER_SENTENCE
from gateway.turns.runner import CRASH_SENTENCE, DEADLINE_SENTENCE, MAX_RESTARTS, RESTART_SENTENCE
from hermes_state import journal
from hermes_state.aio import Backoff
from hermes_state.chats import move_chat
from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store
from hermes_state.talk import switch
from hermes_state.turns import take_up
from hermes_state.values import AttachmentKind, ChatKind, IncomingAttachment, Origin, ToolEffect
from platforms.base import SendRequest
from tests.databases import place_of
from tests.gateway.helpers import (
    BOB,
    BOSS,
    DIRECT,
    EVE,
    GROUP,
    Hang,
    MemoryAdapter,
    ScriptedModel,
    Serve,
    Step,
    TestGateway,
    answer,
    calls,
    chat,
    config_of,
    eventually,
    hanging,
    settled,
)
from tests.hermes_state.helpers import locked_by_another_process, set_max_pages


def tool(name: str, run: Callable[[], object] = lambda: None, effect: ToolEffect = ToolEffect.READ_ONLY) -> Tool:
    async def work(_arguments: dict[str, object], _context: ToolContext) -> str:
        outcome = run()
        if isinstance(outcome, asyncio.Event):
            await outcome.wait()
        return f"{name} done"

    return Tool(name=name, description=name, parameters={"type": "object", "properties": {}}, effect=effect, run=work)


# ---- order


async def test_messages_are_answered_one_turn_after_another_in_order(serve: Serve) -> None:
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        for number in range(6):
            await gateway.say(f"m{number}")
        assert await gateway.replies(6) == [f"echo: m{number}" for number in range(6)]
        assert gateway.model.most_running == 1


async def test_the_answer_is_requested_before_the_turn_is_logged(serve: Serve) -> None:
    events: list[str] = []

    class LoggedAdapter(MemoryAdapter):
        async def send(self, request: SendRequest) -> str:
            await asyncio.create_task(self._write())  # HTTP clients write in a task of their own
            return await super().send(request)

        async def _write(self) -> None:
            events.extend(["requested", *(entry["event"] for entry in logs if entry["event"] == "turn.finished")])

    with capture_logs() as logs:
        async with serve(adapter=LoggedAdapter()) as gateway:
            assert await gateway.ask("hello") == "echo: hello"
            await eventually(lambda: any(entry["event"] == "turn.finished" for entry in logs), "the turn is logged")
    assert events == ["requested"]


async def test_a_turn_started_with_its_message_equals_one_started_by_a_lane(serve: Serve) -> None:
    async with serve(sessions={"max_turns": 1}) as gateway:
        hang = await hanging(gateway, "first", chat=GROUP)
        await gateway.say("no room", chat=DIRECT)
        assert await gateway.rows("SELECT state FROM inbox ORDER BY id") == [("claimed",), ("new",)]
        hang.release()
        assert await gateway.replies(1) == ["echo: no room"]
        await gateway.quiet(GROUP)
        assert await gateway.turns_of(GROUP) == [("finished", "first")]


async def test_no_more_turns_run_at_once_than_allowed_and_all_are_answered(serve: Serve) -> None:
    async with serve(sessions={"max_turns": 3}) as gateway:

        async def slow(request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
            await eventually(lambda: gateway.model.most_running >= 3, "as many as may")
            await asyncio.sleep(0.02)  # room for one too many
            return answer("ok")

        gateway.model.respond = slow
        await asyncio.gather(*(gateway.say("hi", chat=chat(number)) for number in range(12)))
        for number in range(12):
            await gateway.replies(1, chat(number))
        assert gateway.model.most_running == 3


async def test_a_turn_stopped_while_waiting_for_a_slot_calls_no_model(serve: Serve) -> None:
    async with serve(sessions={"max_turns": 1}) as gateway:
        await gateway.ask("q", chat=chat(1))
        hang = await hanging(gateway, "long", chat=chat(2))
        await gateway.say("/retry", chat=chat(1))
        await gateway.until_rows("SELECT 1 FROM turns WHERE id = 3 AND state = 'running'")
        assert await gateway.ask("/stop", chat=chat(1)) == "Stopped."
        hang.release()
        assert await gateway.replies(1, chat(2)) == ["finally"]
        assert await gateway.ask("and now?", chat=chat(1)) == "echo: q | and now?"
        assert gateway.model.heard == [["q"], ["long"], ["q", "and now?"]]


async def test_undo_leaves_the_talk_between_mentions_in_view(serve: Serve) -> None:
    async with serve(groups={"context": "on"}) as gateway:
        await gateway.say("said before", chat=GROUP, is_addressed=False)
        await gateway.ask("wrong", chat=GROUP, sender=BOSS)
        await gateway.ask("/undo", chat=GROUP, sender=BOSS)
        assert "There is nothing to undo" in await gateway.ask("/undo", chat=GROUP, sender=BOSS)
        await gateway.ask("right", chat=GROUP, sender=BOSS)
        assert [row.text for row in gateway.model.requests[-1].transcript] == ["said before", "right"]


async def test_talk_of_a_group_that_switched_it_off_is_not_shown(serve: Serve) -> None:
    async with serve(groups={"context": "on"}) as gateway:
        await gateway.say("said before", chat=GROUP, is_addressed=False)
        assert len(await gateway.replies(1, GROUP)) == 1, "the bot says that it stores what is said"
        other = replace(GROUP, chat_ref="-200")
        await gateway.store.write(partial(switch, is_on=True), other, ChatKind.GROUP, gateway.clock.now())
        gateway.configure(config_of(groups={"context": "off"}))
        await gateway.access.load()
        assert await gateway.ask("and now?", chat=GROUP) == "echo: and now?"
        assert [row.text for row in gateway.model.requests[0].transcript] == ["and now?"]


# ---- stop


async def test_a_stop_during_tools_leaves_no_open_call(serve: Serve) -> None:
    never = asyncio.Event()
    async with serve(tools=[tool("slow", lambda: never)]) as gateway:
        gateway.model.script.append(calls("slow", text="Let me look."))
        await gateway.say("q")
        await eventually(lambda: gateway.adapter.texts() or gateway.model.requests, "the model was asked")
        await gateway.until_rows("SELECT 1 FROM tool_runs")
        await gateway.tell("/stop")
        assert await gateway.rows("SELECT state FROM tool_runs") == [("stopped",)]
        texts = [row[0] for row in await gateway.rows("SELECT text FROM messages ORDER BY seq")]
        assert texts == ["q", "Let me look.", "stopped with /stop"]


async def test_a_stop_keeps_the_partial_answer_of_a_chat_that_has_moved(gateway: TestGateway) -> None:
    await hanging(gateway, says="partial")
    await gateway.store.write(move_chat, DIRECT.platform, DIRECT.account, DIRECT.chat_ref, "-77", gateway.clock.now())
    await gateway.say("/stop", chat=replace(DIRECT, chat_ref="-77"))
    await gateway.until_rows("SELECT 1 FROM turns WHERE state = 'stopped'")
    assert await gateway.rows("SELECT text FROM messages WHERE role = 'assistant'") == [("partial",)]


async def test_stop_works_while_another_process_locks_the_database(gateway: TestGateway) -> None:
    await hanging(gateway, says="partial")
    with locked_by_another_process(place_of(gateway.store), 60) as locker:
        stop = asyncio.create_task(gateway.say("/stop"))
        await eventually(lambda: gateway.model.running == 0, "the model is let go")
        assert locker.poll() is None, "the database is still locked"
        assert not stop.done()
        locker.kill()
        await asyncio.to_thread(locker.wait)
        await stop
    assert await gateway.replies(3) == ["partial …", STOPPED, "Stopped."]
    assert await gateway.turns_of() == [("stopped", "q")]


async def test_a_turn_waiting_for_approval_keeps_its_place_across_a_restart(serve: Serve, store: Store) -> None:
    async with serve() as gateway:
        await hanging(gateway)
    await store.write(lambda db: db.execute("UPDATE turns SET state = 'waiting'").rowcount)
    async with serve(adapter=gateway.adapter) as again:
        await again.say("next")
        await settled()
        assert again.model.requests == []
        assert await again.turns_of() == [("waiting", "q")]
        await again.say("/stop")
        assert "Stopped. Still queued: 1 message. /stop all clears the queue." in await again.replies(2)
        assert await again.turns_of() == [("stopped", "q"), ("finished", "next")]


async def test_no_queued_message_starts_before_the_stop_is_stored(serve: Serve) -> None:
    """Otherwise, `/stop all` could not drop the next message, because it would already be in a turn."""
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        await hanging(gateway)
        await gateway.say("next")
        [(chat_id,)] = await gateway.rows("SELECT chat_id FROM turns")
        stopping = gateway.lanes.begin_stop(chat_id, "stopped with /stop")
        assert stopping is not None
        await settled()
        assert await gateway.turns_of() == [("running", "q")]
        stopping.settle_stop()
        assert await gateway.replies(1) == ["echo: q | next"]
        assert await gateway.turns_of() == [("stopped", "q"), ("finished", "next")]


async def test_a_late_interruption_does_not_stop_the_next_turn(gateway: TestGateway) -> None:
    hang = Hang()
    await gateway.ask("one")
    [(chat_id, first)] = await gateway.rows("SELECT chat_id, id FROM turns")
    gateway.model.script.append(hang)
    await gateway.say("two")
    await hang.begun.wait()
    gateway.lanes.interrupt(chat_id, first)
    await settled()
    hang.release()
    assert await gateway.replies(2) == ["echo: one", "finally"]


async def test_an_offline_stop_works_only_for_the_user_who_started_the_turn(gateway: TestGateway) -> None:
    gateway.model.script.append(Hang())
    await gateway.say("q", chat=GROUP)
    await eventually(lambda: gateway.model.running == 1, "the turn runs")
    for other in (BOB, EVE):
        await gateway.intake.overhear(gateway.message("/stop", chat=GROUP, sender=other))
    await gateway.intake.overhear(gateway.message("/stop", chat=GROUP, is_addressed=False))
    await settled()
    assert gateway.model.running == 1
    await gateway.intake.overhear(gateway.message("/stop", chat=GROUP))
    await eventually(lambda: gateway.model.running == 0, "the model is let go")


async def test_stop_works_on_a_full_disk_and_does_not_stop_later_turns(serve: Serve, store: Store) -> None:
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        hang, later = Hang(), Hang()
        gateway.model.script.extend([hang, later])
        await gateway.say("q")
        await hang.begun.wait()
        await gateway.say("next")
        await store.write(set_max_pages, 0)
        stop = gateway.message("/stop " + " " * 100_000)
        with pytest.raises(StoreUnavailable):
            await gateway.intake.accept(stop)
        await store.write(set_max_pages, None)
        await later.begun.wait()
        await gateway.intake.accept(stop)
        await settled()
        assert [state for state, _ in await gateway.turns_of()] == ["stopped", "running"]
        later.release()
        await gateway.quiet()
        assert [state for state, _ in await gateway.turns_of()] == ["stopped", "finished"]
        assert gateway.adapter.texts() == [STOPPED, "Stopped.", "finally"], "what it did is what it says"


async def test_the_answer_of_a_stopped_turn_is_still_charged(gateway: TestGateway) -> None:

    async def late(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        turn = gateway.lanes.running_in(DIRECT)
        assert turn is not None
        await gateway.store.write(journal.stop_turn, turn, "", "stopped", gateway.clock.now(), notice="(stopped)")
        return answer("too late")

    gateway.model.script.append(late)
    await gateway.say("q")
    await eventually(lambda: gateway.model.requests and not gateway.lanes.active, "the end of the turn")
    assert await gateway.rows("SELECT state FROM turns") == [("stopped",)]
    assert await gateway.rows("SELECT outcome, input_tokens FROM model_calls") == [("ok", 100)]


async def test_an_answer_stopped_during_its_last_preview_is_still_charged(gateway: TestGateway) -> None:
    hang = Hang(says="fin")
    gateway.model.script.append(hang)
    gateway.adapter.may_show.clear()
    await gateway.say("long")
    await eventually(lambda: gateway.adapter.previews, "a preview is on its way")
    hang.release()
    await eventually(lambda: not gateway.model.running, "the answer is there")
    await gateway.say("/stop")
    await eventually(lambda: gateway.lanes.active[DIRECT].stop_reason, "the work is cancelled")
    gateway.adapter.may_show.set()
    await gateway.until_rows("SELECT 1 FROM turns WHERE state = 'stopped'")
    await gateway.until_rows("SELECT 1 FROM model_calls")
    assert await gateway.rows("SELECT outcome, input_tokens FROM model_calls") == [("ok", 100)]


# ---- interrupt, steer


async def test_in_a_group_only_the_starter_or_an_admin_interrupts(serve: Serve) -> None:
    async with serve(sessions={"busy_mode": "interrupt"}) as gateway:
        hang, hang2 = Hang(), Hang()
        gateway.model.script.extend([hang, hang2])
        await gateway.say("ann asks", chat=GROUP)
        await hang.begun.wait()
        await gateway.say("bob asks", chat=GROUP, sender=BOB)
        await settled()
        assert (gateway.model.running, len(gateway.model.requests)) == (1, 1)
        await gateway.say("boss asks", chat=GROUP, sender=BOSS)
        await hang2.begun.wait()
        hang2.release()
        await gateway.quiet(GROUP)
        assert await gateway.turns_of(GROUP) == [
            ("stopped", "ann asks"),
            ("finished", "bob asks"),
            ("finished", "boss asks"),
        ]


async def test_a_steer_joins_before_the_next_model_call(serve: Serve) -> None:
    gate = asyncio.Event()
    async with serve(tools=[tool("look", lambda: gate)], sessions={"busy_mode": "steer"}) as gateway:
        gateway.model.script.append(calls("look"))
        await gateway.say("q")
        await gateway.until_rows("SELECT 1 FROM tool_runs")
        await gateway.say("and this too")
        gate.set()
        assert await gateway.replies(1) == ["echo: q | and this too"]
        assert await gateway.turns_of() == [("finished", "q | and this too")]
        last = gateway.model.requests[1].transcript
        assert [row.origin for row in last][-2:] == [Origin.TOOL, Origin.HUMAN]


async def test_a_steer_after_the_last_model_call_becomes_the_next_turn(serve: Serve) -> None:
    async with serve(sessions={"busy_mode": "steer"}) as gateway:
        hang = await hanging(gateway)
        await gateway.say("late")
        hang.release()
        assert await gateway.replies(2) == ["finally", "echo: late"]


# ---- failure


async def cut_off(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
    raise asyncio.CancelledError


@pytest.mark.parametrize("step", [ValueError("bug"), cut_off], ids=["bug", "cancellation"])
async def test_an_unexpected_end_is_reported_and_the_chat_continues(gateway: TestGateway, step: Step) -> None:
    gateway.model.script.append(step)
    assert await gateway.ask("q") == CRASH_SENTENCE
    assert await gateway.ask("again") == "echo: q | again"


async def test_a_turn_has_a_deadline(gateway: TestGateway) -> None:
    gateway.configure(
        gateway.live.config.model_copy(
            update={"model": gateway.live.config.model.model_copy(update={"turn_seconds": 0.05})}
        )
    )
    gateway.model.script.append(Hang())
    assert await gateway.ask("q") == DEADLINE_SENTENCE
    assert [state for state, _ in await gateway.turns_of()] == ["failed"]


async def test_an_answer_survives_a_full_disk_without_a_second_model_call(gateway: TestGateway) -> None:
    hang = await hanging(gateway, reply="x" * 200_000)
    await gateway.store.write(set_max_pages, 0)
    hang.release()
    await settled(0.1)
    await gateway.store.write(set_max_pages, None)
    replies = await gateway.replies(1)
    assert "".join((await gateway.rows("SELECT text FROM messages WHERE role = 'assistant'"))[0]) == "x" * 200_000
    assert (sum(map(len, replies)), len(gateway.model.requests)) == (200_000, 1)


async def test_a_message_that_crashes_its_lane_is_set_aside_and_the_chat_continues(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.turns.lanes.RETRY_BACKOFF", Backoff(0.01, 0.01))
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        gateway.adapter.files["f"] = RuntimeError("the SDK is broken")
        file = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref="f", name="a.txt")
        await gateway.say("poison", files=[file])
        await gateway.say("hello")
        assert await gateway.replies(2) == [DEAD_LETTER_SENTENCE, "echo: hello"]
        assert await gateway.inbox_states() == ["dead", "done"]


# ---- draining, restarting


async def test_a_turn_waiting_for_a_slot_does_not_start_during_the_drain(serve: Serve) -> None:
    async with serve() as gateway:
        for chat in (DIRECT, GROUP):
            await hanging(gateway, chat=chat)
    first = Hang()
    model = ScriptedModel()
    model.script.append(first)
    async with serve(chat_model=model, sessions={"max_turns": 1}) as again:
        await first.begun.wait()
        draining = asyncio.create_task(again.lanes.drain(5.0))
        await settled(0.01)
        first.release()
        assert await draining == 0
        assert len(again.model.requests) == 1
        assert sorted(await again.rows("SELECT state, restarts FROM turns")) == [("finished", 1), ("running", 0)]


async def test_a_turn_that_keeps_crashing_the_process_is_given_up(serve: Serve) -> None:
    adapter = MemoryAdapter()
    asked_times = 0
    for _ in range(6):
        async with serve(adapter=adapter) as gateway:
            hang = Hang()
            gateway.model.script.append(hang)
            if not asked_times:
                await gateway.say("q")
            await eventually(
                lambda begun=hang.begun: begun.is_set() or adapter.texts(), "it is tried again or given up"
            )
            if not hang.begun.is_set():
                await gateway.quiet()
                break
            asked_times += 1
    assert asked_times == 4  # the first time, and three restarts
    assert adapter.texts() == [RESTART_SENTENCE]
    async with serve(adapter=adapter) as gateway:
        assert await gateway.ask("next") == "echo: q | next"


async def test_a_turn_interrupted_by_many_deploys_is_not_given_up(serve: Serve) -> None:
    adapter = MemoryAdapter()
    for deploy in range(MAX_RESTARTS + 3):
        async with serve(adapter=adapter) as gateway:
            hang = Hang()
            gateway.model.script.append(hang)
            if not deploy:
                await gateway.say("q")
            await hang.begun.wait()
            assert await gateway.lanes.drain(0.0) == 1
    async with serve(adapter=adapter) as gateway:
        assert await gateway.replies(1) == ["echo: q"]


async def test_a_turn_resumed_by_another_process_is_not_answered_twice(gateway: TestGateway) -> None:

    async def late(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        turn = gateway.lanes.running_in(DIRECT)
        assert turn is not None
        await gateway.store.write(take_up, turn, True)
        return answer("too late")

    gateway.model.script.append(late)
    assert await gateway.ask("q") == "echo: q"
    assert await gateway.rows("SELECT epoch, restarts, state FROM turns") == [(3, 1, "finished")]
    assert len(await gateway.rows("SELECT 1 FROM model_calls")) == 2, "both were paid for"


async def test_a_tool_that_writes_is_not_run_again_after_a_restart(serve: Serve) -> None:
    runs: list[str] = []
    never = asyncio.Event()

    def run() -> asyncio.Event:
        runs.append("x")
        return never

    tools = [tool("pay", run, ToolEffect.WRITES)]
    async with serve(tools=tools) as gateway:
        gateway.model.script.append(calls("pay"))
        await gateway.say("q")
        await eventually(lambda: runs, "the tool runs")
    async with serve(tools=tools, adapter=gateway.adapter) as again:
        assert await again.replies(1) == ["echo: q"]
        assert runs == ["x"]
        assert await again.rows("SELECT state FROM tool_runs") == [("unknown",)]


async def test_idle_lanes_leave_nothing_behind(gateway: TestGateway) -> None:
    for number in range(20):
        await gateway.ask("hi", chat=chat(number))
    await eventually(lambda: not gateway.lanes._lanes and not gateway.lanes._tasks, "lanes are gone")
    await eventually(lambda: not gateway.delivery._wakes, "delivery is idle")
    assert len(gateway.gates._gates) == 0
    assert not gateway.lanes.active
    assert gateway.lanes.running_in(DIRECT) is None
