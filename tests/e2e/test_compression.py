"""Compression as people meet it: the command, the layers that act by themselves, and what is said about them."""

import re
from typing import Any

from tests.e2e.world import World

FILLER = "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. " * 12


def system_and_rest(request: dict[str, Any]) -> tuple[str, str]:
    """The system prompt of a request, and the rest of its messages as text."""
    first, *rest = request["body"]["messages"]
    return first["content"], str(rest)


async def talk(world: World, count: int, *, words: str = FILLER) -> None:
    await world.converse(*(f"Message {number}: TICKET-{number}. {words}" for number in range(count)))


async def summaries(world: World) -> list[dict[str, Any]]:
    return await world.asked(0, wait=0, summary=True)


async def test_compress_shortens_what_the_model_sees_and_keeps_what_was_said(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__NAME="lab-32k", HERMES_MODEL__CONTEXT_LENGTH="32768")
    await talk(world, 20)
    await world.say("/compress")
    assert await world.replies(1, match="^Compressing this conversation")
    [told] = await world.replies(1, match="^Compressed: ")
    before, after = map(int, re.findall(r"(\d+) → (\d+) messages", told)[0])
    assert after < before == 40
    assert "estimate" in told
    assert "lab-32k" in told
    await world.say("and now?")
    assert await world.replies(1, match="echo: .*and now")
    last = (await world.asked(22))[-1]
    system, rest = system_and_rest(last)
    assert rest.count("CONTEXT COMPACTION — REFERENCE ONLY") == 1
    assert "compaction" in system
    assert "TICKET-0." in rest
    assert len(last["body"]["messages"]) < 15
    await world.say("/history 50")
    assert "Message 5:" in "".join(await world.replies(1, match="Message 5:"))
    assert await world.violations() == []
