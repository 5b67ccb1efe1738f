"""People search with the keyboard that they have, and find what was said with another one."""

import random
import sqlite3
import unicodedata
from contextlib import closing
from pathlib import Path

from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import complete_index
from tests.databases import sqlite_only
from tests.e2e.chats import Chat
from tests.e2e.world import World

SAID = (
    unicodedata.normalize("NFD", "나는 한국어를 배운다"),
    "製品ＡＢＣ１２３です",
    "قال مُحَمَّدٌ ذلك",
    "ฉันกินข้าวแล้ว",
)
ASKED = ("한국어", "abc123", "محمد", "ข้าว")


async def test_words_in_another_form_are_found(chat: Chat) -> None:
    await chat.start(HERMES_ACCESS__ADMINS=chat.person)
    await chat.world.script(text="I see.", times=4)
    for said in SAID:
        await chat.ask(said, "I see")
    for said, query in zip(SAID, ASKED, strict=True):
        assert said in await chat.ask(f"/search {query}", said)


FILL = """WITH RECURSIVE number(seq) AS (SELECT 1000 UNION ALL SELECT seq + 1 FROM number WHERE seq < 16000)
  INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, created_at)
  SELECT m.session_id, m.chat_id, m.lineage_id, number.seq, m.role, m.origin, some_words(), m.created_at
  FROM messages m, number WHERE m.id = 1"""
LARGEST = """SELECT max(size) * 1.0 / sum(size)
  FROM (SELECT count(*) AS size FROM messages_fts_idx GROUP BY segid)"""
"""Share of the search index that is in its largest part. Later messages would have to merge the others."""
IS_MERGING = "SELECT count(*) FROM meta WHERE key = 'search_floor' AND value = '0'"


def fill(path: Path) -> None:
    """Load many messages into an ended conversation, and mark the search index as made by an earlier version."""
    words = random.Random(7)
    with closing(sqlite3.connect(path)) as db, db:
        register_functions(db)
        db.create_function("some_words", 0, lambda: " ".join(f"w{words.randrange(10**6)}" for _ in range(60)))
        db.execute(FILL)
        complete_index(db)
        db.execute("UPDATE meta SET value = '1' WHERE key = 'segment_version'")


@sqlite_only
async def test_a_gateway_answers_while_it_rebuilds_and_merges_a_large_index(world: World) -> None:
    await world.gateway.start()
    await world.converse("hello", "/new")
    assert await world.gateway.stop() == 0
    fill(world.home / "state.db")
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42", HERMES_SESSIONS__MESSAGES_PER_MINUTE="6000")
    await world.gateway.wait_for_log("search.rebuild_started")
    number, phases = 0, set()
    while "search.rebuilt" not in world.gateway.log_text():
        number += 1
        [(is_merging,)] = world.query(IS_MERGING)
        await world.converse(f"number {number};")
        phases.add(is_merging)
    assert phases == {0, 1}, "it answered while the index was filled, and while it was merged"
    [(share,)] = world.query(LARGEST)
    assert share > 0.9
    await world.ask("/search hello", "m1 .* session")
