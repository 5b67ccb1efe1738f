"""Scenario: parallel tools, a steer, a command, a session split, an answer in four parts, and a shutdown.

In a private chat, `hello` is answered. `begin` calls two tools in parallel, one of which waits. Meanwhile a steer and a
`/title` arrive. Then the session is split, and the long answer follows. In a group, `goodbye` is being answered (its
placeholder is visible) when SIGTERM arrives, so the answer ends during the shutdown.

The model's rules depend only on the prompt, so a repeated request after a crash gets the same response. Each wait is
for an event, and also accepts the events that can follow a kill.
"""

from platforms.telegram.rendering import render
from tests.crash.daemon import HOLD_DONE, NOTE_DONE, SPLIT_DONE
from tests.crash.world import World

CHAT = 42
GROUP = -100
STEER = "/steer and mention the colour blue"
TITLE = "/title Crash suite"

HELLO_ANSWER = "Hello answered."
STEER_ANSWER = "Blue noted."
GOODBYE_ANSWER = "Goodbye answered in full, to the last word."
TITLE_REPLY = "This conversation is now called “Crash suite”."
JOINED = "Noted. I will use this in the answer I am working on."
BEHIND = "Queued until the current answer is finished. /stop ends that answer now."
UNKNOWN = "Outcome unknown"

LONG_ANSWER = "\n".join(f"LONG ANSWER line {number:03d}: " + "words of the answer " * 9 for number in range(62))
LONG_PARTS = [part.text for part in render(LONG_ANSWER)]
assert len(LONG_PARTS) == 4, "the long answer is meant to have four parts"

SCRIPT: list[dict[str, object]] = [
    {"match": "hello", "text": HELLO_ANSWER},
    {"match": "blue", "match_any": "LONG ANSWER", "text": STEER_ANSWER},
    {"match_any": SPLIT_DONE, "text": LONG_ANSWER, "chunk_chars": 4000},
    {"match_any": f"{NOTE_DONE}|{UNKNOWN}", "tool_calls": [{"name": "split", "arguments": {}}]},
    {
        "match": "begin",
        "tool_calls": [
            {"name": "note", "arguments": {"key": "noted"}},
            {"name": "hold", "arguments": {"key": "held"}},
        ],
    },
]
KEYS = ("noted", "held")

assert HOLD_DONE not in str(SCRIPT), "the note's result alone tells that the tools are through"


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    pause_after = world.protocol.frames(2)
    goodbye = {"match": "goodbye", "text": GOODBYE_ANSWER, "chunk_chars": 8, "pause_after": pause_after}
    await world.begin((goodbye, *SCRIPT), CHAT, GROUP)
    await _converse(world)
    await _leave(world)


async def _converse(world: World) -> None:
    await world.say(CHAT, "hello there")
    await world.until_seen(CHAT, HELLO_ANSWER)

    await world.say(CHAT, "begin now")

    async def is_held() -> bool:
        return world.hold_count > 0 or any(UNKNOWN in text for text in world.model_texts)

    await world.until("the tool waits, or its outcome is unknown", is_held)
    await _until_taken(world, await world.say(CHAT, STEER))
    await _until_taken(world, await world.say(CHAT, TITLE))
    world.release_holds()
    for number, part in enumerate(LONG_PARTS, start=1):
        await world.until_seen(CHAT, part, f"part {number} of the long answer")
    await world.until_seen(CHAT, TITLE_REPLY)


async def _leave(world: World) -> None:
    await world.say(GROUP, "@lab_gateway_bot goodbye")

    async def is_showing() -> bool:
        return await world.is_stream_paused() and len(await world.visible(GROUP)) > 0

    await world.until("the placeholder of the last answer is on screen", is_showing)
    while not await _ends(world):
        # The daemon was killed during the shutdown and runs again. Nothing tells it to stop.
        await world.until_seen(GROUP, GOODBYE_ANSWER)


async def _ends(world: World) -> bool:
    """Ask the daemon to stop. Return False if a kill ended it instead. Raises `Stuck` if a step does not happen."""
    kill_count = await world.terminate()
    await world.resume_stream()
    return await world.is_ended_by(kill_count)


async def _until_taken(world: World, update_id: int) -> None:
    async def is_taken() -> bool:
        return world.acknowledged >= update_id

    await world.until(f"update {update_id} is acknowledged", is_taken)
