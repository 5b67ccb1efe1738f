"""Ids do not follow the commit order: with several writers, a row may appear after one with a higher id.

Inside a chat they do, because a writer takes the chat's lock before the first id. So code that stores an id as "seen up
to" must stay inside one chat, or it misses rows for ever.
"""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_state", "agent", "gateway", "platforms")
COMPARED = re.compile(r"\b(?:\w+_)?(?:row)?id (?:<|>)=? |\bmax\((?:\w+\.)?(?:row)?id\)", re.IGNORECASE)
"""An id compared with another, or the highest id of a table."""

ONE_CHAT = "rows of one chat, turn or conversation"
SQLITE = "SQLite's own full text, which one writer keeps"
ALLOWED: Mapping[str, tuple[int, str]] = {
    "agent/context/carried/choice.py": (2, ONE_CHAT),
    "agent/context/controller.py": (2, ONE_CHAT),
    "agent/tool_calls.py": (2, ONE_CHAT),
    "agent/turn.py": (1, ONE_CHAT),
    "agent/tools/recall.py": (1, "one search: what is before and after its hits"),
    "agent/tools/files/send_file.py": (1, ONE_CHAT),
    "gateway/commands/turns.py": (3, ONE_CHAT),
    "gateway/turns/bursts.py": (2, ONE_CHAT),
    "gateway/moving/conversations.py": (1, ONE_CHAT),
    "hermes_state/admin/lineage_queries.py": (1, "pages of one run: what begins meanwhile is the next one's, by time"),
    "hermes_state/admin/deletion.py": (3, "`begin` excludes all other transactions; the messages of one conversation"),
    "hermes_state/admin/copy.py": (1, "a database that nobody else has open"),
    "hermes_state/admin/repair.py": (1, "a file at rest"),
    "hermes_state/admin/retention.py": (3, "old rows in slices; the next run begins again at the first row"),
    "hermes_state/attachments.py": (2, "the order in which files go, nothing is remembered; the parts of one chat"),
    "hermes_state/chats.py": (1, ONE_CHAT),
    "hermes_state/engines/postgres/tsvector.py": (1, "a copy that nobody else has open"),
    "hermes_state/engines/sqlite/index.py": (3, SQLITE),
    "hermes_state/engines/sqlite/migrate.py": (1, SQLITE),
    "hermes_state/inbox.py": (4, "one chat; and the newest event of an account, which one node receives"),
    "hermes_state/journal.py": (1, ONE_CHAT),
    "hermes_state/web_chats.py": (1, ONE_CHAT),
    "hermes_state/search/fts5.py": (3, SQLITE),
    "hermes_state/search/fuzzy.py": (1, "one search: a match since a time; nothing is remembered"),
    "hermes_state/search/index.py": (4, SQLITE),
    "hermes_state/search/ranking.py": (3, "the first message of a day, and an estimate; nothing is remembered"),
    "hermes_state/search/relevance.py": (5, "one search: what is before and after its hits"),
    "hermes_state/search/tsquery.py": (3, "one search, from the newest to older ones"),
    "hermes_state/talk.py": (2, "one group; with `per_user`, a message of the same moment can be left out"),
    "hermes_state/transcripts.py": (2, ONE_CHAT),
    "hermes_state/turns.py": (3, ONE_CHAT),
    "platforms/discord/event_queue.py": (1, "ids that Discord gives, by time"),
}
"""Number of comparisons per file, and the reason why they miss nothing."""


def test_no_query_treats_an_id_as_a_high_water_mark() -> None:
    found = {
        str(path.relative_to(ROOT)): len(COMPARED.findall(path.read_text()))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path: count for path, count in found.items() if count} == {
        path: count for path, (count, _) in ALLOWED.items()
    }


def test_only_comparisons_of_ids_are_detected() -> None:
    meant = ["WHERE m.id > ?", "AND rowid <= :seen", "SELECT max(m.id) FROM", "if row.id < last:"]
    other = ["o.id <> outbox.id", "WHERE id = ?", "def new_id() -> int", "valid > 3"]
    assert list(filter(COMPARED.search, meant + other)) == meant
