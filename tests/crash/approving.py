"""Scenario: one tool call waits for approval while another runs. After approval, both must have run exactly once.

The question is asked once, unless a kill leaves it unknown whether it was sent. The call never runs before the
approval, and never twice. At the end, every message with the question shows the decision, even if an admin was asked in
another chat.
"""

from contextlib import closing

from tests.crash.daemon import SIGN_DONE
from tests.crash.invariants import file_problems, model_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

CHAT, ADMIN = 42, 1
ASKS_ADMIN = {"HERMES_TOOLS__APPROVAL__WRITES": "ask_admin", "HERMES_ACCESS__ADMINS": "telegram:1"}
QUESTION = "May I use sign?"
HELLO = "Hello."
YES = "Approved: a1 (sign)."
ANSWER = "It is signed, or nobody knows."
UNKNOWN = "Outcome unknown"

SCRIPT: list[dict[str, object]] = [
    {"match": "good morning", "text": HELLO},
    {"match_any": f"{SIGN_DONE}|{UNKNOWN}", "text": ANSWER},
    {
        "match": "sign it",
        "tool_calls": [
            {"name": "dump", "arguments": {"mark": "seen"}},
            {"name": "sign", "arguments": {"key": "signed"}},
        ],
    },
]


async def play(world: World, asked: int = CHAT) -> None:
    """Run the scenario to its end, even if the daemon is killed. `asked` is the chat that approves.

    Raises `Stuck` if a step does not happen.
    """
    await world.begin(SCRIPT, *{CHAT, asked})
    if asked != CHAT:  # the bot cannot write to people who have never written to it
        await world.say(asked, "good morning", asked)
        await world.until_seen(asked, HELLO)
    await world.say(CHAT, "sign it")
    await world.until_seen(CHAT, QUESTION)
    await world.until_seen(asked, QUESTION)
    await world.say(asked, "/approve all", asked)
    await world.until_seen(asked, YES)
    await world.until_seen(CHAT, ANSWER)
    for chat_id in {CHAT, asked}:
        await world.until_seen(chat_id, "Approved by")
    await world.end()


async def play_with_admin(world: World) -> None:
    """Run the scenario with an admin who approves in another chat."""
    await play(world, ADMIN)


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    return await _problems(world, CHAT)


async def problems_with_admin_of(world: World) -> list[str]:
    """Return all broken promises if an admin was asked."""
    return await _problems(world, ADMIN)


async def _problems(world: World, asked: int) -> list[str]:
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        approvals = db.execute("SELECT state, decided_by FROM approvals").fetchall()
        runs = db.execute("SELECT tool_name, state FROM tool_runs ORDER BY id").fetchall()
    if approvals != [("approved", f"telegram:{asked}")]:
        found.append(f"the approvals are {approvals}")
    ran = world.effects_of("signed")
    states = dict(runs)
    if (
        len(runs) != 2
        or states.get("dump") != "done"
        or (states.get("sign"), ran) not in (("done", 1), ("unknown", ran))
    ):
        found.append(f"the runs are {runs}, and the call ran {ran} times")
    if ran > 1:
        found.append(f"the call ran {ran} times")
    found += await model_problems(world)
    if asked == CHAT:
        return [*found, *await _screen_problems(world, CHAT, YES, ANSWER)]
    found += await _screen_problems(world, CHAT, ANSWER)
    return [*found, *await _screen_problems(world, asked, HELLO, YES)]


async def _screen_problems(world: World, chat_id: int, *expected: str) -> list[str]:
    """Return the problems on screen. A copy of the question whose id was lost in a kill keeps its buttons."""
    shown = await world.visible(chat_id)
    asked = [text for text in shown if QUESTION in text]
    closed = [text for text in asked if "Approved by" in text]
    found = [] if len(closed) == 1 else [f"{len(closed)} messages say that the question was answered"]
    if len(asked) - len(closed) > world.kill_count:
        found.append(f"the question is on screen {len(asked)} times")
    return [*found, *await screen_problems(world, chat_id, *expected, ignored=QUESTION)]
