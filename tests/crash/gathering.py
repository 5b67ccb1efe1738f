"""Scenario: talk in a group, a turn whose step is shown, a long document, and a failed turn with a button.

Wherever the daemon is killed, the turn sees the talk once and in order, every part of the document belongs to its
message, and the button to retry disappears when a later turn succeeds.
"""

import base64
from contextlib import closing

from tests.crash.daemon import HOLD_DONE
from tests.crash.invariants import file_problems, model_problems, opened, undecided_rows
from tests.crash.scenario import CHAT, GROUP, UNKNOWN
from tests.crash.world import World

TALK = ("shall we have lunch?", "noon is fine")
LUNCH, READ, HELLO = "They have lunch at noon.", "The register is read.", "Hello again."
FAILED = "/retry"
REGISTER = "\n".join(f"{number}: a boat came in and brought what boats bring" for number in range(4_500))
PARTS = 2
ENVIRON = {"HERMES_GROUPS__CONTEXT": "on"}
SCRIPT: list[dict[str, object]] = [
    {"match_any": f"{HOLD_DONE}|{UNKNOWN}", "text": LUNCH},
    {"match": "when is lunch", "tool_calls": [{"name": "hold", "arguments": {"key": "held"}}]},
    {"match": "read the register", "text": READ},
    {"match": "hello", "text": HELLO},
    {"match": "break", "no_choices": True},
]


async def play(world: World) -> None:
    """Run the scenario to its end, even if the daemon is killed. Raises `Stuck` if a step does not happen."""
    await world.begin(SCRIPT, CHAT, GROUP)
    for text in TALK:
        await world.say(GROUP, text)
    await world.say(GROUP, "@lab_gateway_bot when is lunch?")

    async def is_step_shown() -> bool:
        is_over = any(UNKNOWN in text for text in world.model_texts)
        return is_over or any("hold" in text for text in await world.visible(GROUP))

    await world.until("the step is on screen, or its outcome is unknown", is_step_shown)
    world.release_holds()
    await world.until_seen(GROUP, LUNCH)
    data = base64.b64encode(REGISTER.encode()).decode()
    file = {"media": "document", "file_name": "register.txt", "mime": "text/plain", "file_b64": data}
    await world.telegram.post("message", {"chat_id": CHAT, "user_id": CHAT, "caption": "read the register", **file})
    await world.until_seen(CHAT, READ)
    await world.say(CHAT, "break")
    await world.until_seen(CHAT, FAILED)
    await world.say(CHAT, "hello")
    await world.until_seen(CHAT, HELLO)
    await world.end()


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *file_problems(db)]
        talk = db.execute("SELECT text FROM messages WHERE origin = 'talk' ORDER BY id").fetchall()
        kept = db.execute("SELECT text FROM talk ORDER BY id").fetchall()
        whole = db.execute(
            """SELECT group_concat(json_extract(body, '$.documents[0].text'), '') FROM (SELECT body FROM messages
            WHERE body LIKE '%"documents"%' ORDER BY seq > 0 DESC, id)"""
        ).fetchone()[0]
        parts = db.execute(
            """SELECT count(*), count(m.id), count(DISTINCT m.id) FROM messages p LEFT JOIN messages m
            ON m.id = p.replaces_id AND m.text = 'read the register' AND m.lineage_id = p.lineage_id
            WHERE p.seq < 0 AND p.indexed = 1"""
        ).fetchone()
        offers = db.execute("SELECT topic FROM live_buttons").fetchall()
    found = [one for one in found if one != "1 rows of turns are failed"]
    if talk != [(text,) for text in TALK] or kept != talk:
        found.append(f"the turn has seen {talk} of the talk {kept}")
    if whole != REGISTER or parts != (PARTS, PARTS, 1):
        found.append(f"the document has {len(whole)} of {len(REGISTER)} characters, in parts {parts}")
    if offers:
        found.append(f"buttons are left: {offers}")
    chat = await world.telegram.get(f"chat/{CHAT}")
    if labels := [row["reply_markup"] for row in chat["messages"] if row.get("reply_markup")]:
        found.append(f"buttons are on screen: {labels}")
    return [*found, *await model_problems(world)]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: the line about the step was shown and removed."""
    shown = await world.visible(GROUP)
    return [] if not any("hold" in text for text in shown) else [f"without a kill: {shown}"]
