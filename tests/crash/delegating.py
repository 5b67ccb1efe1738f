"""Scenario: two sub-agents run in parallel, one of which writes. After a kill, each continues where it stopped.

Whatever is killed, each call has one sub-agent with the same rows as in a run without a kill. The sub-agent writes
once, and its report reaches the waiting turn.
"""

from contextlib import closing

from tests.crash.daemon import DUMP_A
from tests.crash.invariants import file_problems, model_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

CHAT = 42
ENVIRON = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}
WRITING, READING = "sign the list of alpha", "read the register of beta"
REPORTS = {WRITING: "ALPHA-REPORT", READING: "BETA-REPORT"}
ANSWER = "Both have reported."
CALLS: dict[str, dict[str, object]] = {
    WRITING: {"name": "sign", "arguments": {"key": "signed"}},
    READING: {"name": "dump", "arguments": {"mark": DUMP_A}},
}
SCRIPT: list[dict[str, object]] = [
    *({"match": task, "last_role": "tool", "text": report} for task, report in REPORTS.items()),
    *({"match": task, "tool_calls": [call]} for task, call in CALLS.items()),
    {"match": "hand it on", "last_role": "tool", "text": ANSWER},
    {"match": "hand it on", "tool_calls": [{"name": "delegate", "arguments": {"task": task}} for task in CALLS]},
]


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    await world.begin(SCRIPT, CHAT)
    await world.say(CHAT, "hand it on")
    await world.until_seen(CHAT, ANSWER)
    await world.end()


# Purpose: load the rows of each turn in order, and for sub-agents whether the session is below its caller's.
_TURNS = """
SELECT t.parent_turn_id, s.kind, s.end_reason, s.parent_session_id,
  (SELECT group_concat(m.role, ' ') FROM (SELECT role FROM messages WHERE turn_id = t.id AND seq > 0 ORDER BY id) m),
  (SELECT m.text FROM messages m WHERE m.turn_id = t.id ORDER BY m.id LIMIT 1)
FROM turns t JOIN sessions s ON s.lineage_id = t.lineage_id ORDER BY t.id
"""


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        turns = db.execute(_TURNS).fetchall()
        runs = db.execute("SELECT tool_name, state FROM tool_runs").fetchall()
        said = "SELECT text FROM messages WHERE role = 'tool' AND tool_name = 'delegate' AND seq > 0"
        reports = sorted(text for (text,) in db.execute(said).fetchall())
        payers = db.execute("SELECT DISTINCT lineage_id, turn_id FROM model_calls").fetchall()
    first, *children = turns
    if first[:5] != (None, "root", None, None, "user assistant tool tool assistant"):
        found.append(f"the turn is {first}")
    steps = "user assistant tool assistant"
    wanted = sorted((1, "subagent", "finished", 1, steps, task) for task in CALLS)
    if sorted(children) != wanted:
        found.append(f"the sub-agents are {children}")
    if reports != sorted(REPORTS.values()):
        found.append(f"the turn was told {reports}")
    if payers != [(1, 1)]:
        found.append(f"the calls are paid by {payers}")
    ran = world.effects_of("signed")
    states = dict(runs)
    if len(runs) != 4 or ran > 1 or (states.get("sign"), ran) not in (("done", 1), ("unknown", ran)):
        found.append(f"the runs are {runs}, and the call ran {ran} times")
    return [*found, *await screen_problems(world, CHAT, ANSWER), *await model_problems(world)]
