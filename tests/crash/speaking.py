"""Scenario: a long answer is spoken in part. Wherever the daemon is killed, people get text and voice once.

A recording that was stored is not paid for again.
"""

from contextlib import closing

from gateway.turns.voice import PART_ONLY
from tests.crash.invariants import file_problems, model_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

CHAT = 42
MODEL = "lab-tts"
ANSWER = ("The heron stands in the reeds and waits. " * 45).strip()
ENVIRON = {"HERMES_VOICE__MODEL": MODEL, "HERMES_VOICE__REPLY": "always"}


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    await world.begin([{"match": "heron", "text": ANSWER}], CHAT)
    await world.say(CHAT, "the heron?")
    await world.until_seen(CHAT, PART_ONLY)
    await world.end()


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        kept = db.execute("SELECT count(*), sum(outcome = 'ok') FROM model_calls WHERE purpose = 'speech'").fetchall()
        files = db.execute("SELECT count(*) FROM attachments").fetchall()
    if (kept, files) != ([(1, 1)], [(1,)]):
        found.append(f"the speech calls are {kept}, and the files {files}")
    calls = len(await world.llm.get("requests", model=MODEL))
    if calls > 1 + world.kill_count:
        found.append(f"the speech model was called {calls} times")
    return [*found, *await screen_problems(world, CHAT, ANSWER, PART_ONLY), *await model_problems(world)]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: the recording is made once."""
    calls = len(await world.llm.get("requests", model=MODEL))
    return [] if calls == 1 else [f"the speech model was called {calls} times"]
