"""Scenario: several people write while the daemon is down, one of them a command. One poll fetches all messages.

The messages before the command are stored in one commit, then the command, then the later messages. Wherever the daemon
is killed, each message is answered once, in the order of its chat.
"""

from contextlib import closing

from tests.crash.invariants import file_problems, opened, screen_problems, undecided_rows
from tests.crash.world import World

BEFORE = (42, 43, 44)
AFTER = (45, 46)
TITLE = "/title Together"
TITLE_REPLY = "This conversation is now called “Together”."
BEHIND = "Queued until the current answer is finished. /stop ends that answer now."


def answer(chat_id: int) -> str:
    return f"Answer for {chat_id}."


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    asked = [{"chat_id": chat_id, "user_id": 42, "text": f"ask {chat_id}"} for chat_id in (*BEFORE, *AFTER)]
    asked.insert(len(BEFORE), {"chat_id": BEFORE[-1], "user_id": 42, "text": TITLE})
    await world.telegram.post("message", asked)
    await world.begin([{"match": f"ask {chat_id}", "text": answer(chat_id)} for chat_id in (*BEFORE, *AFTER)])
    await world.until_seen(BEFORE[-1], TITLE_REPLY)
    for chat_id in (*BEFORE, *AFTER):
        await world.until_seen(chat_id, answer(chat_id))
    await world.end()


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        rows = db.execute(
            "SELECT c.chat_ref, i.kind, i.message_ref FROM inbox i JOIN chats c ON c.id = i.chat_id ORDER BY i.id"
        ).fetchall()
    wanted = [str(one) for one in (*BEFORE, BEFORE[-1], *AFTER)]
    if [chat_ref for chat_ref, _, _ in rows] != wanted or [kind for _, kind, _ in rows].index("command") != len(BEFORE):
        found.append(f"the inbox is {rows}")
    for chat_id in (*BEFORE, *AFTER):
        found += await screen_problems(world, chat_id, answer(chat_id), optional=(TITLE_REPLY, BEHIND))
    return found


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: the messages around the command need two commits."""
    runs = [line for line in world.commits() if "admit_all" in line.split("+")]
    return [] if len(runs) == 2 else [f"the commits are {world.commits()}"]
