"""A call waits for a person's yes, beside one that needs none; the yes comes, and both have run once.

The question is asked once whatever was killed, unless nobody can know whether it was seen; the call never runs before
the yes, and never twice.
"""

from collections import Counter
from contextlib import closing

from gateway.inbound.offline_commands import NOT_TAKEN
from platforms.telegram.rendering import REPEAT_MARK
from tests.crash.daemon import SIGN_DONE
from tests.crash.invariants import copies, file_problems, opened, undecided_rows
from tests.crash.world import World
from tests.fakes.llm_legality import untidy

CHAT = 42
QUESTION = "May I use sign?"
YES = "Yes to a1 (sign)."
ANSWER = "It is signed, or nobody knows."
UNKNOWN = "Outcome unknown"

SCRIPT: list[dict[str, object]] = [
    {"match_any": f"{SIGN_DONE}|{UNKNOWN}", "text": ANSWER},
    {
        "match": "sign it",
        "tool_calls": [
            {"name": "dump", "arguments": {"mark": "seen"}},
            {"name": "sign", "arguments": {"key": "signed"}},
        ],
    },
]


async def play(world: World) -> None:
    """Run the scenario to its end, kills included. Raises `Stuck`."""
    await world.telegram.post("chat", {"chat_id": CHAT})
    await world.llm.post("script", [{**rule, "times": -1} for rule in SCRIPT])
    world.start()
    await world.say(CHAT, "sign it")
    await _until_seen(world, QUESTION)
    await world.say(CHAT, "/approve all")
    await _until_seen(world, YES)
    await _until_seen(world, ANSWER)
    await world.end()


async def _until_seen(world: World, words: str) -> None:
    async def is_seen() -> bool:
        return any(words in text for text in await world.visible(CHAT))

    await world.until(f"{words!r} is on screen", is_seen)


async def problems_of(world: World) -> list[str]:
    """Everything that is not as promised, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        approvals = db.execute("SELECT state, decided_by FROM approvals").fetchall()
        runs = db.execute("SELECT tool_name, state FROM tool_runs ORDER BY id").fetchall()
    if approvals != [("approved", "telegram:42")]:
        found.append(f"the approvals are {approvals}")
    ran = Counter(world.effects.read_text().split() if world.effects.exists() else [])["signed"]
    states = dict(runs)
    if (
        len(runs) != 2
        or states.get("dump") != "done"
        or (states.get("sign"), ran) not in (("done", 1), ("unknown", ran))
    ):
        found.append(f"the runs are {runs}, and the call ran {ran} times")
    if ran > 1:
        found.append(f"the call ran {ran} times")
    return [*found, *await _screen_problems(world)]


async def _screen_problems(world: World) -> list[str]:
    visible = await world.visible(CHAT)
    counts = Counter(visible)
    counts.pop(NOT_TAKEN, None)
    found = []
    for words in (QUESTION, YES, ANSWER):
        shown = next((text for text in visible if words in text), "").removeprefix(REPEAT_MARK)
        found += copies(counts, shown, world.kill_count) if shown else [f"{words!r} is not on screen"]
    found += [f"nobody expects {text[:80]!r} on screen" for text in counts]
    return found + [f"the model was sent {row}" for row in untidy(await world.llm.get("violations"))]


async def untouched_problems_of(world: World) -> list[str]:
    """What holds beside that when nothing was killed: the outcome is known."""
    with closing(opened(world.home / "state.db")) as db:
        states = db.execute("SELECT DISTINCT state FROM tool_runs").fetchall()
    return [] if states == [("done",)] else [f"the runs are {states}"]
