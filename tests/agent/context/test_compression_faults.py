"""When no summary can be had: what a chat sees, what is stored, and when it is tried again.

Every way in which a summariser fails, on every way to a compression, with and without room to wait for a better day;
`make test` sees a third of them, a fifth of those that are waited for.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.context.job import Aborted, Compressed
from agent.context.limits import ContextSettings
from agent.context.model_handle import SummaryRoute
from agent.context.state import NO_MODEL_SECONDS
from agent.model.protocols.chat_completions import ChatCompletionsModel
from hermes_state.turns import RunningTurn
from hermes_state.values import Origin, Tokens
from tests.agent.conftest import Chat, Sink
from tests.agent.context.contexts import (
    CONTEXT,
    Found,
    agent_of,
    asked_for_summaries,
    chat_at,
    clock_of,
    dialled,
    fill_and_ask,
    look,
    summary_of,
)
from tests.agents import SingleModelAgent
from tests.clients import client_of
from tests.fakes import labkit
from tests.fakes.fake_llm import LLM
from tests.sampling import crossed

CROWDED = ContextSettings(hard_message_limit=8)
"""Hygiene acts although there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to fail."""

    reply: dict[str, Any]
    calls: tuple[str, ...]
    """The ledger's rows of one attempt."""
    told: str
    """What the chat reads of it."""
    seconds: int = 60
    """Until the next attempt."""
    is_passing: bool = True
    """Trouble with the provider, which waiting may mend; the others fail again on the same conversation."""
    read_seconds: float = 20.0


FAULTS = {
    "raises": Fault(reply={"reset": True}, calls=("unavailable",) * 4, told="cannot be reached"),
    "times out": Fault(reply={"hang": 20}, calls=("timeout",) * 2, told="did not answer in time", read_seconds=1.0),
    "hangs in the middle": Fault(
        reply={"text": summary_of("x"), "chunk_chars": 40, "hang_after": 4},
        calls=("timeout",),
        told="did not answer in time",
        read_seconds=1.0,
    ),
    "empty": Fault(reply={"text": "  "}, calls=("malformed",) * 2, told="broken or empty", is_passing=False),
    "truncated": Fault(
        reply={"text": summary_of("x")[:400], "finish": "length"},
        calls=("truncated",),
        told="cut off",
        is_passing=False,
    ),
    "garbage": Fault(
        reply={"text": "x7 \ufffd Õ¬ lorem 0000 " * 30}, calls=("malformed",), told="something else", is_passing=False
    ),
    "malformed": Fault(
        reply={"text": summary_of("x"), "malformed": 2},
        calls=("malformed",) * 2,
        told="broken or empty",
        is_passing=False,
    ),
    "refuses": Fault(
        reply={"text": "I am sorry, but I cannot help with this request. Is there anything else?"},
        calls=("refused",),
        told="declined",
        is_passing=False,
    ),
    "401": Fault(reply={"error": {"kind": "401"}}, calls=("auth",), told="API key", seconds=NO_MODEL_SECONDS),
    "402": Fault(reply={"error": {"kind": "402"}}, calls=("quota",), told="no credit", seconds=NO_MODEL_SECONDS),
    "404": Fault(
        reply={"error": {"kind": "404"}},
        calls=("not_offered",),
        told="does not have this model",
        seconds=NO_MODEL_SECONDS,
    ),
    "429": Fault(reply={"error": {"kind": "429"}}, calls=("rate_limited",) * 4, told="how often"),
    "500": Fault(reply={"error": {"kind": "500"}}, calls=("unavailable",) * 4, told="cannot be reached"),
    "overflow": Fault(
        reply={"error": {"kind": "context"}}, calls=("overflow",), told="to summarise does not fit", is_passing=False
    ),
}


