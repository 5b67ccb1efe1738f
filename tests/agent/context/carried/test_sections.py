"""Rules and facts through the real agent and store: they follow every summary that a model writes."""

from collections.abc import Sequence

import pytest

from agent.context.carried.sections import Carried, parted
from agent.context.commit import settle_undo
from agent.context.compressor import Compressor
from agent.context.cuts import handoff_in
from agent.context.estimate import Estimator
from agent.context.job import Compressed, PreparedCompression
from agent.context.limits import LimitSettings, limits_of
from agent.context.state import ContextState
from agent.handoff import parse_handoff
from agent.model.base import ChatModel
from agent.turn import Answer
from hermes_state.models.profiles import Calibration
from hermes_state.redaction import redact
from hermes_state.transcripts import NewMessage
from hermes_state.values import LineageId, Origin
from tests.agent.conftest import Chat, FixedClock, Sink
from tests.agent.context.contexts import UNPAID, WORDS, agent_of, look, summary_of
from tests.agent.context.rows import answer, human
from tests.agent.engines.test_plugin_engine import job
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM

RULES = (
    "Always answer in German.",
    "Never restart db-01 before 18:00.",
    "From now on, write commit messages in English.",
    "请始终用公制单位。",
    "Lösche nie etwas, ohne mich zu fragen.",
    "Réponds toujours avec la source.",
    "必ず税込みの価格を書いてください。",
    "Don't send anything to Bob unless I approve it.",
    "Nunca compartas mi dirección.",
    "Whenever I send a receipt, put it into the sheet.",
    "Ни в коем случае не трогай боевую базу.",
    "You must never call me at the office.",
)


async def talk(chat: Chat, texts: Sequence[str], *, words: str = WORDS) -> LineageId:
    exchanges = [(text, Answer(text=f"Fine. {words}", call=UNPAID, reported_prompt_tokens=None)) for text in texts]
    return (await chat.talk(exchanges)).lineage_id


async def compress(chat: Chat, agent: SingleModelAgent) -> None:
    turn = await chat.start(f"and on? {WORDS}")
    prepared = await agent.context.prepare_by_hand(turn.conversation, keep_turns=1)
    outcome = await chat.store.write(agent.context.settle, prepared, chat.clock.now())
    assert isinstance(outcome, Compressed), outcome
    await chat.finish(turn, Answer(text="done", call=UNPAID, reported_prompt_tokens=None))


async def record(chat: Chat, lineage_id: LineageId) -> tuple[str | None, Carried]:
    (row,) = [row for row in (await look(chat, lineage_id)).view if row.origin is Origin.SUMMARY]
    return parted(handoff_in(row).text)


@pytest.mark.parametrize("has_model", [True, False])
async def test_twelve_rules_survive_ten_compressions(chat: Chat, small: ChatModel, llm: LLM, has_model: bool) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("one who forgets")}])
    agent = agent_of(chat, small, routes=None if has_model else [])
    await talk(chat, [f"Hello {n}. {WORDS}" for n in range(3)])  # the kept beginning
    for rule in RULES:
        lineage_id = await talk(chat, [f"Thanks! {rule} It always rains here. {WORDS}"])
    for number in range(10):
        await talk(chat, [f"Number {number}: {WORDS}"] * 4)
        await compress(chat, agent)
    text, carried = await record(chat, lineage_id)
    assert sorted(rule.text for rule in carried.rules) == sorted(RULES)
    assert "Standing rules" not in text


async def test_the_summary_model_does_not_see_carried_sections(chat: Chat, medium: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, medium, context_length=32_768)
    await talk(chat, [f"Hello {n}. {WORDS}" for n in range(3)])
    await talk(chat, [f"{RULES[0]} The invoice is INV-20117. {WORDS}"] + [f"Next: {WORDS}"] * 12)
    await compress(chat, agent)
    await talk(chat, [f"Next: {WORDS}"] * 12)
    await compress(chat, agent)
    shown = str([row["body"]["messages"] for row in llm.requests.rows if not row["body"].get("tools")][-1])
    assert "SUMMARY-BY-the scribe" in shown
    assert "INV-20117" not in shown
    assert RULES[0] not in shown


async def test_undo_restores_a_record_without_later_additions(chat: Chat, medium: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, medium, context_length=32_768)
    await talk(chat, [f"Hello {n}. {WORDS}" for n in range(3)])
    await talk(chat, [f"{RULES[0]} {WORDS}"] + [f"Next: {WORDS}"] * 12)
    await compress(chat, agent)
    lineage_id = await talk(chat, [f"{RULES[1]} {WORDS}"] + [f"Next: {WORDS}"] * 12)
    await compress(chat, agent)
    assert [rule.text for rule in (await record(chat, lineage_id))[1].rules] == list(RULES[:2])
    turn = await chat.start("hm")
    undoing = await agent.context.plan_undo(turn.conversation)
    assert undoing is not None
    await chat.store.write(settle_undo, undoing, chat.clock.now())
    await chat.finish(turn, Answer(text="done", call=UNPAID, reported_prompt_tokens=None))
    (row,) = [row for row in await chat.view(turn) if row.origin is Origin.SUMMARY]
    assert [rule.text for rule in parted(parse_handoff(row.text or "").text)[1].rules] == list(RULES[:1])
    await compress(chat, agent)
    (row,) = [row for row in await chat.view(turn) if row.origin is Origin.SUMMARY]
    assert [rule.text for rule in parted(parse_handoff(row.text or "").text)[1].rules] == list(RULES[:2])


async def test_a_fact_from_an_argument_is_in_the_next_prompt(chat: Chat, medium: ChatModel, llm: LLM) -> None:
    """JSON escapes some letters, but facts quote the letters themselves."""
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("one who forgets")}])
    agent = agent_of(chat, medium, context_length=32_768)
    await talk(chat, [f"Hello {n}. {WORDS}" for n in range(3)])
    call = {"name": "dump", "arguments": {"text": "青岛 door code 48213"}}
    llm.add_scripts([{"has_tools": True, "tool_calls": [call]}])
    turn = await chat.start(f"Note it. {WORDS}")
    await chat.finish(turn, await agent.run(turn, Sink()))
    await talk(chat, [f"Next: {WORDS}"] * 14)
    await compress(chat, agent)
    await agent.run(await chat.start("what is the code?"), Sink())
    prompt = str(llm.requests.rows[-1]["body"]["messages"])
    assert "call dump] text: 青岛 door code 48213" in prompt


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.4])
async def test_the_room_for_facts_uses_the_models_token_scale(scale: float) -> None:
    estimator, limits = Estimator(Calibration(scale=scale)), limits_of(32_768, 8_192, LimitSettings())
    rows = [one for at in range(400) for one in (human(f"The lease of Bake{at} is OPS-{10_000 + at}."), answer(WORDS))]
    given = job(tuple(rows), tokens=30_000, must_shrink=True, limits=limits, estimator=estimator)
    result, _ = await Compressor(redact=redact, clock=FixedClock()).prepare(given, ContextState())
    assert isinstance(result, PreparedCompression)
    record = next(item.text for item in result.context if isinstance(item, NewMessage))
    lines = "\n".join(line for line in (record or "").splitlines() if " person] " in line)
    assert limits.facts * 0.85 <= estimator.text(lines) <= limits.facts
