"""Scenario: a preview grows in a direct chat on Discord. After a kill, the answer is visible exactly once, complete.

If the daemon is killed before it stores the id of the preview's message, it finds the message by its nonce. Only
Discord has nonces.
"""

import asyncio
from contextlib import closing, suppress

from tests.crash.invariants import file_problems, opened, undecided_rows
from tests.crash.world import World
from tests.fakes.discord_state import ALICE

HELLO = "Hello, the harbour is open."
ANSWER = "The Anna lies at pier seven, behind the Eva, and sails at noon with the tide."
PATIENCE_SECONDS = 2.0
ENVIRON = {"CRASH_DISCORD": "1"}


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    grows = {"chunk_chars": 8, "chunk_delay": 0.1}
    rules = [{"match": "where is she", "text": ANSWER, **grows}, {"match": "hello", "text": HELLO}]
    await world.begin(rules)
    await _greet(world)
    await _say(world, "where is she")

    async def is_answered() -> bool:
        return ANSWER in await _visible(world)

    await world.until(f"{ANSWER!r} is on screen", is_answered)
    await world.end()


async def _greet(world: World) -> None:
    """Send a greeting until it is answered, because the gateway fetches no history of a channel that it has never
    seen."""

    async def is_connected() -> bool:
        return "discord commands" in world.requests or world.kill_count > 0

    async def is_greeted() -> bool:
        return HELLO in await _visible(world)

    await world.until("Discord is connected", is_connected)
    is_said = False
    while not (is_said and await is_greeted()):
        await _say(world, "hello")
        is_said = True
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await world.until(f"{HELLO!r} is on screen", is_greeted)


async def _say(world: World, text: str) -> None:
    said = await world.discord.post("message", {"user_id": ALICE, "dm_user_id": ALICE, "content": text})
    world.discord_channel = said["channel_id"]


async def _visible(world: World) -> list[str]:
    rows = await world.discord.get("messages", channel_id=world.discord_channel)
    return [row["content"] for row in rows if row["author"]["id"] != str(ALICE)]


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
    shown = [text for text in await _visible(world) if HELLO not in text]
    return found if shown == [ANSWER] else [*found, f"the bot's messages are {shown}"]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill."""
    edits = await world.discord.get("sent", action="edit")
    return [] if edits else ["no preview was shown"]
