"""Automatic compression: when it starts, what holds it back, and what survives restarts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest
from msgspec.structs import replace

from agent.context.cuts import SkipReason
from agent.context.limits import ContextSettings
from agent.context.model_handle import LearnedProfile
from agent.context.state import ContextState, UnverifiedCompression, stored_form
from agent.model.base import ChatModel, ModelLimits
from agent.tools.registry import Tool, ToolContext
from agent.turn import MAX_OVERFLOWS, Answer
from hermes_state import sessions
from hermes_state.errors import ContextOverflow, ModelError, StoreUnavailable
from hermes_state.models.profiles import save_calibration
from hermes_state.values import EstimatedTokens, Image, LineageId, Millis, Origin, ReportedTokens, Tokens, ToolEffect
from tests.agent.conftest import SENT_AT, Chat, FixedClock, Sink, dialled
from tests.agent.context.contexts import (
    UNPAID,
    WORDS,
    agent_of,
    answer,
    asked_for_turns,
    compress,
    fill,
    fill_and_ask,
    look,
    say,
    summary_of,
)
from tests.agent.context.rows import human
from tests.agent.context.test_estimate import request, view
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.pictures import picture
from tests.summaries import summary_saying

WIDE = ModelLimits(context_length=Tokens(131_072), max_output_tokens=Tokens(8_192))
OFF = ContextSettings(enabled=False)
MUCH = "the harbour master counted every boat twice and wrote it down with great care " * 30
"""A message of about six hundred tokens."""


def verdicts(db: Connection) -> list[str | None]:
    return [row[0] for row in db.execute("SELECT verdict FROM compressions ORDER BY id")]


# ---- small windows


class SlowClock(FixedClock):
    """A clock that moves 45 seconds with every call, as in a slow conversation."""

    def now(self) -> Millis:
        return Millis(SENT_AT + 45 * (super().now() - SENT_AT))


def unhurried(chat: Chat, model: ChatModel, llm: LLM) -> tuple[Chat, SingleModelAgent]:
    """The threshold is 4,096 tokens, and the system prompt takes more than a quarter of that."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    slow = Chat(chat.store, key=replace(chat.key, chat_ref="slow"), clock=SlowClock())
    return slow, agent_of(slow, model, persona=MUCH * 2)


async def test_on_a_small_window_a_compression_waits_until_needed(chat: Chat, small: ChatModel, llm: LLM) -> None:
    slow, agent = unhurried(chat, small, llm)
    turn = await fill_and_ask(slow, agent, 4_600)
    await answer(slow, agent, turn)
    assert asked_for_turns(llm)[-1]["prompt_tokens"] > agent.context.limits.threshold
    assert (await look(slow, turn.lineage_id)).compressions == []
    turn = await fill_and_ask(slow, agent, 5_400)
    await answer(slow, agent, turn)
    assert (await look(slow, turn.lineage_id)).compressions == [("preflight", "compressed", "model")]
    await agent.close()


