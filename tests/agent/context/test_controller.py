"""When conversations are compressed by themselves, what holds that back, and what is remembered across restarts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest

from agent.context.cuts import SkipReason
from agent.context.job import Compressed, NotNeeded
from agent.context.limits import ContextSettings
from agent.context.model_handle import LearnedProfile
from agent.context.state import ContextState, UnverifiedCompression, stored_form
from agent.model.base import ModelLimits
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.tools.registry import Tool, ToolContext
from agent.turn import MAX_OVERFLOWS, Answer
from hermes_state import journal, sessions
from hermes_state.errors import ContextOverflow, ModelError, StoreUnavailable
from hermes_state.journal import PreparedMessage
from hermes_state.models.profiles import save_calibration
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    ConversationRef,
    EstimatedTokens,
    Image,
    LineageId,
    MessageBody,
    MessageRole,
    Millis,
    Origin,
    ReportedTokens,
    Tokens,
    ToolEffect,
)
from tests.agent.conftest import SENT_AT, Chat, FixedClock, Sink
from tests.agent.context.contexts import (
    UNPAID,
    WORDS,
    agent_of,
    asked_for_summaries,
    chat_at,
    dialled,
    fill,
    fill_and_ask,
    look,
    summary_of,
)
from tests.agent.context.rows import human
from tests.agent.context.test_estimate import request, view
from tests.agents import SingleModelAgent
from tests.fakes import labkit
from tests.fakes.fake_llm import LLM
from tests.pictures import picture
from tests.summaries import summary_saying

WIDE = ModelLimits(context_length=Tokens(131_072), max_output_tokens=Tokens(8_192))
OFF = ContextSettings(enabled=False)
MUCH = "the harbour master counted every boat twice and wrote it down with great care " * 30
"""About six hundred tokens."""


async def answer(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await chat.finish(turn, await agent.run(turn, Sink()))


async def say(chat: Chat, agent: SingleModelAgent, text: str) -> RunningTurn:
    turn = await chat.start(text)
    await answer(chat, agent, turn)
    return turn


async def compress(chat: Chat, agent: SingleModelAgent, turn: RunningTurn, *, keep_turns: int | None = None) -> Any:
    conversation = turn.conversation
    prepared = await agent.context.prepare_by_hand(conversation, keep_turns=keep_turns)
    return await chat.store.write(agent.context.settle, prepared, chat.clock.now())


def verdicts(db: Connection) -> list[str | None]:
    return [row[0] for row in db.execute("SELECT verdict FROM compressions ORDER BY id")]


def answers(llm: LLM) -> list[dict[str, Any]]:
    """The requests of turns."""
    return [row for row in llm.requests.rows if row["body"].get("tools")]


# ---- small windows


class SlowClock(FixedClock):
    """Moves 45 seconds with every look: nobody is in a hurry."""

    def now(self) -> Millis:
        return Millis(SENT_AT + 45 * (super().now() - SENT_AT))


def unhurried(chat: Chat, model: ChatCompletionsModel, llm: LLM) -> tuple[Chat, SingleModelAgent]:
    """Of 4,096 tokens at the threshold the system prompt takes more than a quarter."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    slow = Chat(chat.store, key=replace(chat.key, chat_ref="slow"), clock=SlowClock())
    return slow, agent_of(slow, model, persona=MUCH * 2)


