"""Failed summaries: the chat's message, the stored rows, and the time of the next attempt.

Every kind of failure is combined with every way to a compression, with and without room. `make test` runs a third of
the combinations, or a fifth of those that wait.
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
from agent.model.base import ChatModel
from hermes_state.turns import RunningTurn
from hermes_state.values import Origin, Tokens
from tests.agent.conftest import Chat, dialled
from tests.agent.context.contexts import (
    CONTEXT,
    Found,
    agent_of,
    answer,
    asked_for_summaries,
    chat_at,
    clock_of,
    fill_and_ask,
    look,
    summary_of,
)
from tests.agents import SingleModelAgent
from tests.clients import client_of
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.sampling import crossed, every

CROWDED = ContextSettings(hard_message_limit=8)
"""Settings with which hygiene acts although there is room."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of failure."""

    reply: dict[str, Any]
    calls: tuple[str, ...]
    """Outcomes in the ledger for one attempt."""
    told: str
    """Part of the sentence in the chat."""
    seconds: int = 60
    """Seconds until the next attempt."""
    is_passing: bool = True
    """True for a problem of the provider that may pass. Other failures repeat on the same conversation."""
    read_seconds: float = 20.0


SILENT: dict[str, Any] = {"told": "took too long", "read_seconds": 1.0}
LASTING: dict[str, Any] = {"is_passing": False}
WITHOUT_MODEL: dict[str, Any] = {"seconds": NO_MODEL_SECONDS}
REFUSAL = "I am sorry, but I cannot help with this request. Is there anything else?"
FAULTS = {
    "raises": Fault({"reset": True}, ("unavailable",) * 4, "cannot be reached"),
    "times out": Fault({"hang": 20}, ("timeout",) * 2, **SILENT),
    "hangs in the middle": Fault({"text": summary_of("x"), "chunk_chars": 40, "hang_after": 4}, ("timeout",), **SILENT),
    "empty": Fault({"text": "  "}, ("malformed",) * 2, "broken or empty", **LASTING),
    "truncated": Fault({"text": summary_of("x")[:400], "finish": "length"}, ("truncated",), "cut off", **LASTING),
    "garbage": Fault({"text": "x7 \ufffd Õ¬ lorem 0000 " * 30}, ("malformed",), "was not a summary", **LASTING),
    "malformed": Fault({"text": summary_of("x"), "malformed": 2}, ("malformed",) * 2, "broken or empty", **LASTING),
    "refuses": Fault({"text": REFUSAL}, ("refused",), "declined", **LASTING),
    "401": Fault({"error": {"kind": "401"}}, ("auth",), "API key", **WITHOUT_MODEL),
    "402": Fault({"error": {"kind": "402"}}, ("quota",), "out of credit", **WITHOUT_MODEL),
    "404": Fault({"error": {"kind": "404"}}, ("not_offered",), "does not offer this model", **WITHOUT_MODEL),
    "429": Fault({"error": {"kind": "429"}}, ("rate_limited",) * 4, "rate-limiting"),
    "500": Fault({"error": {"kind": "500"}}, ("unavailable",) * 4, "cannot be reached"),
    "overflow": Fault({"error": {"kind": "context"}}, ("overflow",), "to summarise do not fit", **LASTING),
}


