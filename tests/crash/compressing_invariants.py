"""Checks after every run of the compression scenario, wherever the kill happened."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from hermes_state.search.full_text import search
from platforms.telegram.rendering import REPEAT_MARK
from tests.crash.compressing import ANSWERS, CHAT, COMPRESSED, HUMAN, LAYERS, MARKS, OFTEN, WORKING
from tests.crash.invariants import copies, file_problems, model_problems, opened, undecided_rows
from tests.crash.world import World

_PRESSURE = re.compile(r"\n\n\d+ % of the way to the next compression .*")
"""Notice below an answer. It is lost if the process is killed just before the answer is stored."""


async def problems_of(world: World) -> list[str]:
    """Return all broken promises, one sentence each."""
    with closing(opened(world.home / "state.db")) as db:
        found = [
            *undecided_rows(db),
            *_said(db),
            *_lineage(db),
            *_summaries(db, world.kill_count),
            *_view(db),
            *file_problems(db),
        ]
    found += _seen(await world.visible(CHAT), world.kill_count)
    return found + await model_problems(world)


async def problems_in_background_of(world: World) -> list[str]:
    """Return the problems of a run that was killed during a background summary, which must be applied or discarded."""
    with closing(opened(world.home / "state.db")) as db:
        found = [*undecided_rows(db), *_view(db), *file_problems(db)]
        human = [row[0] for row in db.execute("SELECT text FROM messages WHERE origin = 'human' ORDER BY id")]
        splits = db.execute(
            """SELECT p.depth, c.depth FROM compressions e JOIN sessions p ON p.id = e.parent_id
            JOIN sessions c ON c.id = e.child_id WHERE e.outcome = 'compressed' ORDER BY e.id"""
        ).fetchall()
        query = "SELECT count(*) FROM model_calls WHERE purpose = 'summary' AND outcome = 'ok'"
        paid = db.execute(query).fetchone()[0]
        records = db.execute("SELECT count(*) FROM messages WHERE origin = 'summary'").fetchone()[0]
        depth = db.execute("SELECT max(depth) FROM sessions").fetchone()[0]
    if human != list(HUMAN):
        found.append(f"people said {[text[:20] for text in human]}")
    if not 1 <= len(splits) == records == depth or splits != [(number, number + 1) for number in range(depth)]:
        found.append(f"the compressions are {splits}, with {records} handoffs")
    if paid < len(splits):
        found.append(f"{paid} summaries were paid for")
    return found + await model_problems(world)


async def untouched_background_problems_of(world: World) -> list[str]:
    """Check that every request for a summary is recorded in `model_calls`."""
    asked = [row for row in await world.llm.get("requests") if row.get("summary")]
    with closing(opened(world.home / "state.db")) as db:
        known = db.execute("SELECT count(*) FROM model_calls WHERE purpose = 'summary'").fetchone()[0]
    return [] if known == len(asked) else [f"{len(asked)} summaries were asked for, {known} are in the ledger"]


async def untouched_problems_of(world: World) -> list[str]:
    """Return the additional problems of a run without a kill: summaries that were paid for or notices shown twice."""
    asked = [row for row in await world.llm.get("requests") if row.get("summary")]
    found = [] if len(asked) == len(LAYERS) else [f"{len(asked)} summaries were asked for"]
    return found + [f"{text[:40]!r} is marked" for text in await world.visible(CHAT) if REPEAT_MARK in text]


def _said(db: sqlite3.Connection) -> list[str]:
    """Check that no row was deleted: every message and answer exists once, complete, in order and searchable."""
    found = []
    human = [row[0] for row in db.execute("SELECT text FROM messages WHERE origin = 'human' ORDER BY id")]
    if human != list(HUMAN):
        found.append(f"people said {[text[:20] for text in human]}")
    by_origin = dict(db.execute("SELECT origin, count(*) FROM messages GROUP BY origin").fetchall())
    # `collect` has two steps with two calls each before its answer. Each handoff has a row.
    if by_origin != {"human": 8, "assistant": 8 + 2, "tool": 4, "summary": 3}:
        found.append(f"the rows are {by_origin}")
    hits = len(search(db, "harbour", limit=50))
    if hits < 8:
        found.append(f"the search finds {hits} rows")
    return found


def _lineage(db: sqlite3.Connection) -> list[str]:
    """Check that every session but the newest was ended by the one compression that created its child."""
    found = []
    rows = db.execute(
        """SELECT s.depth, s.end_reason, p.depth, c.active_session_id = s.id, s.started_at >= coalesce(p.ended_at, 0)
        FROM sessions s JOIN chats c ON c.id = s.chat_id LEFT JOIN sessions p ON p.id = s.parent_session_id
        WHERE c.chat_ref = ? ORDER BY s.depth""",
        (str(CHAT),),
    ).fetchall()
    last = len(LAYERS)
    expected = [
        (depth, "compression" if depth < last else None, depth - 1 if depth else None, depth == last, 1)
        for depth in range(last + 1)
    ]
    if rows != expected:
        found.append(f"the lineage is {rows}")
    events = db.execute(
        """SELECT e.layer, e.summary_kind, p.depth, c.depth, e.tokens_after < e.tokens_before FROM compressions e
        JOIN sessions p ON p.id = e.parent_id JOIN sessions c ON c.id = e.child_id
        WHERE e.outcome = 'compressed' ORDER BY e.id"""
    ).fetchall()
    if events != [(layer, "model", depth, depth + 1, 1) for depth, layer in enumerate(LAYERS)]:
        found.append(f"the compressions are {events}")
    return found


def _summaries(db: sqlite3.Connection, kill_count: int) -> list[str]:
    """Check that the cost of each summary is known, and that each summary includes the previous one."""
    found = []
    calls = db.execute(
        "SELECT outcome, count(*) FROM model_calls WHERE purpose = 'summary' GROUP BY outcome"
    ).fetchall()
    # A killed attempt has no row. An attempt whose connection was frozen, or that was killed before the split, might
    # have been repeated after the restart.
    if not len(LAYERS) <= dict(calls).get("ok", 0) <= len(LAYERS) + kill_count:
        found.append(f"the ledger's summaries are {calls}")
    texts = [row[0] for row in db.execute("SELECT text FROM messages WHERE origin = 'summary' ORDER BY id")]
    if [mark for text in texts for mark in MARKS if mark in text] != list(MARKS):
        found.append("the handoffs are " + json.dumps([text[-80:] for text in texts]))
    return found


def _view(db: sqlite3.Connection) -> list[str]:
    """Check what the model sees now: one handoff, no row twice, and nothing from another conversation."""
    shown = db.execute(
        """SELECT m.origin, m.id, s.lineage_id, t.lineage_id FROM chats c
        JOIN session_context x ON x.session_id = c.active_session_id JOIN messages m ON m.id = x.message_id
        JOIN sessions s ON s.id = m.session_id JOIN sessions t ON t.id = c.active_session_id
        WHERE c.chat_ref = ? ORDER BY x.pos""",
        (str(CHAT),),
    ).fetchall()
    found = []
    if [origin for origin, *_ in shown].count("summary") != 1:
        found.append(f"the view begins with {shown}")
    if len({message_id for _, message_id, *_ in shown}) != len(shown):
        found.append("the view shows a row twice")
    if any(own != tip for *_, own, tip in shown):
        found.append("the view shows another conversation")
    return found


def _seen(visible: Sequence[str], kill_count: int) -> list[str]:
    """Check that each answer and notice is visible once. Each kill allows one more copy, marked as a possible
    repeat."""
    counts = Counter(_kind(text) for text in visible)
    found = []
    for text in (*ANSWERS, COMPRESSED, OFTEN):
        if not counts[text] + counts[REPEAT_MARK + text]:
            found.append(f"{text[:40]!r} is not on screen")
    for text in (*ANSWERS, COMPRESSED, OFTEN, WORKING):
        found += copies(counts, text, kill_count)
    return found + [f"nobody expects {text[:80]!r} on screen" for text in counts]


def _kind(text: str) -> str:
    """Return a text in the form in which texts are compared, without the numbers of a notice."""
    mark = REPEAT_MARK if text.startswith(REPEAT_MARK) else ""
    plain = _PRESSURE.sub("", text.removeprefix(REPEAT_MARK))
    return mark + next((kind for kind in (COMPRESSED, OFTEN) if plain.startswith(kind)), plain)
