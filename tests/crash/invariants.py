"""Checks after every run, wherever the kill happened."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path

from gateway.inbound.admission import NOT_TAKEN
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import add_words
from platforms.telegram.rendering import REPEAT_MARK
from platforms.text import UNFINISHED
from tests.crash.scenario import (
    BEHIND,
    CHAT,
    GOODBYE_ANSWER,
    GROUP,
    HELLO_ANSWER,
    JOINED,
    KEYS,
    LONG_PARTS,
    STEER_ANSWER,
    TITLE_REPLY,
    UNKNOWN,
)
from tests.crash.world import World
from tests.fakes.llm_legality import untidy


class Label(StrEnum):
    """Ways to tell people and the model that an outcome is not known."""

    OUTCOME_UNKNOWN = "a tool's outcome is unknown"
    POSSIBLE_REPEAT = "a message is possibly a repeat"


async def labels_of(world: World) -> set[Label]:
    """Return the labels that were used in a run."""
    with closing(opened(world.home / "state.db")) as db:
        is_unknown = db.execute("SELECT 1 FROM tool_runs WHERE state = 'unknown'").fetchone() is not None
    shown = [*await world.visible(CHAT), *await world.visible(GROUP)]
    found = {Label.OUTCOME_UNKNOWN} if is_unknown else set()
    return found | ({Label.POSSIBLE_REPEAT} if any(REPEAT_MARK in text for text in shown) else set())


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: every outcome must be known, and notices must arrive in
    time."""
    visible = await world.visible(CHAT)
    found = [f"without a kill: {label}" for label in await labels_of(world)]
    if STEER_ANSWER in visible:
        found.append("the steer did not join the turn that ran")
    if not {JOINED, BEHIND} <= set(visible):
        found.append("a steer or a command was not acknowledged while the tool waited")
    return found


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *_turns(db), *_lineage(db), *_tools(db, world.effects), *file_problems(db)]
    found += _seen(await world.visible(CHAT), world.kill_count)
    found += _seen_in_group(await world.visible(GROUP), world.kill_count)
    return found + await model_problems(world)


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    register_functions(db)
    return db


# ---- the database --------------------------------------------------------------------------------------------------


def undecided_rows(db: sqlite3.Connection) -> list[str]:
    """Check that no row is in an undecided state."""
    found = []
    for table, settled in (
        ("inbox", ("done",)),
        ("outbox", ("sent",)),
        ("turns", ("finished",)),
        ("tool_runs", ("done", "unknown")),
    ):
        for state, count in db.execute(f"SELECT state, count(*) FROM {table} GROUP BY state").fetchall():
            if state not in settled:
                found.append(f"{count} rows of {table} are {state}")
    return found


def _turns(db: sqlite3.Connection) -> list[str]:
    """Check that every message is in exactly one turn, and that the turn has an answer."""
    found = []
    told = db.execute("SELECT id, kind FROM inbox ORDER BY id").fetchall()
    kinds = Counter(kind for _, kind in told)
    if kinds != {"message": 4, "command": 1}:
        found.append(f"the inbox holds {dict(kinds)}")
    for inbox_id, kind in told:
        turns = db.execute("SELECT turn_id FROM messages WHERE inbox_id = ?", (inbox_id,)).fetchall()
        if len(turns) != (1 if kind == "message" else 0):
            found.append(f"inbox row {inbox_id} ({kind}) has {len(turns)} transcript rows")
        for (turn_id,) in turns:
            query = "SELECT count(*) FROM messages WHERE turn_id = ? AND role = 'assistant' AND body IS NULL"
            answers = db.execute(query, (turn_id,)).fetchone()[0]
            owed = db.execute("SELECT count(*) FROM outbox WHERE turn_id = ? AND part = 0", (turn_id,)).fetchone()[0]
            if (answers, owed) != (1, 1):
                found.append(f"turn {turn_id} has {answers} answers and {owed} replies")
    return found


def _lineage(db: sqlite3.Connection) -> list[str]:
    """Check that the private chat's conversation was split once, has one open session, and that children start after
    parents."""
    found = []
    rows = db.execute(
        """SELECT s.depth, s.ended_at IS NULL, s.end_reason, s.parent_session_id IS NULL, c.active_session_id = s.id
        FROM sessions s JOIN chats c ON c.id = s.chat_id WHERE c.chat_ref = ? ORDER BY s.depth""",
        (str(CHAT),),
    ).fetchall()
    if rows != [(0, 0, "compression", 1, 0), (1, 1, None, 0, 1)]:
        found.append(f"the lineage is {rows}")
    if (count := db.execute("SELECT count(*) FROM compressions").fetchone()[0]) != 1:
        found.append(f"{count} compressions are recorded")
    query = (
        "SELECT count(*) FROM sessions c JOIN sessions p ON p.id = c.parent_session_id WHERE c.started_at < p.ended_at"
    )
    if db.execute(query).fetchone()[0]:
        found.append("a child session starts before its parent ends")
    return found