async def test_on_a_small_window_a_compression_waits_until_it_frees_enough_or_the_next_turn_has_no_room(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    slow, agent = unhurried(chat, small, llm)
    turn = await fill_and_ask(slow, agent, 4_600)
    await answer(slow, agent, turn)
    assert answers(llm)[-1]["prompt_tokens"] > agent.context.limits.threshold
    assert (await look(slow, turn.lineage_id)).compressions == []
    turn = await fill_and_ask(slow, agent, 5_400)
    await answer(slow, agent, turn)
    assert (await look(slow, turn.lineage_id)).compressions == [("preflight", "compressed", "model")]
    await agent.close()


async def test_on_a_small_window_a_chat_of_quick_messages_is_compressed_in_time(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """Within the half minute that a summary takes, as much may come as in the last one."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small, persona=MUCH * 2)
    turn = await fill_and_ask(chat, agent, 4_600)
    await answer(chat, agent, turn)
    assert (await look(chat, turn.lineage_id)).compressions == [("preflight", "compressed", "model")]
    await agent.close()


async def test_results_that_came_just_now_are_no_pace_on_a_small_window(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """What follows results is an answer, and the next message. The same compressed now would free half as much."""
    slow, agent = unhurried(chat, small, llm)
    turn = await fill_and_ask(slow, agent, 3_800, "[[tool:dump]]")
    await answer(slow, agent, turn)
    assert answers(llm)[-1]["prompt_tokens"] > agent.context.limits.threshold
    assert (await look(slow, turn.lineage_id)).compressions == []
    await agent.close()


async def test_on_a_small_window_the_beginning_stays_for_the_first_compression_only(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small)
    firsts = []
    for _ in range(2):
        turn = await fill_and_ask(chat, agent, 5_400)
        await answer(chat, agent, turn)
        firsts.append((await look(chat, turn.lineage_id)).view[0].origin)
    assert firsts == [Origin.HUMAN, Origin.SUMMARY]
    await agent.close()


# ---- passes that do not help


async def test_two_passes_that_hardly_helped_block_until_the_conversation_has_grown(
    chat: Chat, medium: ChatCompletionsModel, llm: LLM
) -> None:
    """A system prompt of thirteen thousand tokens: whatever is compressed, the prompt stays above the threshold."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])

    def start() -> SingleModelAgent:
        return agent_of(chat, medium, context_length=32_768, persona=MUCH * 22)

    agent = start()
    conversation = await fill(chat, agent, 18_500, words=MUCH)
    found = await look(chat, conversation.lineage_id)
    while not found.state.is_blocked:
        await say(chat, agent, f"and this? {MUCH}")
        found = await look(chat, conversation.lineage_id)
        assert found.said < 80, "it is blocked at some time"
        agent = start()  # strikes outlive the process
    assert [one for one in await chat.store.read(verdicts) if one] == ["ineffective", "ineffective"]
    depth, blocked_at, asked = found.depth, found.state.blocked_at, asked_for_summaries(llm)
    [notice] = [text for text in found.told if "hardly shortens" in text]
    assert "/new" in notice
    assert "/compress <topic>" in notice
    while True:
        agent = start()
        await say(chat, agent, f"and that? {MUCH}")
        if asked_for_summaries(llm) > asked:
            break
        prompt = answers(llm)[-1]["prompt_tokens"]
        assert prompt < blocked_at * 1.15, "growth arms it again"
    found = await look(chat, conversation.lineage_id)
    assert found.depth > depth
    assert answers(llm)[-2]["prompt_tokens"] > blocked_at * 1.03


async def test_a_pass_that_helped_is_judged_by_the_next_reported_prompt(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 4_200)
    assert (await look(chat, turn.lineage_id)).state.awaited is None
    await answer(chat, agent, turn)
    assert await chat.store.read(verdicts) == ["effective"]
    assert (await look(chat, turn.lineage_id)).state.awaited is None


async def test_passes_without_a_report_between_them_are_judged_as_one() -> None:
    state = ContextState().compressed(20_000).compressed(15_000)
    judged = state.judged(14_400, 16_000)
    assert (judged.strikes, judged.awaited) == (0, None)


async def test_what_came_beside_a_compression_is_not_held_against_it() -> None:
    state = ContextState().compressed(20_000, 8_000)
    assert state.judged(17_000, 16_000).strikes == 0
    assert state.judged(26_500, 16_000).strikes == 1


async def test_a_pass_that_helps_lifts_a_block() -> None:
    state = ContextState(strikes=2, blocked_at=20_000).compressed(20_500)
    assert not state.judged(9_000, 16_000).is_blocked


async def test_a_summary_longer_than_what_it_stands_for_is_refused_and_paid_for(
    chat: Chat, medium: ChatCompletionsModel, llm: LLM
) -> None:
    long = summary_saying(f"There is much to say here. {WORDS * 2}")
    llm.add_scripts([{"summary": True, "times": -1, "text": long}])
    agent = agent_of(chat, medium, context_length=32_768)
    turn = await fill_and_ask(chat, agent, 2_300)
    rows = len((await look(chat, turn.lineage_id)).view)
    outcome = await compress(chat, agent, turn, keep_turns=rows // 2 - 7)
    assert isinstance(outcome, NotNeeded)
    assert outcome.why is SkipReason.NOT_SMALLER
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("manual", "not_needed", "not_smaller")]
    assert found.summary_calls == ["ok"]
    assert found.state.strikes == 1
    assert len(found.view) == rows


async def test_an_answer_is_not_lost_because_nothing_can_be_noted_of_its_prompt(
    chat: Chat, small: ChatCompletionsModel, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stores the answer is patient with the database; the verdict is made by the next report."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    llm.config["bytes_per_token"] = 2.8
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 4_200)
    write = chat.store.write

    async def full(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if fn in (agent.agent.context.record_verdict, save_calibration):
            raise StoreUnavailable("no space left")
        return await write(fn, *args, **options)

    monkeypatch.setattr(chat.store, "write", full)
    result = await agent.run(turn, Sink())
    assert result.text
    monkeypatch.undo()
    await chat.finish(turn, result)
    assert await chat.store.read(verdicts) == [None]
    await say(chat, agent, "and now?")
    assert await chat.store.read(verdicts) == ["effective"]
    restarted = agent_of(chat, small)
    conversation = turn.conversation
    expected, known = await restarted.context.status(conversation), await agent.context.status(conversation)
    assert expected.fixed == pytest.approx(known.fixed, rel=0.02), "how the model counts was kept after all"


# ---- what is learned


async def test_a_window_that_the_provider_states_is_known_after_a_restart(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """Eight thousand tokens where thirty-two were configured."""
    agent = agent_of(chat, small, context_length=32_768)
    turn = await fill_and_ask(chat, agent, 9_000)
    await answer(chat, agent, turn)
    assert agent.context.limits.context_length == 8_192
    assert (await look(chat, turn.lineage_id)).compressions[0][0] == "overflow"
    refused = [row for row in llm.requests.rows if row["outcome"] == "context_overflow"]
    again = agent_of(chat, small, context_length=32_768)
    await say(chat, again, "and now?")
    assert again.context.limits.context_length == 8_192
    assert [row for row in llm.requests.rows if row["outcome"] == "context_overflow"] == refused


async def test_in_a_learned_window_no_answer_is_asked_for_that_cannot_fit(
    chat: Chat, server: labkit.Server, llm: LLM
) -> None:
    async with dialled(server, "lab-8k@openrouter") as model:
        agent = agent_of(chat, model, context_length=32_768)
        await answer(chat, agent, await fill_and_ask(chat, agent, 9_000))
        assert agent.context.limits.context_length == 8_192
        before = len(answers(llm))
        await say(chat, agent, "and now?")
        [asked] = answers(llm)[before:]
        assert (asked["outcome"], asked["max_tokens"]) == ("ok", 2_048)


async def test_in_a_learned_window_the_models_own_summaries_are_made_of_no_more_than_it_can_read(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small, context_length=65_536)
    turn = await fill_and_ask(chat, agent, 20_000)
    await answer(chat, agent, turn)
    assert agent.context.limits.context_length == 8_192
    assert (await look(chat, turn.lineage_id)).compressions == [("overflow", "compressed", "model")]


async def test_a_context_length_that_is_configured_anew_is_tried_whatever_was_learned_beside_the_old_one(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """The server was started with a larger window, and the operator has said so."""
    agent = agent_of(chat, small, context_length=32_768)
    await answer(chat, agent, await fill_and_ask(chat, agent, 9_000))
    assert agent.context.limits.context_length == 8_192
    llm.models["lab-8k"] = {"context": 65_536, "max_output": 16_384}
    again = agent_of(chat, small, context_length=65_536)
    refused = sum(row["outcome"] == "context_overflow" for row in llm.requests.rows)
    await answer(chat, again, await fill_and_ask(chat, again, 12_000))
    assert again.context.limits.context_length == 65_536
    assert sum(row["outcome"] == "context_overflow" for row in llm.requests.rows) == refused


async def test_a_guessed_window_holds_for_one_conversation_and_is_forgotten_by_a_restart(
    chat: Chat, medium: ChatCompletionsModel, llm: LLM
) -> None:
    """One prompt was too large for something on its way; that is no reason to shorten everybody's."""
    agent, other = agent_of(chat, medium, context_length=32_768), chat_at(chat, "other")
    elsewhere = (await say(other, agent, "hello")).conversation
    llm.add_scripts([{"has_tools": True, "error": {"kind": "413"}}])
    turn = await fill_and_ask(chat, agent, 12_000)
    await answer(chat, agent, turn)
    here = turn.conversation
    assert (await agent.context.status(here)).limits.context_length == 8_000
    assert (await agent.context.status(elsewhere)).limits.context_length == 32_768
    again = agent_of(chat, medium, context_length=32_768)
    assert (await again.context.status(here)).limits.context_length == 32_768


async def test_a_model_that_takes_far_less_than_configured_and_never_says_so_is_found_out_in_one_turn(
    chat: Chat, server: labkit.Server, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    async with dialled(server, "lab-8k@413") as model:
        agent = agent_of(chat, model, context_length=65_536)
        turn = await fill_and_ask(chat, agent, 9_000)
        await answer(chat, agent, turn)
        assert (await look(chat, turn.lineage_id)).compressions == [("overflow", "compressed", "model")]
        for number in range(12):
            await say(chat, agent, f"and {number}? {MUCH}")
    assert sum(row["outcome"] == "context_overflow" for row in llm.requests.rows) == 1, (
        "from then on it is compressed in time"
    )


@pytest.mark.parametrize(
    ("refused", "before", "window"),
    [
        (50_000, None, 131_072),  # as much was accepted from somebody else
        (100_000, None, 64_000),
        (62_000, None, 60_000),
        (100_000, 99_000, 99_000),
        (99_000, 100_000, 131_072),
        (140_000, None, 128_000),
    ],
)
async def test_no_window_is_guessed_below_what_was_accepted(
    refused: int, before: int | None, window: int, chat: Chat
) -> None:
    book, lineage_id = LearnedProfile(chat.store, "lab", "model", WIDE, chat.clock), LineageId(1)
    rows = [human("word " * 60_000)]
    for reported, was_accepted in ((60_000, True), (120_000, False), (10**9, True)):
        await book.learn(request(rows), ReportedTokens(reported), view(rows), was_accepted=was_accepted)
    book.assume_window(lineage_id, EstimatedTokens(refused), before)
    assert book.window_for(lineage_id) == window


async def test_a_guess_gives_way_to_a_larger_prompt_that_is_accepted(chat: Chat) -> None:
    book, lineage_id = LearnedProfile(chat.store, "lab", "model", WIDE, chat.clock), LineageId(1)
    book.assume_window(lineage_id, EstimatedTokens(70_000), None)
    assert book.window_for(lineage_id) == 64_000
    rows = [human("word " * 60_000)]
    await book.learn(request(rows), ReportedTokens(90_000), view(rows))
    assert book.window_for(lineage_id) == 90_000
    await book.learn_window(lineage_id, 131_072)
    assert book.window_for(lineage_id) == 131_072, "it said itself what it takes"


async def test_a_refused_prompt_with_images_says_nothing_about_the_window(
    chat: Chat, medium: ChatCompletionsModel, llm: LLM, tmp_path: Path
) -> None:
    (tmp_path / "1.png").write_bytes(picture())
    agent = agent_of(chat, medium, context_length=32_768, attachments=tmp_path)
    await fill(chat, agent, 12_000)
    inbox_id = await chat.receive("what is it?")
    body = MessageBody(images=(Image(attachment_id=1, mime="image/png", path="1.png"),))
    started = {inbox_id: PreparedMessage(body=body)}
    turn = await chat.store.write(journal.start_turn, await chat.id(), [inbox_id], started, chat.clock.now())
    refusal = {
        "status": 400,
        "body": {"error": {"code": "context_length_exceeded", "message": "The prompt is too long."}},
    }
    llm.add_scripts([{"has_tools": True, "error": refusal}])
    await answer(chat, agent, turn)
    assert [layer for layer, *_ in (await look(chat, turn.lineage_id)).compressions] == ["overflow"]
    assert (await agent.context.status(turn.conversation)).limits.context_length == 32_768


async def test_how_a_model_counts_is_known_after_a_restart(chat: Chat, medium: ChatCompletionsModel, llm: LLM) -> None:
    llm.config["bytes_per_token"] = 2.8
    agent = agent_of(chat, medium, context_length=32_768)
    cold = (await agent.context.status(await fill(chat, agent, 3_000))).fixed
    for _ in range(4):
        await say(chat, agent, WORDS)
    restarted, other = agent_of(chat, medium, context_length=32_768), chat_at(chat, "other")
    conversation = await fill(other, restarted, 4_000)
    expected = (await restarted.context.status(conversation)).prompt
    await say(other, restarted, "?")
    reported = answers(llm)[-1]["prompt_tokens"]
    assert abs(expected - reported) < 0.06 * reported
    assert (await restarted.context.status(conversation)).fixed > cold * 1.2, "there was something to learn"


# ---- refusals


@pytest.mark.parametrize("share", [40, 60])
async def test_a_vague_refusal_below_half_of_the_window_is_no_overflow(
    share: int, chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"has_tools": True, "error": {"status": 400, "body": {"error": {"message": "Error"}}}}])
    agent = agent_of(chat, small, context=ContextSettings(hold_seconds=0))
    turn = await fill_and_ask(chat, agent, 1_500)
    conversation = turn.conversation
    filler = "x, y; " * 400
    while (await agent.context.status(conversation)).prompt < 6_144 * share // 100 - 450:
        await chat.finish(turn, Answer(text="Yes.", call=UNPAID, reported_prompt_tokens=None))
        turn = await chat.start(filler[:1_000])
    await hold_back(chat, turn.lineage_id)
    with pytest.raises(ModelError) as raised:
        await agent.run(turn, Sink())
    assert not isinstance(raised.value, ContextOverflow)
    assert (await look(chat, turn.lineage_id)).compressions == []
    assert agent.context.limits.context_length == 8_192


async def hold_back(chat: Chat, lineage_id: LineageId) -> None:
    """Block the automatic layers."""
    session = await chat.store.read(sessions.load_tip, lineage_id)
    blocked = stored_form(ContextState(strikes=2, blocked_at=20_000))
    await chat.store.write(sessions.set_context_state, session.id, blocked)


async def test_a_vague_refusal_near_the_end_of_the_window_is_an_overflow(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"has_tools": True, "error": {"status": 400, "body": {"error": {"message": "Error"}}}}])
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 5_700)
    await hold_back(chat, turn.lineage_id)
    await answer(chat, agent, turn)
    assert [layer for layer, *_ in (await look(chat, turn.lineage_id)).compressions] == ["overflow"]
    assert (await agent.context.status(turn.conversation)).limits.context_length == 8_192, "the estimate was off"


async def test_a_provider_that_refuses_everything_is_asked_so_often_and_no_more(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"has_tools": True, "times": -1, "error": {"kind": "413"}}])
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 4_000)
    with pytest.raises(ContextOverflow):
        await agent.run(turn, Sink())
    assert 1 < len(answers(llm)) <= MAX_OVERFLOWS + 1
    found = await look(chat, turn.lineage_id)
    assert found.depth == len([one for one in found.compressions if one[1] == "compressed"]) <= MAX_OVERFLOWS


