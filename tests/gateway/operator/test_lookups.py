"""`hermes-gateway lineage | search | history | sessions`: same answers from the daemon and from the database file."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.operator.lookups import LOOKUPS, find_chat, find_place, look_up
from gateway.operator.socket import serve_control
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.errors import CommandError
from hermes_state.redaction import redact
from hermes_state.sessions import reset, set_title, start_session
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append, hide, load_view
from hermes_state.values import (
    ChatKey,
    ChatKind,
    Document,
    LineageId,
    MessageBody,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
)
from tests.databases import open_store
from tests.gateway.command_line import stored
from tests.gateway.helpers import Run
from tests.hermes_state.rows import START, exchange, key_of, migrated
from tests.hermes_state.search.test_full_text import start

KEY = "sk-abcdefghij0123456789"
LINEAGE_FIELDS = [
    *("session", "parent", "depth", "kind", "lineage", "platform", "account", "chat"),
    *("chat_name", "started_at", "ended_at", "end_reason", "messages"),
    *("layer", "tokens_before", "tokens_after", "focus", "summary_kind", "model"),
]
SEARCH_FIELDS = ["message", "session", "lineage", "chat", "role", "at", "text", "snippet", "score"]


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    return {**environ, "COLUMNS": "200"}


def fill(db: sqlite3.Connection) -> LineageId:
    """Store a conversation that was compressed once, one that was reset, and a group."""
    chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
    set_title(db, exchange(db, chat, "an older door", "closed").id, f"the key is {KEY}")
    reset(db, chat, Millis(START + 1_000))
    lineage = exchange(db, chat, f"the red door, {KEY}", "open", at=START + 2_000).lineage_id
    view = load_view(db, lineage)
    hide(db, view.session.id, [view.transcript[1].id], "undo", START)
    view = load_view(db, lineage)
    plan = SplitPlan(
        parent=view.session,
        context=(NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="handoff of the door"),),
        row=CompressionRow(
            layer="manual", focus="doors", summary_kind="model", model="small", tokens_before=900, tokens_after=90
        ),
    )
    split(db, plan, Millis(START + 3_000))
    exchange(db, chat, "and the window", "shut", at=START + 4_000)
    group = ensure_chat(db, key_of("-7"), ChatKind.GROUP, "Doors", START)
    exchange(db, group, "a door door door", "yes", at=START + 5_000)
    return lineage


@asynccontextmanager
async def answering(store: Store, home: Path) -> AsyncIterator[None]:
    """Serve the part of the daemon that the command line asks."""
    handlers = {name: partial(look_up, store, name, redact=redact) for name in LOOKUPS}
    async with serve_control(home / "control.sock", handlers):
        yield


async def said(run: Run, home: Path, *words: str) -> list[dict[str, Any]]:
    """Return the rows that `--json` prints, which must be the same from the file and from a daemon."""
    offline = await asyncio.to_thread(run, *words, "--json")
    assert offline.exit_code == 0, offline.output
    store = await open_store(home / "state.db")
    try:
        async with answering(store, home):
            running = await asyncio.to_thread(run, *words, "--json")
    finally:
        await store.close()
    assert running.output == offline.output
    rows: list[dict[str, Any]] = json.loads(offline.output)
    return rows


# ---- programs


async def test_lineage_prints_exactly_the_promised_fields_oldest_first(run: Run, home: Path) -> None:
    await stored(home, fill)
    rows = await said(run, home, "lineage", "telegram:42")
    assert [list(row) for row in rows] == [LINEAGE_FIELDS] * 3
    left, root, tip = rows
    assert (left["end_reason"], left["messages"], left["parent"], left["depth"]) == ("reset", 2, None, 0)
    assert [root[name] for name in LINEAGE_FIELDS[-6:]] == [None] * 6
    assert (root["lineage"], root["end_reason"], root["chat"]) == (root["session"], "compression", "telegram:42")
    assert (tip["parent"], tip["lineage"], tip["depth"], tip["platform"]) == (
        root["session"],
        root["session"],
        1,
        "telegram",
    )
    assert [tip[name] for name in LINEAGE_FIELDS[-6:]] == ["manual", 900, 90, "doors", "model", "small"]
    assert root["started_at"] <= root["ended_at"] <= tip["started_at"]
    assert (tip["ended_at"], tip["end_reason"]) == (None, None)
    assert await said(run, home, "lineage", tip["session"][:8]) == [root, tip]
    everything = await said(run, home, "lineage")
    assert (everything[:3], everything[3]["chat"]) == (rows, "telegram:-7")
    assert await said(run, home, "lineage", "--limit", "1") == everything[3:]


async def test_search_prints_exactly_the_promised_fields_in_the_order_asked_for(run: Run, home: Path) -> None:
    await stored(home, fill)
    best = await said(run, home, "search", "door", "--role", "user")
    assert ([list(row) for row in best], best[0]["text"]) == ([SEARCH_FIELDS] * 3, "a door door door")
    assert [row["score"] for row in best] == sorted((row["score"] for row in best), reverse=True)
    newest = await said(run, home, "search", "door", "--newest")
    assert [row["at"] for row in newest] == [START + 5_000, START + 2_000, START]
    assert [row["text"] for row in await said(run, home, "search", "door", "--chat", "telegram:-7")] == [
        "a door door door"
    ]
    assert len(await said(run, home, "search", "door", "--since", "2026-01-01T00:00:02")) == 2
    assert await said(run, home, "search", "door", "--since", "2027-01-01") == []
    assert await said(run, home, "search", "an", "older", "door", "--limit", "1") != []


async def test_a_hit_names_the_session_of_its_message(run: Run, home: Path) -> None:
    await stored(home, fill)
    (hit,) = await said(run, home, "search", "red")
    chain = {row["session"]: row for row in await said(run, home, "lineage", hit["session"])}
    assert (chain[hit["session"]]["depth"], chain[hit["session"]]["lineage"]) == (0, hit["lineage"])
    around = await said(run, home, "history", hit["message"])
    assert hit["message"] in [row["message"] for row in around]
    assert {row["session"] for row in around} == {hit["session"]}


async def test_secrets_are_removed_from_hits_even_if_the_snippet_cuts_them(run: Run, home: Path) -> None:
    def one(db: sqlite3.Connection) -> None:
        chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
        exchange(db, chat, "a " * 50 + f"{KEY} " + "b " * 25 + "window " + "y " * 300, "open")

    await stored(home, one)
    (row,) = await said(run, home, "search", "window")
    assert "b b window" in row["snippet"]
    assert KEY[-8:] not in row["snippet"] + row["text"]


@pytest.mark.parametrize("is_ascii", [True, False])
async def test_secrets_in_arguments_and_documents_are_removed_from_hits(run: Run, home: Path, is_ascii: bool) -> None:
    """Secrets are found as written and as decoded, because either form may hide them from the redactor."""
    told = {"user": "window", "password": 'hunter2 "x\nsecond7', "note": f"青 plainwordsecret {KEY}", "half": "é"}
    call = ToolCall(id="c", name="log_in", arguments=json.dumps(told, ensure_ascii=is_ascii))
    document = Document(name="keys.txt", text=f"the window opens with {KEY} and plainwordsecret")

    def one(db: sqlite3.Connection) -> None:
        session = start(db, "a")
        for body in (MessageBody(calls=(call,)), MessageBody(documents=(document,))):
            append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text="x", body=body), START)

    await stored(home, one)
    done = await asyncio.to_thread(partial(run, "search", "window", "--json", OPENAI_API_KEY="plainwordsecret"))
    rows = json.loads(done.output)
    assert len(rows) == 2
    assert all("[redacted]" in row["snippet"] and row["text"] == "x" for row in rows)
    for secret in (KEY[-8:], "plainwordsecret", "hunter2"):
        assert secret not in done.output


async def test_history_shows_the_original_messages_of_the_whole_conversation(run: Run, home: Path) -> None:
    await stored(home, fill)
    rows = await said(run, home, "history", "telegram:42")
    assert [row["text"] for row in rows] == [f"the red door, {KEY}", "open", "and the window", "shut"]
    assert [row["taken_back"] for row in rows] == [False, True, False, False]
    assert (len({row["session"] for row in rows}), {row["lineage"] for row in rows}) == (2, {rows[0]["session"]})
    assert (rows[0]["sender"], rows[0]["origin"], rows[0]["at"]) == ("telegram:1", "human", START + 2_000)
    assert await said(run, home, "history", rows[0]["session"]) == rows
    assert await said(run, home, "history", rows[0]["session"], "--session") == rows[:2]
    assert await said(run, home, "history", "telegram:42", "--limit", "1") == rows[-1:]


async def test_a_long_history_comes_in_pages_without_a_gap(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(db: sqlite3.Connection) -> None:
        chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
        session = exchange(db, chat, "0", "1").lineage_id
        for number in range(2, 23):
            row = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=str(number) + "x" * 10)
            append(db, SessionId(session), row, START)

    await stored(home, many)
    monkeypatch.setattr("gateway.operator.lookups.MAX_PAGE_CHARS", 30)
    rows = await said(run, home, "history", "telegram:42", "--limit", "1000")
    assert [row["text"].rstrip("x") for row in rows] == [str(number) for number in range(23)]
    assert len(await said(run, home, "history", "telegram:42", "--limit", "4")) == 4


async def test_sessions_lists_conversations_of_all_chats_the_most_recently_used_first(run: Run, home: Path) -> None:
    await stored(home, fill)
    rows = await said(run, home, "sessions")
    assert [(row["chat"], row["messages"], row["sessions"], row["is_active"]) for row in rows] == [
        ("telegram:-7", 2, 1, True),
        ("telegram:42", 4, 2, True),
        ("telegram:42", 2, 1, False),
    ]
    assert [row["chat_name"] for row in rows] == ["Doors", "telegram:1", "telegram:1"]
    assert (rows[1]["first_words"], rows[2]["title"]) == ("the red door, [redacted]", "the key is [redacted]")
    assert await said(run, home, "sessions", "telegram:42") == rows[1:]
    assert await said(run, home, "sessions", "--limit", "1") == rows[:1]


# ---- people


async def test_tables_for_people(run: Run, home: Path) -> None:
    await stored(home, fill)
    table = (await asyncio.to_thread(run, "lineage", "telegram:42")).output.splitlines()
    assert len(table) == 4
    assert table[3].endswith("manual, 900 → 90 tokens, summary by small, focus “doors”")
    table = (await asyncio.to_thread(run, "sessions")).output.splitlines()
    assert table[0].split() == ["SESSION", "CHAT", "USED", "SESSIONS", "MESSAGES", "STATE", "NAME"]
    assert "telegram:-7 (Doors)" in table[1]
    assert "active" in table[1]
    assert "reset" in table[3]
    found = (await asyncio.to_thread(run, "search", "red")).output
    assert "telegram:42, session" in found
    assert "the red door, [redacted]" in found
    shown = (await asyncio.to_thread(run, "history", "telegram:42")).output
    assert shown.index("the red door") < shown.index("assistant, undone") < shown.index("and the window")


async def test_an_empty_result_is_a_sentence_or_an_empty_list(run: Run, home: Path) -> None:
    for words in (("lineage",), ("search", "door"), ("sessions",), ("history", "telegram:42")):
        assert (json.loads(run(*words, "--json").output), len(run(*words).output.splitlines())) == ([], 1)


async def test_tool_rows_name_their_tool_and_calls(run: Run, home: Path) -> None:
    def tools(db: sqlite3.Connection) -> None:
        chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
        session = SessionId(exchange(db, chat, "q", "a").lineage_id)
        call = ToolCall(id="c1", name="look", arguments="{}")
        body = MessageBody(calls=(call,))
        append(
            db, session, NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=None, body=body), START
        )
        found = NewMessage(
            role=MessageRole.TOOL, origin=Origin.TOOL, text="z" * 900, tool_call_id="c1", tool_name="look"
        )
        append(db, session, found, START)

    await stored(home, tools)
    rows = await said(run, home, "history", "telegram:42")
    assert (rows[2]["calls"], rows[2]["text"], rows[3]["tool"], len(rows[3]["text"])) == (["look"], "", "look", 900)
    shown = (await asyncio.to_thread(run, "history", "telegram:42")).output
    assert "(called look)" in shown
    assert "900 characters" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("lineage", "telegram:777"), "No chat, session or message"),
        (("history", "m999"), "no message m999"),
        (("search", "door", "--since", "yesterday"), "is not a date"),
        (("search", "door", "--chat", "telegram:777"), "No chat"),
        (("sessions", "telegram:777"), "No chat"),
    ],
)
async def test_an_unknown_name_is_refused_in_one_sentence(
    run: Run, home: Path, words: tuple[str, ...], sentence: str
) -> None:
    await stored(home, fill)
    done = await asyncio.to_thread(run, *words)
    assert isinstance(done.exception, CommandError)
    assert sentence in str(done.exception)


async def test_words_that_are_not_text_find_nothing(run: Run, home: Path) -> None:
    await stored(home, fill)
    assert await said(run, home, "search", "\udcff") == []


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("search", {}),
        ("search", {"words": 7}),
        ("search", {"words": "x", "role": "king"}),
        ("search", {"words": "x", "limit": 0}),
        ("search", {"words": "x", "order": "worst"}),
        ("history", {}),
        ("lineage", {"plaice": "x"}),
        ("sessions", {"limit": "many"}),
    ],
)
async def test_the_daemon_refuses_invalid_arguments(store: Store, name: str, args: Mapping[str, Any]) -> None:
    with pytest.raises(CommandError, match=name):
        await look_up(store, name, args, redact)


@pytest.mark.parametrize(
    ("name", "is_chat", "is_within", "sentence"),
    [
        ("x" * 201, False, False, "That is too long for an id."),
        ("m99", False, False, "There is no message m99."),
        ("M99", False, True, "There is no message m99 in this chat."),
        ("nothing", False, False, "No chat, session or message has the id “nothing”."),
        ("nothing", False, True, "No chat, session or message in this chat has the id “nothing”."),
        ("9", False, False, "Several chats match “9”: `telegram:9`, `discord:9`. Use one of these names."),
        ("discord:9", False, True, "Here you can only look up this chat. For other chats, ask me in a direct chat."),
        ("{first}", True, False, "“{first}” is not a chat. Use a name such as `telegram:42`."),
        (
            "{common}",
            False,
            False,
            "Several session ids start with “{common}”: `{first}`, `{second}`. Use more characters.",
        ),
    ],
)
def test_an_unusable_name_is_refused_with_the_reason(name: str, is_chat: bool, is_within: bool, sentence: str) -> None:
    with migrated() as db:
        mine = ensure_chat(db, key_of("9"), ChatKind.DIRECT, None, START)
        ensure_chat(db, ChatKey(platform="discord", account="discord", chat_ref="9"), ChatKind.DIRECT, None, START)
        keys = [start_session(db, mine, START).key, start_session(db, mine, START).key]
        names = {"first": keys[0], "second": keys[1], "common": keys[0][:4]}
        find = find_chat if is_chat else find_place
        with pytest.raises(CommandError) as raised:
            find(db, name.format(**names), mine if is_within else None)
    assert str(raised.value) == sentence.format(**names)


async def test_search_works_with_an_invalid_configuration(run: Run, home: Path) -> None:
    await stored(home, fill)
    (home / "config.yaml").write_text("local: {prot: 1}")
    assert "[redacted]" in (await asyncio.to_thread(run, "search", "red")).output