async def converse(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await chat.finish(turn, await agent.run(turn, Sink()))


async def tidy(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await agent.check(turn)


async def command(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> str:
    """The sentence that the command answers with, where something failed."""
    conversation = turn.conversation
    prepared = await agent.context.prepare_by_hand(conversation)
    outcome = await chat.store.write(agent.context.settle, prepared, chat.clock.now())
    assert isinstance(outcome, Aborted | Compressed)
    return (outcome.reason if isinstance(outcome, Aborted) else outcome.prepared.failure) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One way to a compression, in a conversation of so many tokens."""

    layer: str
    tokens: int
    has_room: bool
    begin: Callable[[Chat, SingleModelAgent, RunningTurn], Any]
    question: str = "and now?"
    is_refused: bool = False
    context: ContextSettings = field(default_factory=ContextSettings)
    cools: str = "loop"


TRIGGERS = {
    "hygiene with room": Trigger(
        layer="hygiene", tokens=4_200, has_room=True, begin=tidy, context=CROWDED, cools="hygiene"
    ),
    "hygiene": Trigger(layer="hygiene", tokens=5_700, has_room=False, begin=tidy, cools="hygiene"),
    "preflight with room": Trigger(layer="preflight", tokens=5_000, has_room=True, begin=converse),
    "preflight": Trigger(layer="preflight", tokens=5_700, has_room=False, begin=converse),
    "loop with room": Trigger(layer="in_loop", tokens=3_600, has_room=True, begin=converse, question="[[tool:dump]]"),
    "loop": Trigger(layer="in_loop", tokens=3_600, has_room=False, begin=converse, question="[[tool:dump]]" * 3),
    "overflow": Trigger(layer="overflow", tokens=3_000, has_room=False, begin=converse, is_refused=True),
    "manual with room": Trigger(layer="manual", tokens=3_600, has_room=True, begin=command),
    "manual": Trigger(layer="manual", tokens=5_700, has_room=False, begin=command),
}


_SILENT = [name for name, fault in FAULTS.items() if fault.calls[0] == "timeout"]
_SOUNDING = [name for name in FAULTS if name not in _SILENT]


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("fault_name", "trigger_name"), [*crossed(3, _SOUNDING, list(TRIGGERS)), *crossed(5, _SILENT, list(TRIGGERS))]
)
async def test_a_summary_that_fails_stops_no_chat(
    fault_name: str, trigger_name: str, chat: Chat, server: labkit.Server, llm: LLM
) -> None:
    fault, trigger, own = FAULTS[fault_name], TRIGGERS[trigger_name], chat_at(chat, 7)
    async with dialled(server, "lab-8k", read_seconds=fault.read_seconds) as model:
        agent = agent_of(own, model, context=trigger.context)
        turn = await fill_and_ask(own, agent, trigger.tokens, trigger.question)
        if trigger.is_refused:
            llm.add_scripts([{"has_tools": True, "error": {"kind": "413"}}])
        llm.add_scripts([{"summary": True, "times": -1, **fault.reply}])
        before = await look(own, turn.lineage_id)
        said = await trigger.begin(own, agent, turn)
        found = await look(own, turn.lineage_id)
        assert found.said >= before.said
        assert tuple(found.summary_calls) == fault.calls
        [(key, cooldown)] = found.state.cooldowns.items()
        assert key.startswith(f"{trigger.cools}:{model.route}:{model.name}")
        assert cooldown.failures == 1
        assert cooldown.until == clock_of(own).at + fault.seconds * 1_000
        if fault.is_passing and trigger.has_room:
            sentence = assert_left_alone(found, trigger, fault.calls[0])
            assert found.view[: len(before.view)] == before.view
        else:
            sentence = assert_made_by_rule(found, trigger)
        assert fault.told in (said or sentence)
        assert "/retry" not in (said or sentence), "no question has failed"
        if fault.is_passing and trigger.has_room:
            await assert_tried_again(own, agent, turn, llm, fault, trigger)
        await agent.close()


def assert_left_alone(found: Found, trigger: Trigger, kind: str) -> str:
    assert found.depth == 0
    assert found.compressions == [(trigger.layer, "aborted", kind)]
    if trigger.layer == "manual":
        assert found.told == [], "the command itself answers"
        return ""
    [sentence] = found.told
    assert sentence.startswith("I could not compress this conversation: ")
    assert "/compress" in sentence
    return sentence


def assert_made_by_rule(found: Found, trigger: Trigger) -> str:
    assert found.depth == 1
    assert found.compressions == [(trigger.layer, "compressed", "deterministic")]
    [handoff] = [row.text or "" for row in found.view if row.origin is Origin.SUMMARY]
    stands_for = re.search(r"Stands for (\d+) messages", handoff)
    assert stands_for is not None
    assert "TICKET-" in handoff
    notices = [text for text in found.told if "could not summarise" in text]
    if trigger.layer == "manual":
        assert found.told == []
        return ""
    others = [text for text in found.told if text not in notices]
    assert len(notices) == 1
    assert len(others) == (trigger.context is CROWDED), "the number of messages has its own notice"
    assert f"key points from {stands_for[1]} messages" in notices[0]
    return notices[0]


async def assert_tried_again(
    chat: Chat, agent: SingleModelAgent, turn: RunningTurn, llm: LLM, fault: Fault, trigger: Trigger
) -> None:
    """On the same way: the command asks at once, what acts by itself when the route has rested."""

    async def begin_again() -> int:
        is_over = trigger.begin is converse
        await trigger.begin(chat, agent, await chat.start("go on") if is_over else turn)
        return asked_for_summaries(llm)

    mend_summaries(llm)
    asked = asked_for_summaries(llm)
    clock_of(chat).pass_seconds(fault.seconds - 1)
    if trigger.layer != "manual":
        assert await begin_again() == asked
        clock_of(chat).pass_seconds(1)
    assert await begin_again() == asked + 1
    found = await look(chat, turn.lineage_id)
    assert found.kinds == ["model"]
    assert found.state.cooldowns == {}, "a success is a new beginning"


# ---- when it is tried again


def fail_summaries(llm: LLM, **reply: Any) -> None:
    llm.scripts[:] = []
    llm.add_scripts([{"summary": True, "times": -1, **reply}])


def mend_summaries(llm: LLM) -> None:
    fail_summaries(llm, text=summary_of("mended"))


async def next_turn(chat: Chat, agent: SingleModelAgent) -> RunningTurn:
    turn = await chat.start("go on")
    await converse(chat, agent, turn)
    return turn


@pytest.mark.parametrize("fault_name", FAULTS)
async def test_a_record_made_by_rule_gives_way_to_a_summary_when_the_route_has_rested(
    fault_name: str, chat: Chat, server: labkit.Server, llm: LLM
) -> None:
    fault, own = FAULTS[fault_name], chat_at(chat, 1)
    async with dialled(server, "lab-8k", read_seconds=fault.read_seconds) as model:
        agent = agent_of(own, model)
        fail_summaries(llm, **fault.reply)
        turn = await fill_and_ask(own, agent, 5_700)
        await converse(own, agent, turn)
        mend_summaries(llm)
        asked = asked_for_summaries(llm)
        clock_of(own).pass_seconds(fault.seconds - 1)
        await converse(own, agent, await fill_and_ask(own, agent, 4_200))
        assert asked_for_summaries(llm) == asked, "there is room to wait"
        clock_of(own).pass_seconds(1)
        await next_turn(own, agent)
        found = await look(own, turn.lineage_id)
        assert found.kinds == ["deterministic", "model"]
        [handoff] = [row.text or "" for row in found.view if row.origin is Origin.SUMMARY]
        assert "SUMMARY-BY-mended" in handoff
        await agent.close()


@pytest.mark.parametrize(("kind", "seconds"), [("401", (600, 600, 600)), ("500", (60, 300, 900, 900))])
async def test_a_route_that_fails_is_left_alone_longer_each_time(
    kind: str, seconds: tuple[int, ...], chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small)
    fail_summaries(llm, error={"kind": kind})
    turn = await fill_and_ask(own, agent, 5_000)
    await converse(own, agent, turn)
    asked = asked_for_summaries(llm)
    assert asked
    for pause in seconds:
        clock_of(own).pass_seconds(pause - 1)
        await next_turn(own, agent)
        assert asked_for_summaries(llm) == asked, f"not before {pause} s"
        clock_of(own).pass_seconds(1)
        agent = agent_of(own, small)  # a restart forgets none of it
        await next_turn(own, agent)
        assert asked_for_summaries(llm) > asked, f"after {pause} s"
        asked = asked_for_summaries(llm)
    assert (await look(own, turn.lineage_id)).depth == 0
    mend_summaries(llm)
    clock_of(own).pass_seconds(seconds[-1])
    await next_turn(own, agent)
    found = await look(own, turn.lineage_id)
    assert found.kinds == ["model"]
    assert found.state.cooldowns == {}, "a success is a new beginning"


async def test_the_command_does_not_wait_and_what_it_finds_holds_for_all(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small)
    fail_summaries(llm, error={"kind": "401"})
    turn = await fill_and_ask(own, agent, 4_150)
    await converse(own, agent, turn)
    mend_summaries(llm)
    await command(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert found.kinds == ["model"]
    assert found.state.cooldowns == {}


async def test_hygiene_and_the_loop_cool_down_apart(chat: Chat, small: ChatCompletionsModel, llm: LLM) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small, context=CROWDED)
    fail_summaries(llm, error={"kind": "401"})
    turn = await fill_and_ask(own, agent, 4_150)
    await tidy(own, agent, turn)
    await converse(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert [layer for layer, *_ in found.compressions] == ["hygiene", "preflight"]
    assert {key.partition(":")[0] for key in found.state.cooldowns} == {"hygiene", "loop"}
    assert len(found.told) == 1, "two layers, one turn, one sentence"


async def test_without_room_a_route_that_cools_down_is_not_asked_and_the_chat_goes_on(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small)
    fail_summaries(llm, error={"kind": "500"})
    turn = await fill_and_ask(own, agent, 4_150)
    await converse(own, agent, turn)
    asked = asked_for_summaries(llm)
    turn = await fill_and_ask(own, agent, 5_700)
    await converse(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert asked_for_summaries(llm) == asked
    assert found.kinds == ["deterministic"]
    assert "failed a short while ago" in found.told[-1]
    assert found.state.cooldowns, "what was made by rule mends no route"


# ---- a route of its own for summaries


@pytest.mark.parametrize("fault_name", FAULTS)
async def test_a_summary_model_that_fails_is_stood_in_for_by_the_sessions_own_once(
    fault_name: str, chat: Chat, server: labkit.Server, small: ChatCompletionsModel, llm: LLM
) -> None:
    fault, own = FAULTS[fault_name], chat_at(chat, 1)
    async with dialled(server, "lab-32k", read_seconds=fault.read_seconds) as aux:
        routes = [
            SummaryRoute(client=client_of(aux, chat.store, chat.clock), context_length=Tokens(32_768)),
            SummaryRoute(client=client_of(small, chat.store, chat.clock), context_length=Tokens(CONTEXT)),
        ]
        agent = agent_of(own, small, routes=routes)
        llm.add_scripts([{"summary": True, "model": "lab-32k", "times": -1, **fault.reply}])
        llm.add_scripts([{"summary": True, "model": "lab-8k", "times": -1, "text": summary_of("own")}])
        turn = await fill_and_ask(own, agent, 4_200)
        await converse(own, agent, turn)
        found = await look(own, turn.lineage_id)
        assert found.kinds == ["model"]
        assert tuple(found.summary_calls) == (*fault.calls, "ok")
        assert found.told == [], "nobody has to know"
        [key] = found.state.cooldowns
        assert key.startswith(f"loop:{aux.route}:{aux.name}")
        asked = [row["model"] for row in llm.requests.rows]
        turn = await fill_and_ask(own, agent, 4_200)
        await converse(own, agent, turn)
        later = [row["model"] for row in llm.requests.rows][len(asked) :]
        assert "lab-32k" not in later, "it cools down, and the other is asked alone"
        assert (await look(own, turn.lineage_id)).kinds == ["model", "model"]


async def test_when_both_routes_fail_each_is_asked_once_and_both_cool_down(
    chat: Chat, server: labkit.Server, small: ChatCompletionsModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    async with dialled(server, "lab-32k") as aux:
        routes = [
            SummaryRoute(client=client_of(aux, chat.store, chat.clock), context_length=Tokens(32_768)),
            SummaryRoute(client=client_of(small, chat.store, chat.clock), context_length=Tokens(CONTEXT)),
        ]
        agent = agent_of(own, small, routes=routes)
        fail_summaries(llm, error={"kind": "402"})
        turn = await fill_and_ask(own, agent, 4_200)
        await converse(own, agent, turn)
        found = await look(own, turn.lineage_id)
        assert found.summary_calls == ["quota", "quota"]
        assert found.compressions == [("preflight", "aborted", "quota")]
        assert len(found.state.cooldowns) == 2
        assert len(found.told) == 1


async def test_without_any_model_for_summaries_a_handoff_is_made_by_rule_when_there_is_no_room(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small, routes=[])
    turn = await fill_and_ask(own, agent, 4_200)
    await converse(own, agent, turn)
    assert (await look(own, turn.lineage_id)).compressions == [], "there is room, and nobody who could do it well"
    turn = await fill_and_ask(own, agent, 5_700)
    await converse(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert found.kinds == ["deterministic"]
    assert asked_for_summaries(llm) == 0
    assert len(found.told) == 1