async def test_refusals_are_counted_by_the_turn_whatever_comes_between_them(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """Refused, then tools, and so on: a turn that could go on for ever."""
    refusal = {"kind": "context", "message": "This model's maximum context length is 131072 tokens."}
    dumps = [{"name": "dump", "arguments": {}}] * 3
    for _ in range(MAX_OVERFLOWS + 2):
        llm.add_scripts([{"has_tools": True, "error": refusal}])
        llm.add_scripts([{"has_tools": True, "times": 2, "tool_calls": dumps}])
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    llm.models["lab-8k"] = {"context": 131_072, "max_output": 40_000}
    agent = agent_of(chat, small, context_length=131_072)
    turn = await fill_and_ask(chat, agent, 4_000)
    with pytest.raises(ContextOverflow):
        await agent.run(turn, Sink())
    assert sum(row["outcome"] == "scripted context" for row in llm.requests.rows) == MAX_OVERFLOWS + 1
    expected = [("overflow", "compressed", "model")] * MAX_OVERFLOWS
    assert (await look(chat, turn.lineage_id)).compressions == expected


async def test_a_refused_output_limit_is_remembered_and_touches_no_window(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.models["lab-8k"] = {"context": 8_192, "max_output": 1_000}
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 3_000)
    await answer(chat, agent, turn)
    await say(chat, agent, "and now?")
    assert [row["max_tokens"] for row in answers(llm)] == [2_048, 1_000, 1_000], "it is remembered"
    assert (await look(chat, turn.lineage_id)).compressions == []
    assert agent.context.limits.context_length == 8_192


@pytest.mark.parametrize("style", ["vllm", "openrouter", "openai-combined"])
async def test_a_prompt_that_fits_without_so_long_an_answer_gets_a_shorter_one(
    style: str, chat: Chat, server: labkit.Server, llm: LLM
) -> None:
    """Prompt and answer are too long together, in the words of an overflow: that is the answer's fault."""
    async with dialled(server, f"lab-8k@{style}") as model:
        agent = agent_of(chat, model, context=OFF)
        turn = await fill_and_ask(chat, agent, 6_600)
        await answer(chat, agent, turn)
        asked = [row["max_tokens"] for row in answers(llm)]
        assert len(asked) == 2
        assert asked[0] == 2_048 > asked[1] >= 256
        assert (await look(chat, turn.lineage_id)).compressions == []
        assert agent.context.limits.context_length == 8_192


# ---- hygiene's hold


def slow_tool(llm: LLM) -> Tool:
    """Takes as long as the summary that is being written."""

    async def wait(arguments: dict[str, Any], context: ToolContext) -> str:
        llm.resumed.set()
        await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")) and row["outcome"] != "open")
        await asyncio.sleep(0.1)  # until its reader, beside us, has prepared one
        return "waited"

    return Tool(name="wait", description="Waits.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY, run=wait)


async def test_hygiene_lets_a_turn_with_room_go_on_and_its_summary_comes_in_at_the_next_step(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    tool = slow_tool(llm)
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "pause_after": 2}])
    context = ContextSettings(hard_message_limit=8, hold_seconds=0.05)
    agent = agent_of(chat, small, context=context, tools=[tool])
    turn = await fill_and_ask(chat, agent, 4_300, "[[tool:wait]]")
    await agent.check(turn)
    assert (await look(chat, turn.lineage_id)).compressions == []
    result = await agent.run(turn, Sink())
    assert "waited" in result.text
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("hygiene", "compressed", "model")]
    assert asked_for_summaries(llm) == 1, "preflight left it to the one that was on its way"
    assert [row.role for row in found.view[-3:]] == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL]
    assert found.view[-3].text == "[[tool:wait]]"
    first, second = answers(llm)
    assert len(second["body"]["messages"]) < len(first["body"]["messages"])
    await agent.close()


