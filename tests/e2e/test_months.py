"""A month of one conversation: hundreds of turns with tools, in a window that holds a few days of them.

What is said, answered and called in a turn follows from its number alone. A sample of the months is in `make test`; all
of them, 400 turns each, are run by `make months`.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hermes_state.search.full_text import search
from hermes_state.sessions import get_compression_tip
from hermes_state.store.sql import Connection
from hermes_state.transcripts import load_messages
from hermes_state.values import LineageId, MessageRole, Origin, SessionId
from tests.e2e.chats import Chat, chat_on
from tests.e2e.lossless import check_tree, find_the_first
from tests.e2e.protocols import ModelProtocol
from tests.e2e.with_engine import FOLDER, run_with_engine
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World
from tests.fakes.fake_llm import LLM_KEY

LEAST_COMPRESSIONS = 10
UNHURRIED = {"HERMES_SESSIONS__MESSAGES_PER_MINUTE": "0"}
"""A month is said in a minute or two."""
TALK = (
    "We looked at the harbour and wrote down what each boat costs. ",
    "港口的每一条船都记在登记簿里，价格以前天的为准。",
    "港の船はすべて台帳に書いてあり、値段は一昨日のものです。",
    "항구의 모든 배는 장부에 적혀 있고 가격은 그저께 것입니다. ",
    "كل قارب في الميناء مكتوب في السجل مع سعره في أول أمس. ",
    "⛵🚤🛥️ in at 🌅, out at 🌇 👍🏽 — 💰 as ever. ",
    "for boat in register.boats(day=3):\n    print(f'{boat.name}: {boat.price:,.2f}')\n",
)


@dataclass(frozen=True, slots=True)
class Month:
    """How much is said, so that the window is filled often enough."""

    model: str
    context_length: int
    turns: int
    said: int
    """Characters of a person's message."""
    lines: int
    """Of the register, about thirty tokens each."""
    every: int
    """So many turns, one reads the register."""
    engine: str = "compressor"


MONTHS = (
    Month("lab-8k", 8_192, 400, said=200, lines=8, every=4),
    Month("lab-32k", 32_768, 400, said=600, lines=25, every=2),
    Month("lab-128k", 131_072, 400, said=1_200, lines=60, every=1),
)
SAMPLE = Month("lab-8k", 8_192, 60, said=900, lines=12, every=3)


def message_of(month: Month, number: int) -> str:
    talk = TALK[number % len(TALK)]
    return f"TURN-{number:04d} {talk * (month.said // len(talk) + 1)}"[: month.said].strip()


def answer_of(number: int) -> str:
    return f"ANSWER-{number:04d}: {TALK[number % len(TALK)] * 2}END-{number:04d}"


def calls_of(month: Month, number: int) -> list[dict[str, Any]]:
    """Tool calls of a turn: the register, now and then a look at what was said long ago."""
    calls = []
    if number % month.every == 0:
        calls.append({"name": "register", "arguments": {"mark": f"REGISTER-{number:04d}", "lines": month.lines}})
    if number % 10 == 7:
        calls.append({"name": "history_search", "arguments": {"query": f"TURN-{number // 2:04d}"}})
    if number % 25 == 24:
        calls.append({"name": "history_open", "arguments": {"id": "m1"}})
    if month.engine == "lossless" and number % 10 == 3:
        calls.append({"name": "lcm_grep", "arguments": {"pattern": f"turn-{number // 3:04d}"}})
    return calls


async def live(world: World, chat: Chat, month: Month) -> None:
    """Every turn of the month, each said when the one before was answered."""
    llm = world.llm_app[LLM_KEY]
    llm.config["log_bodies"] = False
    for number in range(1, month.turns + 1):
        turn = {"match": f"TURN-{number:04d} ", "has_tools": True, "times": -1}
        llm.scripts.clear()
        calls = calls_of(month, number)
        if calls:
            llm.add_scripts([{**turn, "last_role": "user", "tool_calls": calls}])
        llm.add_scripts([{**turn, "text": answer_of(number)}])
        await chat.ask(message_of(month, number), f"END-{number:04d}")


def check_lineage(db: Connection) -> LineageId:
    columns = "id, lineage_id, depth, parent_session_id, started_at, ended_at, end_reason, kind"
    rows = db.execute(f"SELECT {columns} FROM sessions ORDER BY id").fetchall()
    [lineage_id] = {row[1] for row in rows}
    assert [row[2] for row in rows] == list(range(len(rows)))
    for parent, child in pairwise(rows):
        assert (child[3], child[7]) == (parent[0], "continuation")
        assert parent[6] == "compression"
        assert child[4] >= parent[5] >= parent[4]
    assert rows[-1][5:7] == (None, None)
    assert {get_compression_tip(db, SessionId(row[0])) for row in rows} == {rows[-1][0]}
    events = db.execute("SELECT parent_id, child_id FROM compressions WHERE outcome = 'compressed' ORDER BY id")
    assert events.fetchall() == [(parent[0], child[0]) for parent, child in pairwise(rows)]
    return LineageId(lineage_id)


