"""Conversations near the end of their window: compressions that hardly help, and compressions that are taken back."""

import pytest

from tests.e2e.chats import Chat, on_discord_and_web
from tests.e2e.protocols import ModelProtocol, conversation_of
from tests.e2e.test_compression import REPORTED, SMALL, summaries, turns
from tests.e2e.world import World

LONG = "The harbour master counted every boat twice and wrote it down with great care. " * 38
"""About 3,000 characters."""
BLOCKED = "hardly shortens"
INPUT_WINDOW = 24_576


def counted(protocol: ModelProtocol, tokens: int) -> dict[str, int]:
    """Usage of a server that counts `tokens` of prompt, in the words of its protocol."""
    if protocol.name == "chat_completions":
        return {"prompt_tokens": tokens, "total_tokens": tokens + 10}
    cached = {} if protocol.name == "responses" else {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": tokens, **cached}


async def count_as(world: World, tokens: int) -> None:
    """Let the server count every prompt of a turn so, whatever stands in it."""
    rule = {"has_tools": True, "times": -1, "text": "Noted.", "usage": counted(world.protocol, tokens)}
    await world.script(**rule)


async def report(world: World, count: int, words: str = LONG) -> None:
    """Say so many things, each once the one before is answered; what else people are told does not matter."""
    for number in range(count):
        before = len(await world.replies(0, wait=0, match="^Noted"))
        await world.say(f"Report {number}. {words}")
        assert len(await world.replies(before + 1, match="^Noted")) == before + 1


@on_discord_and_web
async def test_compressions_that_hardly_help_stop_on_other_platforms(chat: Chat) -> None:
    await chat.start(**SMALL)
    await count_as(chat.world, 21_000)
    for number in range(16):
        await chat.ask(f"Report {number}. {LONG[:1_700]}", "^Noted")
    assert len(await summaries(chat.world)) <= 2
    assert BLOCKED in await chat.seen()


@pytest.mark.each_protocol
@pytest.mark.parametrize("mode", ["background", "blocking"])
async def test_compressions_that_hardly_help_stop_while_the_prompt_fits(world: World, mode: str) -> None:
    """The server counts 21,000 of 24,576 tokens, and a message takes about 750: no compression gets below that."""
    await world.gateway.start(**{**SMALL, "HERMES_COMPRESSION__MODE": mode})
    await count_as(world, 21_000)
    await report(world, 12)
    assert len(await summaries(world)) <= 2
    told = [text for text in await world.replies(0, wait=0) if BLOCKED in text]
    assert len(told) == 1
    assert "only when it no longer fits" in told[0]


async def test_large_messages_right_below_the_threshold_bring_no_compression_each(world: World) -> None:
    """The server counts 15,800 tokens behind each compression, of a threshold of 16,384: below it, and of no use."""
    await world.gateway.start(**SMALL)
    await count_as(world, 15_800)
    await report(world, 10, LONG + LONG[:800])
    assert len(await summaries(world)) <= 2
    assert len([text for text in await world.replies(0, wait=0) if BLOCKED in text]) <= 1


async def test_a_blocked_conversation_is_compressed_when_its_prompt_does_not_fit_and_people_are_told_once(
    world: World,
) -> None:
    """A persona of 15,000 tokens: whatever is compressed, the prompt stays above the threshold."""
    await world.gateway.start(**SMALL, HERMES_AGENT__PERSONA="You know the harbour well. " * 2_250)
    await world.script(has_tools=True, times=-1, text="Noted.")
    await report(world, 40)
    prompts = [row["prompt_tokens"] for row in await turns(world)]
    assert max(prompts) > INPUT_WINDOW * 0.92, "it goes on while the prompt fits"
    assert max(prompts) < INPUT_WINDOW * 1.01, "it is compressed when it does not"
    assert 3 <= len(await summaries(world)) <= 10
    assert len([text for text in await world.replies(0, wait=0) if BLOCKED in text]) == 1
    assert await world.outcomes() == {"ok"}


# ---- /compress undo


async def fill_to(world: World, share: float) -> None:
    """Talk until the last reported prompt takes this share of the input window."""
    await world.script(has_tools=True, times=-1, text="Noted.")
    reported = 0
    while True:
        await report(world, 1, LONG if reported < INPUT_WINDOW * 0.88 else LONG[:800])
        [(reported,)] = world.query(REPORTED)
        if reported >= INPUT_WINDOW * share:
            return


NEVER = {**SMALL, "HERMES_COMPRESSION__ENABLED": "false"}


@pytest.mark.each_protocol
async def test_an_undo_that_was_offered_near_the_end_of_the_window_is_kept(chat: Chat) -> None:
    world = chat.world
    persona = {"HERMES_AGENT__PERSONA": "You know the harbour well. " * 1_200}
    await chat.start(**NEVER, **persona, HERMES_SESSIONS__MERGE_SECONDS="0")
    await world.script(has_tools=True, times=-1, text="Noted.")
    while not (rows := world.query(REPORTED)) or (rows[0][0] or 0) < INPUT_WINDOW * 0.925:
        is_near = bool(rows) and (rows[0][0] or 0) > INPUT_WINDOW * 0.89
        await chat.ask(LONG[:800] if is_near else LONG[:1_700], "^Noted")
    assert "reverses this" in await chat.ask("/compress", "^Compressed: ")
    undone = await chat.ask("/compress undo", "Compression undone|The restored prompt would use")
    assert undone.startswith("Compression undone")
    assert "while prompts still fit" in undone
    assert await world.gateway.stop() == 0
    asked = len(await summaries(world))
    await chat.start(HERMES_COMPRESSION__ENABLED="true")
    await chat.ask("and now?", "^Noted")
    assert len(await summaries(world)) == asked, "the prompt fits"
    assert "CONTEXT COMPACTION" not in conversation_of((await turns(world))[-1])
    for _ in range(5):
        await chat.ask(LONG[:1_700], "^Noted")
    assert len(await summaries(world)) == asked + 1, "the prompt does not fit any more"


async def test_an_undo_that_would_not_fit_is_not_offered(world: World) -> None:
    await world.gateway.start(**NEVER)
    await fill_to(world, 0.98)
    await world.say("/compress")
    [told] = await world.replies(1, match="^Compressed: ")
    assert "undo" not in told
