"""Scenario: a conversation is compressed three times: during a turn, before a turn, and by command.

A private chat uses a small model. `collect` calls a tool with long results until the next prompt would exceed the
threshold. The agent then compresses, and the turn continues in the new session. The answer to `explain` is so long that
the window is nearly full at the next long message, so hygiene compresses before the turn. Then follow `/compress` and
one more message. The model writes every summary, and chooses it by the prompt.

Whatever is killed, there are always these three compressions, one after the other, each with its own summary.
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
"""Settings with which the agent compresses from 8,192 tokens, and hygiene from 11,060. The system prompt and the tools
use about 1,500."""
IN_BACKGROUND = ENVIRON | {"HERMES_COMPRESSION__MODE": "background"}
"""Settings for compression in the background. A summary is applied when it is ready. A later step requests a summary
again if a kill interrupted it."""


def _words(count: int) -> str:
    """Return a text of `count` times nineteen tokens, as the fake model counts them."""
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
"""Notice that follows the second compression. The command reports the third one itself."""
LAYERS = ("in_loop", "hygiene", "manual")


def summary(mark: str) -> str:
    """Return a summary with thirteen sections. `mark` distinguishes it from other summaries."""
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
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    await world.begin(SCRIPT, CHAT)
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
        await world.until_seen(CHAT, answer)
