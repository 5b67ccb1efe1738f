"""The lineage of a chat: who may see it, its tree, and how long it takes to load."""

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.console.handler import PAGES
from gateway.console.lineage import load, place
from hermes_state.admin import audit
from hermes_state.admin.lineage_tree import load_nodes
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, plan_undo, split, undo_compression
from hermes_state.errors import CommandError
from hermes_state.sessions import load_tip, reset, set_title
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import ChatId, ChatKey, ChatKind, LineageId, MessageRole, Millis, Origin
from platforms.local.pages import PageWriter, chat_key
from tests.gateway.console.contexts import GUEST, OWNER, context_of
from tests.gateway.helpers import DIRECT, serving
from tests.hermes_state.rows import START, exchange

SUMMARY = "They plan a trip [m1].\n\n[Stands for 2 messages, m1 to m2. All of them are stored: nothing is lost]"

# Purpose: add 50 model calls to each session of a chat, one of them for a summary.
MANY_CALLS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
INSERT INTO model_calls (lineage_id, session_id, purpose, route, model, outcome, input_tokens, created_at, chat_id)
SELECT s.lineage_id, s.id, CASE WHEN n.i = 1 THEN 'summary' ELSE 'turn' END, 'r', 'm', 'ok', n.i * 100, ?, s.chat_id
FROM sessions s, n WHERE s.chat_id = ?
"""


def talk(db: Connection, key: ChatKey, text: str = "a question", at: int = 0) -> tuple[ChatId, LineageId]:
    kind = ChatKind.LOCAL if key.platform == "local" else ChatKind.DIRECT
    chat = ensure_chat(db, key, kind, None, Millis(START))
    return chat, exchange(db, chat, text, f"answer to {text}", at=START + at).lineage_id


def compress(
    db: Connection, lineage: LineageId, keep: int = 1, at: int = 0, text: str = SUMMARY, **changes: Any
) -> None:
    view = load_view(db, lineage)
    row = CompressionRow(
        layer="hygiene",
        summary_kind="model",
        model="small",
        took_ms=2_500,
        **{"tokens_before": 16_471, "tokens_after": 10_705, **changes},
    )
    summary = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=text)
    kept = [one.id for one in view.transcript[len(view.transcript) - keep :]]
    split(db, SplitPlan(parent=view.session, context=(summary, *kept), row=row), Millis(START + at))


def undo(db: Connection, lineage: LineageId) -> None:
    plan = plan_undo(db, lineage)
    assert plan is not None
    undo_compression(db, plan, Millis(START))


def long_life(db: Connection, sessions: int) -> ChatId:
    chat, lineage = talk(db, chat_key("main"))
    for number in range(1, sessions):
        exchange(db, chat, f"question {number}", "answer", at=START + number * 1_000)
        if number % 50 == 49:
            undo(db, lineage)
        else:
            compress(db, lineage, at=number * 1_000, focus=f"the topic {number}")
    return chat


async def test_a_person_sees_the_lineage_of_their_own_chats_only(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        await store.write(talk, chat_key("main", "guest"))
        await store.write(talk, DIRECT)
        assert len((await load(context, GUEST, {"chat": "main"}))["rows"]) == 1
        for name in ("telegram:1", "local:main#guest", "other"):
            with pytest.raises(CommandError, match="no conversation in this chat"):
                await load(context, GUEST, {"chat": name})
        assert await store.read(audit.load, 9) == []


async def test_every_look_of_an_admin_at_another_chat_is_recorded(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        await store.write(talk, chat_key("main"))
        await store.write(talk, DIRECT)
        await load(context, OWNER, {"chat": "main"})
        assert await store.read(audit.load, 9) == []
        await load(context, OWNER, {"chat": "telegram:1"})
        assert [(one.action, one.subject) for one in await store.read(audit.load, 9)] == [
            ("read lineage", "telegram:1")
        ]


async def test_an_undo_leaves_a_branch_that_ends_and_a_reset_starts_another_row(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        chat, lineage = await store.write(talk, chat_key("main"))
        await store.write(compress, lineage)
        await store.write(compress, lineage)
        await store.write(undo, lineage)
        nodes = await store.read(load_nodes, chat, 10)
        parents, lanes = place(nodes)
        root, first, second, restored = (node.id for node in nodes)
        assert parents == {first: root, second: first, restored: first}
        assert [lanes[one] for one in (root, first, second, restored)] == [0, 0, 1, 0]
        await store.write(reset, chat, Millis(START))
        newest, oldest = (await load(context_of(gateway), OWNER, {"chat": "main"}))["rows"]
        assert (newest["sessions"], newest["end"]) == (1, "open")
        assert (oldest["sessions"], oldest["end"]) == (4, "ended by a reset")
        assert [node["word"] for node in oldest["nodes"]] == ["Start", "Hygiene", "Hygiene", "Undo"]
        label = oldest["nodes"][2]["label"]
        assert label.startswith("hygiene compression, tokens 16,471 → 10,705, took 2 s, cost $0")
        assert "summary by small" in label
        assert label.endswith("undone later")


async def test_secrets_in_titles_and_focuses_are_redacted(store: Store, tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    async with serving(store, tmp_path, is_started=False) as gateway:
        _, lineage = await store.write(talk, chat_key("main"))

        def name(db: Connection) -> None:
            compress(db, lineage, focus=f"key {secret}")
            set_title(db, load_tip(db, lineage).id, f"about {secret}")

        await store.write(name)
        assert secret not in str(await load(context_of(gateway), OWNER, {"chat": "main"}))


async def test_a_session_of_another_chat_gives_a_sentence(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        await store.write(talk, chat_key("main"))
        with pytest.raises(CommandError, match="no such session"):
            await load(context_of(gateway), OWNER, {"chat": "main", "session": "0123456789abcdef"})


async def test_an_opened_compression_shows_what_left_and_what_the_record_kept(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        context = context_of(gateway)
        _, lineage = await store.write(talk, chat_key("main"), "Always answer in metric units.")
        await store.write(talk, chat_key("main"), "the bridge costs 40 euros")
        first = (await store.read(load_view, lineage)).transcript[0].id
        rules = f"## Standing rules\n- [m{first}] Always answer in metric units."
        note = f"[Stands for 3 messages, m{first} to m{first + 2}. All of them are stored: nothing is lost]"
        text = f"They planned [m{first + 2}].\n\n{rules}\n\n{note}"
        await store.write(lambda db: compress(db, lineage, text=text))
        key = (await store.read(load_view, lineage)).session.key
        opened = (await load(context, OWNER, {"chat": "main", "session": key}))["opened"]
        assert [one["labels"] for one in opened["before"]] == [
            ["condensed", "standing rule"],
            ["condensed"],
            ["condensed", "mentioned in the summary"],
            ["kept"],
        ]
        assert opened["summary"] == f"They planned [m{first + 2}]."
        assert opened["rules"] == [(f"m{first}", "Always answer in metric units.")]
        assert [one["text"] for one in opened["after"]] == ["answer to the bridge costs 40 euros"]
        found = await load(context, OWNER, {"chat": "main", "message": f"m{first + 2}", "words": "bridge"})
        assert [one["is_hit"] for one in found["opened"]["before"]] == [False, False, True, True]
        assert [one["is_wanted"] for one in found["opened"]["before"]] == [False, False, True, False]
        assert found["opened"]["key"] == key
        with pytest.raises(CommandError, match="no such session or message"):
            await load(context, OWNER, {"chat": "main", "message": "m999"})


async def test_the_first_session_opens_as_it_is(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        _, lineage = await store.write(talk, chat_key("main"), "a question with the key sk-ant-api03-" + "a1B2" * 20)
        key = (await store.read(load_view, lineage)).session.key
        opened = (await load(context_of(gateway), OWNER, {"chat": "main", "session": key}))["opened"]
        assert (opened["rows"], opened["after"], opened["is_compression"]) == (2, [], False)
        assert "a1B2a1B2" not in str(opened)


async def test_the_chart_falls_where_a_compression_happened(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        _, lineage = await store.write(talk, chat_key("main"))
        assert (await load(context_of(gateway), OWNER, {"chat": "main"}))["chart"] is None
        await store.write(lambda db: compress(db, lineage, at=1_000, tokens_before=2_000, tokens_after=1_000))
        await store.write(lambda db: talk(db, chat_key("main"), at=2_000))
        chart = (await load(context_of(gateway), OWNER, {"chat": "main"}))["chart"]
        reported = "198.6"  # the scripted model reports 15 tokens
        assert chart["line"] == f"0.0,{reported} 500.0,10.0 500.0,105.0 1000.0,{reported}"
        assert chart["ticks"] == "M500.0 200v-8"


async def test_a_thousand_sessions_load_and_render_quickly(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path, is_started=False) as gateway:
        chat = await store.write(long_life, 1_000)
        await store.write(lambda db: db.execute(MANY_CALLS, (START, chat)))
        pages = PageWriter(menu=(), max_file_bytes=1)
        page = next(page for page in PAGES if page.about.name == "lineage").about
        times = []
        for _ in range(3):
            started = time.process_time()
            values = await load(context_of(gateway), OWNER, {"chat": "main"})
            html = pages.console_content(page, OWNER, values, [])
            times.append(time.process_time() - started)
        assert html.count("<circle") == 1_000
        assert min(times) < 0.2