def _tools(db: sqlite3.Connection, effects: Path) -> list[str]:
    """Check that no tool that writes ran twice, and that calls with an unknown outcome are marked."""
    found = []
    ran = Counter(effects.read_text().split() if effects.exists() else [])
    query = """SELECT r.state, m.text, json_extract(c.value, '$.arguments') FROM tool_runs r
        JOIN messages a ON a.id = r.call_message_id JOIN json_each(a.body, '$.calls') c
          ON json_extract(c.value, '$.id') = r.tool_call_id
        JOIN messages m ON m.turn_id = r.turn_id AND m.tool_call_id = r.tool_call_id
        WHERE r.tool_name IN ('note', 'hold')"""
    calls = db.execute(query).fetchall()
    if len(calls) != len(KEYS):
        found.append(f"{len(calls)} results of tools that write, {len(KEYS)} expected: {calls}")
    for key in KEYS:
        if ran[key] > 1:
            found.append(f"the call {key!r} ran {ran[key]} times")
        for state, text, arguments in calls:
            if key not in arguments:
                continue
            if state == "done" and (ran[key] != 1 or UNKNOWN in text):
                found.append(f"the call {key!r} is done, ran {ran[key]} times and says {text!r}")
            if state == "unknown" and UNKNOWN not in text:
                found.append(f"the call {key!r} is unknown and says {text!r}")
    return found


def file_problems(db: sqlite3.Connection) -> list[str]:
    """Check that the database file is intact, including its index."""
    found = []
    if (check := db.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
        found.append(f"integrity_check: {check}")
    if broken := db.execute("PRAGMA foreign_key_check").fetchall():
        found.append(f"foreign_key_check: {broken}")
    try:
        while add_words(db):
            pass
        db.execute("INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        found.append(f"the search index: {error}")
    db.rollback()
    return found


# ---- the screen ----------------------------------------------------------------------------------------------------


def _seen(visible: Sequence[str], kill_count: int) -> list[str]:
    """Check that each expected text is visible once and in order. Each kill allows one more copy, marked as a possible
    repeat."""
    expected = [HELLO_ANSWER, *LONG_PARTS, TITLE_REPLY]
    counts = Counter(visible)
    counts.pop(NOT_TAKEN, None)  # if the disk is busy, this notice bypasses the outbox, although the command runs
    found = []
    # If a steer arrives before its turn resumes, it waits for the turn's end like the command, and is answered
    # separately.
    behind_count = 1 + any(STEER_ANSWER in text for text in visible)
    for text in (*expected, STEER_ANSWER, JOINED, BEHIND):
        if text in expected and not counts[text] + counts[REPEAT_MARK + text]:
            found.append(f"{text[:40]!r} is not on screen")
        found += copies(counts, text, kill_count, most=behind_count if text == BEHIND else 1)
    found += [f"nobody expects {text[:80]!r} on screen" for text in counts]
    order = [text for text in dict.fromkeys(text.removeprefix(REPEAT_MARK) for text in visible) if text in expected]
    if order != expected:
        found.append(f"the order on screen is {[text[:24] for text in order]}")
    return found


async def screen_problems(
    world: World, chat_id: int, *expected: str, optional: Sequence[str] = (), ignored: str | None = None
) -> list[str]:
    """Check that a chat shows one message with each expected text, and no other messages but `optional` ones.

    Ignores messages that contain the text `ignored`.
    """
    counts = Counter(text for text in await world.visible(chat_id) if ignored is None or ignored not in text)
    counts.pop(NOT_TAKEN, None)  # if the disk is busy, this notice bypasses the outbox, although the command runs
    found = []
    for words in (*expected, *optional):
        seen = next((text for text in counts if words in text), "").removeprefix(REPEAT_MARK)
        found += copies(counts, seen, world.kill_count) if seen else []
        if not seen and words in expected:
            found.append(f"{words!r} is not on screen")
    return found + [f"nobody expects {text[:80]!r} on screen" for text in counts]


async def model_problems(world: World) -> list[str]:
    """Check that every request to the model was legal and tidy."""
    return [f"the model was sent {row}" for row in untidy(await world.llm.get("violations"))]


async def unknown_runs(world: World) -> list[str]:
    """Check that the outcome of every call is known, as it must be in a run without a kill."""
    with closing(opened(world.home / "state.db")) as db:
        states = db.execute("SELECT DISTINCT state FROM tool_runs").fetchall()
    return [] if states == [("done",)] else [f"the runs are {states}"]


def copies(counts: Counter[str], text: str, kill_count: int, *, most: int = 1) -> list[str]:
    """Remove the copies of a text from `counts`, and report if there are too many."""
    plain, marked = counts.pop(text, 0), counts.pop(REPEAT_MARK + text, 0)
    if plain <= most and marked <= kill_count:
        return []
    return [f"{text[:40]!r} is on screen {plain} times, and {marked} times marked as a possible repeat"]


def _seen_in_group(visible: Sequence[str], kill_count: int) -> list[str]:
    """Check that the last answer is visible once. A placeholder whose id was lost in a kill can remain above it."""
    counts = Counter(visible)
    found = [] if GOODBYE_ANSWER in " ".join(visible) else [f"{GOODBYE_ANSWER!r} is not on screen"]
    found += copies(counts, GOODBYE_ANSWER, kill_count)
    found += [
        f"nobody expects {text[:80]!r} in the group"
        for text in counts
        if not GOODBYE_ANSWER.startswith(text.removesuffix(UNFINISHED))
    ]
    if counts.total() > kill_count:
        found.append(f"{counts.total()} placeholders are left in the group")
    return found
