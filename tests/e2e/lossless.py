"""Checks of the tree that the example engine keeps, and searches in it through the model's tools."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from hermes_state.store.sql import Connection
from hermes_state.transcripts import load_messages, load_view
from hermes_state.values import LineageId, Origin, parse_recall_id
from tests.e2e.chats import Chat
from tests.e2e.world import World
from tests.fakes.fake_llm import LLM_KEY

RESULT = "SELECT text FROM messages WHERE tool_name = ? ORDER BY id DESC LIMIT 1"


def tree_of(world: World) -> Path:
    """Return the path of the only conversation's tree."""
    [path] = (world.home / "context_engines" / "lossless").glob("*/tree.db")
    return path


def check_tree(world: World, db: Connection, lineage_id: LineageId) -> None:
    """Check that every message is stored unchanged, and that the handoff's nodes cover all messages out of view."""
    with closing(sqlite3.connect(tree_of(world))) as tree:
        kept = {parse_recall_id(one): text for one, text in tree.execute("SELECT id, text FROM messages")}
    nodes = nodes_of(tree_of(world))
    said = load_messages(db, lineage_id, 1_000_000)
    view = load_view(db, lineage_id).transcript
    [handoff] = [row.text or "" for row in view if row.origin is Origin.SUMMARY]
    tops = [int(name) for name in re.findall(r"n(\d+)", handoff.partition("\n")[0])]
    covered = [one for top in tops for one in nodes[top][1]]
    assert len(covered) == len(set(covered)), "a message is under one node of the top only"
    in_view = {row.id for row in view}
    out_of_view = {row.id: row.text or "" for row in said if row.id not in in_view}
    assert all(text in kept[one] for one, text in out_of_view.items()), "a message is kept as it was said"
    assert {parse_recall_id(one) for one in covered} >= out_of_view.keys()
    assert all(len(below) <= 4 for below, _ in nodes.values())
    for below, covers in nodes.values():
        assert not below or [one for child in below for one in nodes[int(child[1:])][1]] == covers


def nodes_of(path: Path) -> dict[int, tuple[list[str], list[str]]]:
    """Return the children of each node, and the messages that it covers."""
    with closing(sqlite3.connect(path)) as tree:
        rows = tree.execute("SELECT id, children, covers FROM nodes").fetchall()
    return {one: (json.loads(below), json.loads(covers)) for one, below, covers in rows}


async def call(world: World, chat: Chat, name: str, **arguments: Any) -> Any:
    """Script the model to call a tool, and return the tool's result."""
    llm = world.llm_app[LLM_KEY]
    llm.scripts.clear()
    number = world.query("SELECT count(*) FROM turns")[0][0]
    turn = {"match": f"CALL-{number} ", "has_tools": True, "times": -1}
    llm.add_scripts([{**turn, "last_role": "user", "tool_calls": [{"name": name, "arguments": arguments}]}])
    llm.add_scripts([{**turn, "text": f"DONE-{number}."}])
    await chat.ask(f"CALL-{number} now", f"DONE-{number}.")
    return json.loads(world.query(RESULT, name)[0][0])


async def find_the_first(world: World, chat: Chat) -> None:
    """Find the first message, once by a search for its text and once by opening nodes from the top of the tree."""
    found = await call(world, chat, "lcm_grep", pattern=r"turn-0001\s", regex=True)
    [(message, leaf)] = set(re.findall(r"(m\d+) user in (n\d+): ", "\n".join(found["lines"])))
    assert "TURN-0001 " in (await call(world, chat, "lcm_expand", node=message))["lines"][0]
    assert "TURN-0001 " in (await call(world, chat, "lcm_expand", node=leaf))["lines"][0]
    described = await call(world, chat, "lcm_describe")
    node, seen = re.findall(r"^(n\d+) \(", described["lines"][1])[0], []
    while node not in seen:
        seen.append(node)
        [text, *_] = (await call(world, chat, "lcm_expand", node=node))["lines"]
        node = next(iter(re.findall(r"^(n\d+) \(\d+ messages, m", text, re.MULTILINE)), node)
    assert seen[-1] == leaf
    assert "TURN-0001 " in text
