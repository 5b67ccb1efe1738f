"""Prompts and outputs that are too large, in the wording of every provider, over every protocol, streamed and whole."""

import pytest

from agent.context.state import ContextState, stored_form
from hermes_state import sessions
from hermes_state.turns import RunningTurn
from hermes_state.values import Tokens
from tests.agent.conftest import Chat
from tests.agent.context.contexts import asked_for_turns, chat_at, clock_of, fill_and_ask, look
from tests.agent.model.ways import MIXED_WAYS, Left, Talk, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.sampling import Test, crossed, every

WINDOW = 8_192
"""Real window of the model."""
BELIEVED = {"context_length": Tokens(32_768), "max_output_tokens": Tokens(2_048)}
"""Configured window of the model."""
STATING = ("openai", "openai-combined", "vllm", "openrouter", "llamacpp", "gemini", "anthropic")
SILENT = ("413", "413-html")


def every_way(test: Test) -> Test:
    """Decorator of a test over every protocol: under `make test` streamed or whole, under `make fuzz` both."""
    return pytest.mark.fuzz(pytest.mark.parametrize("way", every(2, MIXED_WAYS), ids=str)(test))


async def learned_window(talk: Talk) -> int | None:
    query, line = "SELECT learned_context FROM model_profiles WHERE route = ? AND model = ?", talk.agent.client
    row = await talk.chat.store.read(lambda db: db.execute(query, (line.route, line.name)).fetchone())
    return None if row is None else row[0]


async def check_that_it_goes_on(talk: Talk, turn: RunningTurn, llm: LLM) -> None:
    """Nothing said was lost, and the next message is answered at the first attempt."""
    found = await look(talk.chat, turn.lineage_id)
    assert "compressed" in {outcome for _, outcome, _ in found.compressions}
    before = len(asked_for_turns(llm))
    assert (await talk.say("and now?")).outcomes == ["ok"]
    assert len(asked_for_turns(llm)) == before + 1


@pytest.mark.fuzz
@pytest.mark.parametrize(("style", "way"), crossed(2, [*STATING, *SILENT], MIXED_WAYS), ids=str)
async def test_a_prompt_that_is_too_long_fits_after_at_most_three_attempts(
    style: str, way: Way, chat: Chat, server: Server, llm: LLM
) -> None:
    async with way.dialled(server.url, f"lab-8k@{style}") as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_500, "what did we say?")
        left = await talk.bring_to_an_end(turn)
        assert left.state == "finished"
        assert left.told[0][1].endswith("what did we say?")
        assert 2 <= len(left.calls) <= 3
        assert (set(left.outcomes[:-1]), len(asked_for_turns(llm))) == ({"overflow"}, len(left.calls))
        is_stated = style in STATING and not (way.protocol == "responses" and style == "openai")
        assert await learned_window(talk) == (WINDOW if is_stated else None), "a guess is not stored"
        await check_that_it_goes_on(talk, turn, llm)