async def tidy(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await agent.check(turn)


async def command(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> str:
    """The reply of the command if something failed."""
    conversation = turn.conversation
    prepared = await agent.context.prepare_by_hand(conversation)
    outcome = await chat.store.write(agent.context.settle, prepared, chat.clock.now())
    assert isinstance(outcome, Aborted | Compressed)
    return (outcome.reason if isinstance(outcome, Aborted) else outcome.prepared.failure) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A way to cause a compression, in a conversation of this many tokens."""

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
    "preflight with room": Trigger(layer="preflight", tokens=5_000, has_room=True, begin=answer),
    "preflight": Trigger(layer="preflight", tokens=5_700, has_room=False, begin=answer),
    "loop with room": Trigger(layer="in_loop", tokens=3_600, has_room=True, begin=answer, question="[[tool:dump]]"),
    "loop": Trigger(layer="in_loop", tokens=3_600, has_room=False, begin=answer, question="[[tool:dump]]" * 3),
    "overflow": Trigger(layer="overflow", tokens=3_000, has_room=False, begin=answer, is_refused=True),
    "manual with room": Trigger(layer="manual", tokens=3_600, has_room=True, begin=command),
    "manual": Trigger(layer="manual", tokens=5_700, has_room=False, begin=command),
}


_SILENT = [name for name, fault in FAULTS.items() if fault.calls[0] == "timeout"]
_SOUNDING = [name for name in FAULTS if name not in _SILENT]


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("fault_name", "trigger_name"), [*crossed(3, _SOUNDING, list(TRIGGERS)), *crossed(5, _SILENT, list(TRIGGERS))]
)
async def test_a_failed_summary_does_not_stop_a_chat(
    fault_name: str, trigger_name: str, chat: Chat, server: Server, llm: LLM
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
        assert (cooldown.failures, cooldown.until) == (1, clock_of(own).at + fault.seconds * 1_000)
        if is_left_alone := fault.is_passing and trigger.has_room:
            sentence = assert_left_alone(found, trigger, fault.calls[0])
            assert found.view[: len(before.view)] == before.view
        else:
            sentence = assert_made_by_rule(found, trigger)
        assert fault.told in (said or sentence)
        assert "/retry" not in (said or sentence), "no question has failed"
        if is_left_alone:
            await assert_tried_again(own, agent, turn, llm, fault, trigger)
        await agent.close()


def assert_left_alone(found: Found, trigger: Trigger, kind: str) -> str:
    assert (found.depth, found.compressions) == (0, [(trigger.layer, "aborted", kind)])
    if trigger.layer == "manual":
        assert found.told == [], "the command sends its own reply"
        return ""
    [sentence] = found.told
    assert sentence.startswith("I could not compress this conversation: ")
    assert "/compress" in sentence
    return sentence


def assert_made_by_rule(found: Found, trigger: Trigger) -> str:
    assert (found.depth, found.compressions) == (1, [(trigger.layer, "compressed", "deterministic")])
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
    """Try again in the same way. The command asks at once; automatic layers ask after the cooldown."""

    async def begin_again() -> int:
        is_over = trigger.begin is answer
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


# ---- the next attempt


def fail_summaries(llm: LLM, **reply: Any) -> None:
    llm.scripts[:] = []
    llm.add_scripts([{"summary": True, "times": -1, **reply}])


def mend_summaries(llm: LLM) -> None:
    fail_summaries(llm, text=summary_of("mended"))


def two_routes(chat: Chat, first: ChatModel, second: ChatModel) -> list[SummaryRoute]:
    sizes = ((first, 32_768), (second, CONTEXT))
    return [
        SummaryRoute(client=client_of(model, chat.store, chat.clock), context_length=Tokens(size))
        for model, size in sizes
    ]


async def next_turn(chat: Chat, agent: SingleModelAgent) -> RunningTurn:
    turn = await chat.start("go on")
    await answer(chat, agent, turn)
    return turn


@pytest.mark.fuzz
@pytest.mark.parametrize("fault_name", every(3, list(FAULTS)))
async def test_a_summary_replaces_a_rules_record_later(fault_name: str, chat: Chat, server: Server, llm: LLM) -> None:
    fault, own = FAULTS[fault_name], chat_at(chat, 1)
    async with dialled(server, "lab-8k", read_seconds=fault.read_seconds) as model:
        agent = agent_of(own, model)
        fail_summaries(llm, **fault.reply)
        turn = await fill_and_ask(own, agent, 5_700)
        await answer(own, agent, turn)
        mend_summaries(llm)
        asked = asked_for_summaries(llm)
        clock_of(own).pass_seconds(fault.seconds - 1)
        await answer(own, agent, await fill_and_ask(own, agent, 4_200))
        assert asked_for_summaries(llm) == asked, "there is room to wait"
        clock_of(own).pass_seconds(1)
        await next_turn(own, agent)
        found = await look(own, turn.lineage_id)
        assert found.kinds == ["deterministic", "model"]
        [handoff] = [row.text or "" for row in found.view if row.origin is Origin.SUMMARY]
        assert "SUMMARY-BY-mended" in handoff
        await agent.close()


async def test_without_room_a_cooling_route_is_not_asked(chat: Chat, small: ChatModel, llm: LLM) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small)
    fail_summaries(llm, error={"kind": "500"})
    turn = await fill_and_ask(own, agent, 4_150)
    await answer(own, agent, turn)
    asked = asked_for_summaries(llm)
    turn = await fill_and_ask(own, agent, 5_700)
    await answer(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert (asked_for_summaries(llm), found.kinds) == (asked, ["deterministic"])
    assert "failed a short time ago" in found.told[-1]
    assert found.state.cooldowns, "a record by rule does not end a cooldown"


# ---- a separate route for summaries


@pytest.mark.fuzz
@pytest.mark.parametrize("fault_name", every(3, list(FAULTS)))
async def test_if_a_summary_model_fails_the_conversations_model_is_asked_once(
    fault_name: str, chat: Chat, server: Server, small: ChatModel, llm: LLM
) -> None:
    fault, own = FAULTS[fault_name], chat_at(chat, 1)
    async with dialled(server, "lab-32k", read_seconds=fault.read_seconds) as aux:
        agent = agent_of(own, small, routes=two_routes(chat, aux, small))
        llm.add_scripts([{"summary": True, "model": "lab-32k", "times": -1, **fault.reply}])
        llm.add_scripts([{"summary": True, "model": "lab-8k", "times": -1, "text": summary_of("own")}])
        turn = await fill_and_ask(own, agent, 4_200)
        await answer(own, agent, turn)
        found = await look(own, turn.lineage_id)
        assert (found.kinds, tuple(found.summary_calls)) == (["model"], (*fault.calls, "ok"))
        assert found.told == [], "no notice is needed"
        [key] = found.state.cooldowns
        assert key.startswith(f"loop:{aux.route}:{aux.name}")
        asked = [row["model"] for row in llm.requests.rows]
        turn = await fill_and_ask(own, agent, 4_200)
        await answer(own, agent, turn)
        later = [row["model"] for row in llm.requests.rows][len(asked) :]
        assert "lab-32k" not in later, "the failed route cools down, and only the other is asked"
        assert (await look(own, turn.lineage_id)).kinds == ["model", "model"]


async def test_if_both_routes_fail_each_is_asked_once_and_both_cool_down(
    chat: Chat, server: Server, small: ChatModel, llm: LLM
) -> None:
    own = chat_at(chat, 1)
    async with dialled(server, "lab-32k") as aux:
        agent = agent_of(own, small, routes=two_routes(chat, aux, small))
        fail_summaries(llm, error={"kind": "402"})
        turn = await fill_and_ask(own, agent, 4_200)
        await answer(own, agent, turn)
        found = await look(own, turn.lineage_id)
        assert found.summary_calls == ["quota", "quota"]
        assert (found.compressions, len(found.state.cooldowns)) == ([("preflight", "aborted", "quota")], 2)
        assert len(found.told) == 1


async def test_without_summary_models_and_room_a_rule_makes_the_handoff(chat: Chat, small: ChatModel, llm: LLM) -> None:
    own = chat_at(chat, 1)
    agent = agent_of(own, small, routes=[])
    turn = await fill_and_ask(own, agent, 4_200)
    await answer(own, agent, turn)
    assert (await look(own, turn.lineage_id)).compressions == [], "there is room, but no model that could do it"
    turn = await fill_and_ask(own, agent, 5_700)
    await answer(own, agent, turn)
    found = await look(own, turn.lineage_id)
    assert (found.kinds, asked_for_summaries(llm), len(found.told)) == (["deterministic"], 0, 1)
