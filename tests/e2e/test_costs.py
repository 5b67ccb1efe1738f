"""Money, end to end: what people and operators are shown, and that nothing is spent silently."""

import asyncio
import json
import re
from typing import Any

from tests.e2e.world import World

PRICES = '{"lab-*": {"input": 3, "output": 15}}'
ADMIN = 1


async def as_json(world: World, *words: str) -> Any:
    code, output = await world.command_line(*words, "--json")
    assert code == 0, output
    return json.loads(output)


async def test_what_was_used_is_told_alike_in_the_chat_and_on_the_command_line(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES)
    await world.script(match="cached", cached=400, text="from the cache")
    await world.converse("hello", "cached", "/usage")
    requests = await world.asked(2)
    prompt = sum(row["prompt_tokens"] for row in requests)
    output = sum(row["completion_tokens"] for row in requests)
    said = (await world.visible())[-1]
    cost = (prompt * 3 + output * 15) / 1_000_000
    assert f"Cost: ${cost:.4f}" in said
    assert f"Input: {prompt:,} tokens ({prompt - 400:,} new, 400 or {40_000 // prompt} % from the cache" in said
    assert f"Output: {output:,} tokens" in said
    assert "Model calls: 2" in said
    assert re.search(r"tokens \([12] %, estimate\); compression starts at 64,000; not compressed so far", said)
    [(key,)] = world.query("SELECT key FROM sessions")
    beside = [await as_json(world, "usage", *place) for place in ([], ["telegram:42"], [key[:8]])]
    days = await as_json(world, "insights", "--days", "2")
    await world.gateway.stop()
    assert beside == [await as_json(world, "usage", *place) for place in ([], ["telegram:42"], [key[:8]])]
    for found, scope in zip(beside, ("gateway", "chat", "conversation"), strict=True):
        assert (found["scope"], found["prompt_tokens"], found["output_tokens"]) == (scope, prompt, output)
        assert found["cost_usd"] == round(cost, 6)
        assert found["cache_read_tokens"] == 400
    assert [row["calls"] for row in days["days"]] == [0, 2]
    assert [row["model"] for row in days["models"]] == ["lab-128k"]
    assert [row["purpose"] for row in days["purposes"]] == ["turn"]


async def test_what_nobody_has_priced_is_unknown_and_never_nothing(world: World) -> None:
    await world.gateway.start()
    await world.converse("hello", "/usage")
    said = (await world.visible())[-1]
    assert "Cost: unknown" in said
    assert "costs.prices" in said
    assert "$0.00" not in said
    found = await as_json(world, "usage")
    assert (found["cost_usd"], found["unpriced_calls"]) == (None, 1)
    assert world.query("SELECT cost_microusd FROM model_calls") == [(None,)]
    assert world.query("SELECT cost_microusd, unpriced_calls FROM sessions") == [(0, 1)]


async def test_insights_are_for_admins_and_fit_a_phone_and_a_stopped_turn_was_paid_for(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES)
    await world.converse("hello")
    await world.say("/insights")
    refusal = (await world.replies(2))[-1]
    assert "Cost" not in refusal
    assert "User42" not in refusal
    await world.say("/insights 30", chat_id=ADMIN)
    (told,) = await world.replies(1, chat_id=ADMIN)
    assert "User42" in told
    assert "█" in told
    chart = told[told.index("\n") + 1 : told.rindex("\n")]
    assert max(map(len, chart.splitlines())) <= 40
    assert len([line for line in told.splitlines() if line.endswith(" -")]) == 29
    await world.script(match="hang", hang=True)
    await world.say("hang")
    await world.asked(2)
    await world.say("/stop")
    await world.replies(1, match="Stopped")
    rows = world.query("SELECT outcome, estimated, cost_microusd > 0 FROM model_calls ORDER BY id")
    assert rows == [("ok", 0, 1), ("cancelled", 1, 1)]
    await world.converse("/usage")
    assert "Model calls: 2 (1 failed, 1 estimated)" in (await world.visible())[-1]


