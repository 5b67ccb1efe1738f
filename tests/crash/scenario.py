"""What happens in every run: parallel tools, a steer, a command, a split, an answer in four parts, and a drain.

A private chat: `hello` is answered; `begin` calls two tools side by side, of which one waits; meanwhile a steer and a
`/title` come in; then the session is split and the long answer follows. A group: `goodbye` is being answered
(its placeholder is on screen) when SIGTERM comes, so that the rest happens in the drain.

The model's rules look only at the prompt, so that whoever asks again after a crash is told the same. Every wait is for
an event, and each names what would also be right after a kill.
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
    """Run the scenario to its end, kills included. Raises `Stuck`."""
    await world.telegram.post("chat", {"chat_id": CHAT})
    await world.telegram.post("chat", {"chat_id": GROUP})
    pause_after = world.protocol.frames(2)
    goodbye = {"match": "goodbye", "text": GOODBYE_ANSWER, "chunk_chars": 8, "pause_after": pause_after}
    await world.llm.post("script", [{**rule, "times": -1} for rule in (goodbye, *SCRIPT)])
    world.start()
    await _converse(world)
    await _leave(world)


async def _converse(world: World) -> None:
    await world.say(CHAT, "hello there")
    await _until_seen(world, CHAT, HELLO_ANSWER)

    await world.say(CHAT, "begin now")

    async def is_held() -> bool:
        return world.hold_count > 0 or any(UNKNOWN in text for text in world.model_texts)

    await world.until("the tool waits, or its outcome is unknown", is_held)
    await _until_taken(world, await world.say(CHAT, STEER))
    await _until_taken(world, await world.say(CHAT, TITLE))
    world.release_holds()
    for number, part in enumerate(LONG_PARTS, start=1):
        await _until_seen(world, CHAT, part, f"part {number} of the long answer")
    await _until_seen(world, CHAT, TITLE_REPLY)


async def _leave(world: World) -> None:
    await world.say(GROUP, "@lab_gateway_bot goodbye")

    async def is_showing() -> bool:
        return await world.is_stream_paused() and len(await world.visible(GROUP)) > 0

    await world.until("the placeholder of the last answer is on screen", is_showing)
    while not await _ends(world):
        # It was killed in the drain and is up again, with nothing that tells it to go.
        await _until_seen(world, GROUP, GOODBYE_ANSWER)


async def _ends(world: World) -> bool:
    """Ask the daemon to go; false when a kill came instead of its own end. Raises `Stuck`."""
    kill_count = await world.terminate()
    await world.resume_stream()
    return await world.is_ended_by(kill_count)


async def _until_taken(world: World, update_id: int) -> None:
    async def is_taken() -> bool:
        return world.acknowledged >= update_id

    await world.until(f"update {update_id} is acknowledged", is_taken)


async def _until_seen(world: World, chat_id: int, text: str, name: str = "") -> None:
    async def is_seen() -> bool:
        return any(text in shown for shown in await world.visible(chat_id))

    await world.until(f"{name or repr(text)} is on screen", is_seen)
