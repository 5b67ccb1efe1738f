"""A conversation that outgrows its window three times: in the middle of a turn, before one, and by hand.

A private chat on a small model. `collect` calls a tool that returns much, until the next prompt would stand above the
threshold: the loop compresses, and the turn goes on in the child. `explain` is answered at great length, so that the
long message after it finds the window nearly full: hygiene compresses before the turn. Then `/compress`, and one more
message. Every summary is written by the model, and what a prompt says decides which one it gets.

What a kill may not change: that there are these three compressions, one after the other, each with its own summary.
"""

from platforms.telegram.rendering import render
from tests.crash.daemon import DUMP_A, DUMP_B
from tests.crash.world import World
from tests.summaries import summary_saying

CHAT = 42
ENVIRON = {
    "HERMES_MODEL__NAME": "lab-16k",
    "HERMES_MODEL__CONTEXT_LENGTH": "16384",
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "4096",
    "HERMES_COMPRESSION__MODE": "blocking",
}
"""Compressed from 8,192 tokens on, by hygiene from 11,060 on; the system prompt and the tools take about 1,500."""
IN_BACKGROUND = ENVIRON | {"HERMES_COMPRESSION__MODE": "background"}
"""When a summary is taken in depends on when it is there, and one that a kill cut off is asked for by a later step."""


def _words(count: int) -> str:
    """So many times nineteen tokens, by the fake model's count."""
    return " ".join(["we counted the boats in the harbour and wrote down what each of them carried"] * count)


FIRST = "first, what lies in the harbour? " + _words(38)
SECOND = "second, what do the boats carry? " + _words(38)
COLLECT = "collect the two registers"
THIRD = "third, who writes it down? " + _words(38)
EXPLAIN = "explain all of it at length"
FILL = "remember this list too. " + _words(48)
FOURTH = "fourth, is that all?"
LAST = "farewell, what comes next?"
HUMAN = (FIRST, SECOND, COLLECT, THIRD, EXPLAIN, FILL, FOURTH, LAST)
COMPRESS = "/compress"

FIRST_ANSWER = "First answered. " + _words(38)
SECOND_ANSWER = "Second answered. " + _words(38)
COLLECTED = "Both registers are collected."
THIRD_ANSWER = "Third answered. " + _words(38)
EXPLAINED = "\n".join(f"Explained, line {number:03d}: {_words(1)}" for number in range(132))
EXPLAINED_PARTS = [part.text for part in render(EXPLAINED)]
FILLED = "The list is remembered."
FOURTH_ANSWER = "That is all."
GONE_ON = "The conversation goes on."
ANSWERS = (
    *(FIRST_ANSWER, SECOND_ANSWER, COLLECTED, THIRD_ANSWER),
    *(*EXPLAINED_PARTS, FILLED, FOURTH_ANSWER, GONE_ON),
)

WORKING = "Compressing this conversation…"
COMPRESSED = "Compressed: "
OFTEN = "This conversation has been compressed 2 times"
"""The notice that comes with the second one; the third is the command's own affair."""
LAYERS = ("in_loop", "hygiene", "manual")


def summary(mark: str) -> str:
    """Thirteen sections that tell the summaries apart."""
    return summary_saying(f"{mark}:")


def _dumps(mark: str) -> list[dict[str, object]]:
    return [{"name": "dump", "arguments": {"mark": mark, "part": part}} for part in (1, 2)]


MARKS = ("SUMMARY-ONE", "SUMMARY-TWO", "SUMMARY-THREE")
SCRIPT: list[dict[str, object]] = [
    {"summary": True, "match_any": MARKS[1], "text": summary(MARKS[2])},
    {"summary": True, "match_any": MARKS[0], "text": summary(MARKS[1])},
    {"summary": True, "text": summary(MARKS[0])},
    {"match": "farewell", "text": GONE_ON},
    {"match": "remember this list", "text": FILLED},
    {"match": "explain all of it", "text": EXPLAINED, "chunk_chars": 4_000},
    {"match": "collect", "match_any": DUMP_B, "text": COLLECTED},
    {"match": "collect", "match_any": DUMP_A, "tool_calls": _dumps(DUMP_B)},
    {"match": "collect", "tool_calls": _dumps(DUMP_A)},
    {"match": "fourth, is", "text": FOURTH_ANSWER},
    {"match": "third, who", "text": THIRD_ANSWER},
    {"match": "second, what", "text": SECOND_ANSWER},
    {"match": "first, what", "text": FIRST_ANSWER},
]


async def play(world: World) -> None:
    """Run the scenario to its end, kills included. Raises `Stuck`."""
    await world.telegram.post("chat", {"chat_id": CHAT})
    await world.llm.post("script", [{**rule, "times": -1} for rule in SCRIPT])
    world.start()
    await _say(world, FIRST, FIRST_ANSWER)
    await _say(world, SECOND, SECOND_ANSWER)
    await _say(world, COLLECT, COLLECTED)
    await _say(world, THIRD, THIRD_ANSWER)
    await _say(world, EXPLAIN, *EXPLAINED_PARTS)
    await _say(world, FILL, FILLED)
    await _say(world, FOURTH, FOURTH_ANSWER)
    await _say(world, COMPRESS, COMPRESSED)
    await _say(world, LAST, GONE_ON)
    await world.end()


async def _say(world: World, text: str, *answers: str) -> None:
    await world.say(CHAT, text)
    for answer in answers:

        async def is_seen(wanted: str = answer) -> bool:
            return any(wanted in shown for shown in await world.visible(CHAT))

        await world.until(f"{answer[:40]!r} is on screen", is_seen)