async def test_a_turn_begins_with_the_prompt_that_hygiene_has_measured(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 1_000)
    prompt = await agent.check(turn)
    assert prompt is not None
    room = await agent.context.make_room(turn.conversation, prompt.view, "preflight", prompt)
    assert room is prompt, "nothing is measured twice"
    assert (await agent.run(turn, Sink(), prompt)).reported_prompt_tokens is not None
    [request] = answers(llm)
    assert request["body"]["messages"][-1]["content"].endswith("and now?")
    await agent.close()


async def test_a_turn_looks_again_after_hygiene_has_compressed(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    agent = agent_of(chat, small, context=ContextSettings(hard_message_limit=8))
    turn = await fill_and_ask(chat, agent, 4_300)
    assert await agent.check(turn) is None
    assert (await look(chat, turn.lineage_id)).depth == 1
    await agent.close()


async def test_what_was_noted_beside_a_slow_summary_is_not_forgotten_with_it(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """The turn's first reply brings the second strike while hygiene still waits for its summary."""
    tool = slow_tool(llm)
    llm.add_scripts([{"summary": True, "times": -1, "error": {"kind": "401"}, "delay": 0.3}])
    agent = agent_of(chat, small, context=ContextSettings(hard_message_limit=8, hold_seconds=0), tools=[tool])
    turn = await fill_and_ask(chat, agent, 4_300, "[[tool:wait]]")
    session = await chat.store.read(sessions.load_tip, turn.lineage_id)
    struck = stored_form(ContextState(strikes=1, awaited=UnverifiedCompression(tokens_before=4_300)))
    await chat.store.write(sessions.set_context_state, session.id, struck)
    await agent.check(turn)
    await answer(chat, agent, turn)
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("hygiene", "aborted", "auth")]
    assert found.state.is_blocked
    assert found.state.awaited is None
    assert found.state.cooldowns
    assert len([text for text in found.told if "hardly shortens" in text]) == 1
    await agent.close()


async def test_hygiene_without_room_waits_for_the_summary_beyond_its_hold_and_says_so(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "delay": 0.6}])
    waits: list[LineageId] = []
    told = asyncio.Event()

    async def tell(conversation: ConversationRef, view: object) -> None:
        waits.append(conversation.lineage_id)
        told.set()

    agent = agent_of(chat, small, context=ContextSettings(hold_seconds=0.05, quiet_seconds=0.1), on_wait=tell)
    turn = await fill_and_ask(chat, agent, 5_700)
    await agent.check(turn)
    assert told.is_set()
    assert waits == [turn.lineage_id]
    assert (await look(chat, turn.lineage_id)).compressions == [("hygiene", "compressed", "model")]
    assert asked_for_summaries(llm) == 1
    await answer(chat, agent, turn)
    await agent.close()