async def test_on_a_small_window_quick_messages_are_compressed_in_time(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """During the half minute of a summary, as many new tokens may arrive as in the last half minute."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small, persona=MUCH * 2)
    turn = await fill_and_ask(chat, agent, 4_600)
    await answer(chat, agent, turn)
    assert (await look(chat, turn.lineage_id)).compressions == [("preflight", "compressed", "model")]
    await agent.close()


async def test_recent_results_do_not_count_as_growth_on_a_small_window(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """After results come an answer and the next message. A compression now would free half as much."""
    slow, agent = unhurried(chat, small, llm)
    turn = await fill_and_ask(slow, agent, 3_800, "[[tool:dump]]")
    await answer(slow, agent, turn)
    assert asked_for_turns(llm)[-1]["prompt_tokens"] > agent.context.limits.threshold
    assert (await look(slow, turn.lineage_id)).compressions == []
    await agent.close()


async def test_on_a_small_window_the_head_stays_for_one_compression(chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small)
    firsts = []
    for _ in range(2):
        turn = await fill_and_ask(chat, agent, 5_400)
        await answer(chat, agent, turn)
        firsts.append((await look(chat, turn.lineage_id)).view[0].origin)
    assert firsts == [Origin.HUMAN, Origin.SUMMARY]
    await agent.close()


# ---- compressions that do not help


def test_compressions_without_a_report_are_judged_as_one_and_growth_does_not_count() -> None:
    judged = ContextState().compressed(20_000).compressed(15_000).judged(14_400, 16_000)
    assert (judged.strikes, judged.awaited) == (0, None)
    state = ContextState().compressed(20_000, 8_000)
    assert (state.judged(17_000, 16_000).strikes, state.judged(26_500, 16_000).strikes) == (0, 1)


async def test_a_summary_longer_than_its_messages_is_refused_and_paid(chat: Chat, medium: ChatModel, llm: LLM) -> None:
    long = summary_saying(f"There is much to say here. {WORDS * 2}")
    llm.add_scripts([{"summary": True, "times": -1, "text": long}])
    agent = agent_of(chat, medium, context_length=32_768)
    turn = await fill_and_ask(chat, agent, 2_300)
    rows = len((await look(chat, turn.lineage_id)).view)
    assert (await compress(chat, agent, turn.conversation, keep_turns=rows // 2 - 7)).why is SkipReason.NOT_SMALLER
    found = await look(chat, turn.lineage_id)
    assert (found.compressions, found.summary_calls) == ([("manual", "not_needed", "not_smaller")], ["ok"])
    assert (found.state.strikes, len(found.view)) == (1, rows)


async def test_an_answer_is_not_lost_if_the_verdict_cannot_be_stored(
    chat: Chat, small: ChatModel, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is stored with retries, and the next report repeats the verdict."""
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
    assert expected.fixed == pytest.approx(known.fixed, rel=0.02), "the token scale was stored later"


# ---- learned windows


async def test_in_a_learned_window_the_output_limit_fits(chat: Chat, server: Server, llm: LLM) -> None:
    async with dialled(server, "lab-8k@openrouter") as model:
        agent = agent_of(chat, model, context_length=32_768)
        await answer(chat, agent, await fill_and_ask(chat, agent, 9_000))
        assert agent.context.limits.context_length == 8_192
        before = len(asked_for_turns(llm))
        await say(chat, agent, "and now?")
        [asked] = asked_for_turns(llm)[before:]
        assert (asked["outcome"], asked["max_tokens"]) == ("ok", 2_048)


async def test_in_a_learned_window_summary_requests_fit(chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small, context_length=65_536)
    turn = await fill_and_ask(chat, agent, 20_000)
    await answer(chat, agent, turn)
    assert agent.context.limits.context_length == 8_192
    assert (await look(chat, turn.lineage_id)).compressions == [("overflow", "compressed", "model")]


@pytest.mark.parametrize(
    ("refused", "before", "window"),
    [
        (50_000, None, 131_072),  # another conversation had as many tokens accepted
        (100_000, None, 64_000),
        (62_000, None, 60_000),
        (100_000, 99_000, 99_000),
        (99_000, 100_000, 131_072),
        (140_000, None, 128_000),
    ],
)
async def test_no_guess_is_below_an_accepted_prompt(refused: int, before: int | None, window: int, chat: Chat) -> None:
    book, lineage_id = LearnedProfile(chat.store, "lab", "model", WIDE, chat.clock), LineageId(1)
    rows = [human("word " * 60_000)]
    for reported, was_accepted in ((60_000, True), (120_000, False), (10**9, True)):
        await book.learn(request(rows), ReportedTokens(reported), view(rows), was_accepted=was_accepted)
    book.assume_window(lineage_id, EstimatedTokens(refused), before)
    assert book.window_for(lineage_id) == window


async def test_a_larger_accepted_prompt_corrects_a_guess(chat: Chat) -> None:
    book, lineage_id = LearnedProfile(chat.store, "lab", "model", WIDE, chat.clock), LineageId(1)
    book.assume_window(lineage_id, EstimatedTokens(70_000), None)
    assert book.window_for(lineage_id) == 64_000
    rows = [human("word " * 60_000)]
    await book.learn(request(rows), ReportedTokens(90_000), view(rows))
    assert book.window_for(lineage_id) == 90_000
    await book.learn_window(lineage_id, 131_072)
    assert book.window_for(lineage_id) == 131_072, "the provider stated its limit"


async def test_a_refused_prompt_with_images_says_nothing_about_the_window(
    chat: Chat, medium: ChatModel, llm: LLM, tmp_path: Path
) -> None:
    (tmp_path / "1.png").write_bytes(picture())
    agent = agent_of(chat, medium, context_length=32_768, attachments=tmp_path)
    await fill(chat, agent, 12_000)
    turn = await chat.start_with_images("what is it?", Image(attachment_id=1, mime="image/png", path="1.png"))
    refusal = {
        "status": 400,
        "body": {"error": {"code": "context_length_exceeded", "message": "The prompt is too long."}},
    }
    llm.add_scripts([{"has_tools": True, "error": refusal}])
    await answer(chat, agent, turn)
    assert [layer for layer, *_ in (await look(chat, turn.lineage_id)).compressions] == ["overflow"]
    assert (await agent.context.status(turn.conversation)).limits.context_length == 32_768


# ---- refusals


@pytest.mark.parametrize("share", [40, 60])
async def test_a_vague_refusal_below_half_of_the_window_is_no_overflow(
    share: int, chat: Chat, small: ChatModel, llm: LLM
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
    """Block automatic compression."""
    session = await chat.store.read(sessions.load_tip, lineage_id)
    blocked = stored_form(ContextState(strikes=2, blocked_at=20_000))
    await chat.store.write(sessions.set_context_state, session.id, blocked)


async def test_refusals_are_counted_per_turn_across_tool_calls(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """Refusals and tool calls alternate, so the turn could continue forever."""
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


# ---- hygiene's hold


def slow_tool(llm: LLM) -> Tool:
    """A tool that runs as long as the summary is being written."""

    async def wait(arguments: dict[str, Any], context: ToolContext) -> str:
        llm.resumed.set()
        await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")) and row["outcome"] != "open")
        await asyncio.sleep(0.1)  # until the concurrent task has prepared a compression
        return "waited"

    return Tool(name="wait", description="Waits.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY, run=wait)


async def test_a_turn_uses_the_prompt_that_hygiene_measured_unless_it_compressed(
    chat: Chat, small: ChatModel, llm: LLM
) -> None:
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 1_000)
    prompt = await agent.check(turn)
    room = await agent.context.make_room(turn.conversation, prompt.view, "preflight", prompt)
    assert room is prompt, "nothing is measured twice"
    answered = await agent.run(turn, Sink(), prompt)
    assert answered.reported_prompt_tokens is not None
    [request] = asked_for_turns(llm)
    assert request["body"]["messages"][-1]["content"].endswith("and now?")
    await chat.finish(turn, answered)
    eager = agent_of(chat, small, context=ContextSettings(hard_message_limit=8))
    turn = await fill_and_ask(chat, eager, 4_300)
    assert (await eager.check(turn), (await look(chat, turn.lineage_id)).depth) == (None, 1)
    await agent.close()
    await eager.close()


async def test_a_strike_during_a_slow_summary_is_kept(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """The first reply of the turn causes the second strike while hygiene still waits for its summary."""
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


# ---- switched off