def check_rows(db: Connection, lineage_id: LineageId, month: Month) -> None:
    """Everything said is there, as it was said, and is found by its words."""
    numbers = range(1, month.turns + 1)
    said = load_messages(db, lineage_id, 1_000_000)
    assert [row.text for row in said if row.origin is Origin.HUMAN] == [message_of(month, one) for one in numbers]
    answers = [row.text for row in said if row.origin is Origin.ASSISTANT and row.text]
    assert answers == [answer_of(one) for one in numbers]
    expected = Counter(call["name"] for one in numbers for call in calls_of(month, one))
    results = [row for row in said if row.role is MessageRole.TOOL]
    assert Counter(row.tool_name for row in results) == expected
    for row in said:
        text = row.text or ""
        if not text:
            continue  # an answer of calls alone
        word = next(
            (piece for piece in text.split() if piece.strip(":").startswith(("TURN-", "ANSWER-", "REGISTER-"))), ""
        )
        found = search(db, word.strip(":"), lineage_id=lineage_id, role=row.role, limit=1_000)
        assert row.id in {hit.message_id for hit in found}, text[:80]
        assert all(hit.session_id == row.session_id for hit in found if hit.message_id == row.id)
    for row in results:
        if row.tool_name == "history_search":
            assert "found, best first" in (row.text or "")
        if row.tool_name == "history_open":
            assert "TURN-0001" in (row.text or "")
        if row.tool_name == "lcm_grep":
            assert " user in " in (row.text or ""), row.text


async def spend_on(platform: str, month: Month, folder: Path, protocol: ModelProtocol, plugins: Path) -> None:
    """`plugins`: folder of the installed engine."""
    program = run_with_tools if month.engine == "compressor" else run_with_engine
    async with chat_on(platform, folder, protocol, program=program) as chat:
        chat.world.gateway.environ[FOLDER] = str(plugins)
        await spend(chat.world, chat, month)


async def spend(world: World, chat: Chat, month: Month) -> None:
    """A month, and everything that has to be true behind it."""
    await chat.start(
        **UNHURRIED,
        HERMES_MODEL__NAME=world.protocol.prefix + month.model,
        HERMES_MODEL__CONTEXT_LENGTH=str(month.context_length),
        HERMES_SESSIONS__MERGE_SECONDS="0",
        HERMES_CONTEXT__ENGINE=month.engine,
    )
    await live(world, chat, month)
    # Where each request names an output limit, a view that an engine made is measured when it is sent: now and then one
    # is longer than it was thought, and goes again with a lower limit.
    again = {"output_cap"} if month.engine != "compressor" and world.protocol.name == "anthropic" else set()
    assert await world.outcomes() <= {"ok"} | again, "nothing was refused, nothing failed"
    with world.connected() as db:
        lineage_id = check_lineage(db)
        check_rows(db, lineage_id, month)
        count = db.execute("SELECT count(*) FROM compressions WHERE outcome = 'compressed'").fetchone()[0]
        assert count >= LEAST_COMPRESSIONS
        assert db.execute("SELECT DISTINCT summary_kind FROM compressions").fetchall() == [("model",)]
        assert db.execute("SELECT state, count(*) FROM turns GROUP BY 1").fetchall() == [("finished", month.turns)]
        assert db.execute("SELECT count(*) FROM outbox WHERE kind = 'error'").fetchall() == [(0,)]
        if month.engine == "lossless":
            check_tree(world, db, lineage_id)
    await check_history(chat, month)
    if month.engine == "lossless":
        await find_the_first(world, chat)
    assert await world.gateway.stop() == 0


async def check_history(chat: Chat, month: Month) -> None:
    """What the newest messages were, in the chat; long since compressed ones among them."""
    before = len(await chat.texts())
    await chat.ask("/history 50", f"ANSWER-{month.turns:04d}")
    shown = "".join((await chat.texts())[before:])
    for number in range(month.turns - 24, month.turns + 1):
        assert f"TURN-{number:04d} " in shown
        assert f"ANSWER-{number:04d}: " in shown


@pytest.mark.parametrize(("platform", "engine"), [("telegram", "compressor"), ("discord", "lossless")])
async def test_a_busy_week_on_a_small_model(
    tmp_path: Path, protocol: ModelProtocol, platform: str, engine: str, lossless: Path
) -> None:
    await spend_on(platform, replace(SAMPLE, engine=engine), tmp_path, protocol, lossless)


@pytest.mark.months
@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", ["telegram", "discord"])
@pytest.mark.parametrize("month", MONTHS, ids=lambda month: month.model)
@pytest.mark.parametrize("engine", ["compressor", "lossless"])
async def test_a_month(
    tmp_path: Path, protocol: ModelProtocol, platform: str, month: Month, engine: str, lossless: Path
) -> None:
    await spend_on(platform, replace(month, engine=engine), tmp_path, protocol, lossless)