async def test_hygiene_without_room_waits_as_long_as_a_summary_may_take_and_then_shortens_by_rule(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "hang": 30}])
    own = chat_at(chat, 1)
    context = ContextSettings(hold_seconds=0, summary_seconds=0.3)
    agent = agent_of(own, small, context=context)
    turn = await fill_and_ask(own, agent, 5_700)
    began = time.monotonic()
    await agent.check(turn)
    assert 0.29 <= time.monotonic() - began < 20
    found = await look(own, turn.lineage_id)
    assert found.compressions == [("hygiene", "compressed", "deterministic")]
    assert "took too long to answer" in found.told[0]
    await answer(own, agent, turn)
    asked = asked_for_summaries(llm)
    turn = await fill_and_ask(own, agent, 5_700)
    await agent.check(turn)
    assert asked_for_summaries(llm) == asked, "who was silent is not waited for again so soon"
    assert (await look(own, turn.lineage_id)).kinds == ["deterministic", "deterministic"]
    await agent.close()


async def test_a_turn_that_has_lost_its_room_waits_for_the_summary_that_is_on_its_way(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    """It was begun with room, and a tool's result has taken that since: nothing is asked for twice."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "pause_after": 2}])

    async def dump_much(arguments: dict[str, Any], context: ToolContext) -> str:
        asyncio.get_running_loop().call_later(0.3, llm.resumed.set)
        return MUCH * 2

    much = Tool(
        name="much", description="Much.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY, run=dump_much
    )
    context = ContextSettings(hard_message_limit=8, hold_seconds=0.05)
    agent = agent_of(chat, small, context=context, tools=[much])
    llm.add_scripts([{"has_tools": True, "tool_calls": [{"name": "much", "arguments": {}}] * 2}])
    turn = await fill_and_ask(chat, agent, 4_300)
    await agent.check(turn)
    assert agent.agent.context.pending.is_pending(turn.lineage_id)
    await answer(chat, agent, turn)
    assert ("hygiene", "compressed", "model") in (await look(chat, turn.lineage_id)).compressions
    assert asked_for_summaries(llm) == 1
    await agent.close()


async def test_a_summary_of_hygiene_that_nobody_needs_any_more_is_paid_for_all_the_same(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "delay": 0.2}])
    agent = agent_of(chat, small, context=ContextSettings(hard_message_limit=8, hold_seconds=0.01))
    turn = await fill_and_ask(chat, agent, 4_300)
    await agent.check(turn)
    await agent.agent.context.pending.wait(turn.lineage_id)  # it is ready now, and no step has taken it in
    assert isinstance(await compress(chat, agent, turn), Compressed)
    found = await look(chat, turn.lineage_id)
    assert found.summary_calls == ["ok", "ok"]
    assert found.compressions == [("manual", "compressed", "model")]


# ---- switched off


async def test_switched_off_nothing_compresses_but_the_command(
    chat: Chat, small: ChatCompletionsModel, llm: LLM
) -> None:
    agent = agent_of(chat, small, context=OFF)
    turn = await fill_and_ask(chat, agent, 5_700, "[[tool:dump]]")
    await agent.check(turn)
    await answer(chat, agent, turn)
    llm.add_scripts([{"has_tools": True, "error": {"kind": "413"}}])
    turn = await chat.start("and now?")
    with pytest.raises(ContextOverflow):
        await agent.run(turn, Sink())
    assert (await look(chat, turn.lineage_id)).compressions == []
    assert asked_for_summaries(llm) == 0
    assert isinstance(await compress(chat, agent, turn), Compressed)
    await answer(chat, agent, turn)