@every_way
async def test_vague_refusals_near_the_windows_end_mean_length(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    llm.models["lab-tight"] = {"context": 5_000, "max_output": 4_096}
    async with way.dialled(server.url, "lab-tight@vague") as model:
        talk = Talk(chat_at(chat, 7), model, context_length=Tokens(WINDOW), max_output_tokens=Tokens(2_048))
        turn = await fill_and_ask(talk.chat, talk.agent, 5_700, "what did we say?")
        session = await talk.chat.store.read(sessions.load_tip, turn.lineage_id)
        held = stored_form(ContextState(strikes=2, blocked_at=20_000))  # otherwise it would have been compressed before
        await talk.chat.store.write(sessions.set_context_state, session.id, held)
        assert (await talk.bring_to_an_end(turn)).outcomes == ["rejected", "ok"]
        assert talk.agent.context.limits.context_length == WINDOW, "for other conversations, nothing has changed"
        assert await learned_window(talk) is None
        await check_that_it_goes_on(talk, turn, llm)


@every_way
async def test_a_stated_window_above_the_known_one_is_ignored(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    message = "This model's maximum context length is 900000 tokens. However, your messages resulted in 900001 tokens."
    refusal = {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    async with way.dialled(server.url) as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_500)
        llm.scripts.append({"times": 1, "has_tools": True, "reply": {"error": {"status": 400, "body": refusal}}})
        assert (await talk.bring_to_an_end(turn)).outcomes == ["overflow", "ok"]
        assert await learned_window(talk) is None
        assert talk.agent.context.limits.context_length == 32_768


@every_way
async def test_a_refusals_prompt_limit_keeps_the_window(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    message = "Input tokens exceed the configured limit of 8000 tokens. Your messages resulted in 9512 tokens."
    refusal = {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    async with way.dialled(server.url) as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_500)
        llm.scripts.append({"times": 1, "has_tools": True, "reply": {"error": {"status": 400, "body": refusal}}})
        assert (await talk.bring_to_an_end(turn)).outcomes == ["overflow", "ok"]
        assert asked_for_turns(llm)[-1]["prompt_tokens"] < 8_000
        limits = talk.agent.context.limits
        assert (limits.context_length, limits.input_window, limits.longest_prompt) == (32_768, 8_000, 8_000)
        assert await learned_window(talk) is None
        again = Talk(talk.chat, model, **BELIEVED)
        assert (await again.agent.context.status(turn.conversation)).limits == limits, "the limit survives a restart"
        await check_that_it_goes_on(talk, turn, llm)


@every_way
@pytest.mark.parametrize("status", [429, 413])
async def test_a_prompt_above_the_accounts_limit_per_minute_is_compressed(
    status: int, way: Way, chat: Chat, server: Server, llm: LLM
) -> None:
    message = (
        "Request too large for lab in organization org-lab on tokens per min (TPM): Limit 8000, Requested 11548. The "
        "input or output tokens must be reduced in order to run successfully."
    )
    refusal = {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    async with way.dialled(server.url) as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_500)
        llm.scripts.append({"times": 1, "has_tools": True, "reply": {"error": {"status": status, "body": refusal}}})
        assert (await talk.bring_to_an_end(turn)).outcomes == ["overflow", "ok"]
        assert asked_for_turns(llm)[-1]["prompt_tokens"] < 8_000 - 2_048
        assert (await talk.agent.context.status(turn.conversation)).limits.context_length == 8_000
        assert await learned_window(talk) is None, "the limit does not belong to the model"
        await check_that_it_goes_on(talk, turn, llm)


# ---- refusals without a reason

NO_REASON = {"status": 400, "body": {"error": {"message": "Error"}}}


def refuse(llm: LLM, times: int) -> None:
    llm.scripts.append({"times": times, "has_tools": True, "reply": {"error": NO_REASON}})


@every_way
async def test_a_long_prompt_refused_vaguely_is_compressed_once(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    async with way.dialled(server.url) as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_000)  # a third of the window, but nothing was answered yet
        refuse(llm, 1)
        left = await talk.bring_to_an_end(turn)
        assert left.outcomes == ["rejected"]
        assert left.told[0][1].endswith("should check this model's `name` and `base_url`.")
        assert (await talk.say("go on")).outcomes == ["ok"]
        refuse(llm, 1)  # still large: more than half of the largest answered prompt
        assert (await talk.say("and now?")).outcomes == ["rejected", "ok"]
        found = await look(talk.chat, turn.lineage_id)
        assert [outcome for _, outcome, _ in found.compressions] == ["compressed"]


@every_way
async def test_a_refusal_after_compressing_is_not_about_length(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    async with way.dialled(server.url) as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 9_000)
        assert (await talk.bring_to_an_end(turn)).outcomes == ["ok"]
        refuse(llm, 3)
        left = await talk.say("what about this?")
        assert left.outcomes == ["rejected", "rejected"]
        assert "so /compress may help" in left.told[0][1]
        assert (await talk.say("and this?")).outcomes == ["rejected"], "no useless second compression"
        assert (await talk.say("and that?")).outcomes == ["ok"]
        refuse(llm, 1)
        await talk.say("word " * 3_000)
        found = await look(talk.chat, turn.lineage_id)
        assert [outcome for _, outcome, _ in found.compressions] == ["compressed", "compressed"]


# ---- the output limit


async def test_summaries_use_the_learned_output_limit(chat: Chat, server: Server, llm: LLM) -> None:
    way = next(way for way in MIXED_WAYS if way.protocol == "anthropic")
    llm.models["lab-terse"] = {"context": 131_072, "max_output": 4_096}  # there is room for far more
    async with way.dialled(server.url, "lab-terse") as model:
        talk = Talk(chat_at(chat, 7), model, **BELIEVED)
        turn = await fill_and_ask(talk.chat, talk.agent, 20_000)
        await talk.bring_to_an_end(turn)
        query = "SELECT outcome FROM model_calls WHERE purpose = 'summary' ORDER BY id"
        assert await talk.chat.store.read(lambda db: db.execute(query).fetchall()) == [("output_cap",), ("ok",)]
        await talk.bring_to_an_end(await fill_and_ask(talk.chat, talk.agent, 20_000))
        outcomes = await talk.chat.store.read(lambda db: db.execute(query).fetchall())
        assert outcomes == [("output_cap",), ("ok",), ("ok",)]


async def check_that_only_the_calls_cap_is_lowered(talk: Talk, turn: RunningTurn, left: Left, llm: LLM) -> list[int]:
    """Return the output limits of the turn and the next turn, and check that nothing else changed."""
    asked: list[int] = [row["max_tokens"] for row in llm.requests.rows]
    assert (left.state, left.outcomes) == ("finished", ["output_cap"] * (len(asked) - 1) + ["ok"])
    assert asked == sorted(asked, reverse=True)
    assert (await look(talk.chat, turn.lineage_id)).compressions == []
    assert await learned_window(talk) is None
    limits = talk.agent.context.limits
    assert limits.context_length == talk.agent.model.info.context_length, "the window stays"
    await talk.say("and now?")
    return [*asked, llm.requests.rows[len(asked)]["max_tokens"]]


@every_way
@pytest.mark.parametrize("most", [8_192, 16_384])
async def test_a_too_high_output_limit_is_lowered(most: int, way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    llm.models["lab-terse"] = {"context": 131_072, "max_output": most}
    async with way.dialled(server.url, "lab-terse") as model:
        talk = Talk(chat_at(chat, 7), model, max_output_tokens=Tokens(65_536))
        turn = await talk.chat.start("go")
        left = await talk.bring_to_an_end(turn)
        assert await check_that_only_the_calls_cap_is_lowered(talk, turn, left, llm) == [65_536, most, most]
        again = Talk(talk.chat, model, max_output_tokens=Tokens(65_536))
        assert (await again.say("after a restart")).outcomes == ["ok"]
        assert llm.requests.rows[-1]["max_tokens"] == most
        clock_of(talk.chat).pass_seconds(8 * 86_400)
        later = Talk(talk.chat, model, max_output_tokens=Tokens(65_536))
        assert (await later.say("a week later")).outcomes == ["output_cap", "ok"], "limits can also be raised"


@every_way
@pytest.mark.parametrize("style", ["openai-combined", "vllm", "openrouter"])
async def test_an_output_limit_that_does_not_fit_next_to_the_prompt_is_lowered(
    style: str, way: Way, chat: Chat, server: Server, llm: LLM
) -> None:
    llm.models["lab-wordy"] = {"context": 10_000, "max_output": 8_192}
    async with way.dialled(server.url, f"lab-wordy@{style}") as model:
        talk = Talk(chat_at(chat, 7), model, context_length=Tokens(32_768), max_output_tokens=Tokens(8_000))
        turn = await fill_and_ask(talk.chat, talk.agent, 4_000)
        left = await talk.bring_to_an_end(turn)
        asked, lowered, next_asked = await check_that_only_the_calls_cap_is_lowered(talk, turn, left, llm)
        assert asked == next_asked == 8_000, "the prompt left no more room"
        assert 4_000 < lowered < 10_000 - llm.requests.rows[0]["prompt_tokens"]


@every_way
async def test_an_output_limit_that_stays_too_high_is_reported(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    refusal = {"error": {"message": "max_tokens is too large", "type": "invalid_request_error"}}
    llm.scripts.append({"times": -1, "reply": {"error": {"status": 400, "body": refusal}}})
    async with way.dialled(server.url) as model:
        talk = Talk(chat, model, max_output_tokens=Tokens(1_024))
        left = await talk.say("go")
        assert left.outcomes == ["output_cap"] * 3  # 1,024, 512, 256
        assert left.told[0][1].endswith("The owner of this bot needs to lower this model's `max_output_tokens`.")
