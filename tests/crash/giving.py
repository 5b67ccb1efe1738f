"""Scenario: the agent writes a file and sends it to the chat. Wherever it is killed, people get the whole file once.

If the outcome of a call is unknown, the model repeats the call, as a person would ask. The same content is still sent
only once. The workspace contains the complete file or no file.
"""

from collections import Counter
from contextlib import closing

from tests.crash.invariants import file_problems, model_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

CHAT = 42
CAPTION = "as you asked"
CONTENT = "a gift"
ANSWER = "It is given, or was never written."
UNKNOWN = "Outcome unknown"
ENVIRON = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}

SCRIPT: list[dict[str, object]] = [
    {"match_any": "is on its way to the chat|is not sent again|gift.txt.? does not exist", "text": ANSWER},
    {
        "match_any": f"Wrote {len(CONTENT)} bytes|{UNKNOWN}",
        "tool_calls": [{"name": "send_file", "arguments": {"path": "gift.txt", "caption": CAPTION}}],
    },
    {
        "match": "give it",
        "tool_calls": [{"name": "write_file", "arguments": {"path": "gift.txt", "content": CONTENT}}],
    },
]


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    await world.begin(SCRIPT, CHAT)
    await world.say(CHAT, "give it")
    await world.until_seen(CHAT, ANSWER)
    await world.end()


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        runs = Counter(db.execute("SELECT tool_name, state FROM tool_runs").fetchall())
        given = db.execute("SELECT count(*) FROM attachments").fetchone()[0]
        owed = db.execute("SELECT count(*) FROM outbox WHERE dedupe_key LIKE '%:file:%'").fetchone()[0]
    if runs["send_file", "failed"]:  # the file was never written
        found.remove("1 rows of tool_runs are failed")
    written = [path.read_text() for path in world.home.glob("workspaces/*/gift.txt")]
    if written not in ([], [CONTENT]):
        found.append(f"the file in the workspace is {written}")
    if sum(count for (name, _), count in runs.items() if name == "write_file") != 1:
        found.append(f"the runs are {runs}")
    if runs["send_file", "done"] and not given:
        found.append("the model was told that the file is given, and it is not")
    if bool(written) == bool(runs["send_file", "failed"]):
        found.append(f"the file is {'' if written else 'not '}there, and the runs are {runs}")
    if given != owed or given > 1:
        found.append(f"{given} files are kept, and {owed} are owed")
    expected = (CAPTION, ANSWER) if given else (ANSWER,)
    return [*found, *await screen_problems(world, CHAT, *expected), *await model_problems(world)]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: the outcome must be known, and the file must exist."""
    with closing(opened(world.home / "state.db")) as db:
        states = db.execute("SELECT tool_name, state FROM tool_runs ORDER BY id").fetchall()
    return [] if states == [("write_file", "done"), ("send_file", "done")] else [f"the runs are {states}"]