async def test_a_burst_of_fifty_turns_exceeds_a_cap_by_no_more_than_the_calls_in_flight(world: World) -> None:
    in_flight, cap = 5, 0.05
    people = range(100, 150)
    await world.gateway.start(
        HERMES_COSTS__PRICES=PRICES,
        HERMES_COSTS__DAILY_CAP=str(cap),
        HERMES_SESSIONS__MAX_TURNS=str(in_flight),
        HERMES_ACCESS__ALLOW_ALL="true",
    )
    await world.script(match="burst", delay=0.05, text="done")
    for person in people:
        await world.say(f"burst {person}", chat_id=person)
    for person in people:
        assert await world.replies(1, chat_id=person, wait=40), person
    costs = [cost for (cost,) in world.query("SELECT cost_microusd FROM model_calls ORDER BY id")]
    spent = sum(costs) / 1_000_000
    assert cap <= spent < cap + in_flight * max(costs) / 1_000_000
    refused = world.query("SELECT count(*) FROM turns WHERE state = 'failed'")
    assert refused == [(len(people) - len(costs),)]
    assert len(await world.asked(0, wait=0)) == len(costs) < len(people)
    said = " ".join([text for person in people for text in await world.visible(person)])
    assert said.count("The daily spending cap has been reached ($") == len(people) - len(costs)
    assert "try again tomorrow" in said


async def test_a_conversation_at_its_cap_goes_on_after_new_and_a_chat_at_its_cap_leaves_the_others_alone(
    world: World,
) -> None:
    world.configure("costs: {conversation_cap: 0.002}")
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES)
    await world.converse("one", "two", "/usage", "/new", "three")
    one, two, usage, _, three = await world.visible()
    assert "one" in one
    assert "Send /new to start another one" in two
    assert "used up, costs.conversation_cap" in usage
    assert "three" in three
    world.configure("costs: {chat_daily_cap: 0.002}")
    await world.reload()
    await world.converse("/new", "four")
    assert "The daily spending cap of this chat has been reached" in (await world.visible())[-1]
    await world.say("other", chat_id=43)
    assert "echo" in (await world.replies(1, chat_id=43))[0]


async def test_a_cap_shuts_out_a_model_without_a_price_and_says_how_to_let_it_in(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__DAILY_CAP="5")
    await world.gateway.wait_for_log("model.unpriced")
    await world.converse("hello")
    said = (await world.visible())[-1]
    assert "lab-128k" in said
    assert "costs.prices" in said
    assert await world.asked(0, wait=0) == []
    world.configure("costs: {prices: {lab-*: {input: 0, output: 0}}}")
    await world.reload()
    await world.converse("hello again")
    assert "echo" in (await world.visible())[-1]


async def test_a_summary_that_a_cap_forbids_leaves_the_conversation_as_it_is(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES)
    await world.converse(*(f"{number} [[size:2000]]" for number in range(4)))
    asked = len(await world.asked(0, wait=0))
    world.configure("costs: {chat_daily_cap: 0.001}")
    await world.reload()
    await world.say("/compress here 1")
    told = (await world.replies(1, match="has been reached"))[0]
    assert "Nothing was" in told or "not compressed" in told.lower(), told
    assert len(await world.asked(0, wait=0)) == asked
    assert world.query("SELECT count(*) FROM sessions") == [(1,)]


async def test_a_recording_counts_and_is_capped_like_everything_else(world: World) -> None:
    voice = {"media": "voice", "file_name": "voice.ogg", "mime": "audio/ogg", "duration": 7}
    await world.gateway.start(
        HERMES_TRANSCRIPTION__MODEL="ears",
        HERMES_COSTS__PRICES='{"lab-*": {"input": 3, "output": 15}, "ears": {"input": 100000, "output": 0}}',
        HERMES_COSTS__CHAT_DAILY_CAP="1",
    )
    await world.say("", **voice, file_text="OggS SAYS:remind me of the heron")
    assert await world.replies(1, match="The daily spending cap of this chat has been reached")
    rows = world.query("SELECT purpose, cost_microusd, chat_id IS NOT NULL FROM model_calls")
    assert rows == [("transcription", 1_000_000, 1)]
    await world.say("", **voice, file_text="OggS SAYS:and of the crow")
    assert await world.replies(2, match="has been reached")
    assert len(world.query("SELECT 1 FROM model_calls")) == 1


async def test_an_idle_gateway_asks_no_model(world: World) -> None:
    await world.gateway.start()
    await world.converse("hello", "/new", "hello again", "/usage", "/status")
    await asyncio.sleep(0.3)  # what follows a turn, such as a title
    asked = len(await world.asked(0, wait=0))
    await world.reload()
    await asyncio.sleep(0.5)
    assert len(await world.asked(0, wait=0)) == asked
    await world.gateway.stop()
    await world.gateway.start()
    await asyncio.sleep(0.5)
    assert len(await world.asked(0, wait=0)) == asked
