"""/lineage, /search and /session, which are for admins only."""

import sqlite3

import pytest

from hermes_state.chats import find_chat
from hermes_state.compressions import CompressionRow, SplitPlan, plan_undo, split, undo_compression
from hermes_state.search.index import begin_index, extend_index
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import ChatKey, MessageRole, Millis, Origin
from tests.databases import sqlite_only
from tests.gateway.helpers import ANN, BOSS, BOSS_CHAT, DIRECT, GROUP, Serve, TestGateway

KEY = "sk-abcdefghij0123456789"


async def compress(gateway: TestGateway, chat: ChatKey = DIRECT, focus: str | None = None) -> str:
    """Replace all messages by a handoff. Return the key of the new session."""

    def _compress(db: sqlite3.Connection) -> str:
        found = find_chat(db, chat)
        assert found is not None
        (lineage_id,) = db.execute(
            "SELECT lineage_id FROM sessions WHERE id = ?", (found.active_session_id,)
        ).fetchone()
        view = load_view(db, lineage_id)
        plan = SplitPlan(
            parent=view.session,
            context=(NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="what was said before"),),
            row=CompressionRow(
                layer="in_loop",
                focus=focus,
                summary_kind="model",
                model="small-model",
                tokens_before=95_000,
                tokens_after=40_000,
            ),
        )
        child_id = split(db, plan, Millis(gateway.clock.now()))
        return str(db.execute("SELECT key FROM sessions WHERE id = ?", (child_id,)).fetchone()[0])

    return await gateway.store.write(_compress)


async def undo(gateway: TestGateway, chat: ChatKey = DIRECT) -> None:
    def _undo(db: sqlite3.Connection) -> None:
        found = find_chat(db, chat)
        assert found is not None
        (lineage_id,) = db.execute(
            "SELECT lineage_id FROM sessions WHERE id = ?", (found.active_session_id,)
        ).fetchone()
        plan = plan_undo(db, lineage_id)
        assert plan is not None
        undo_compression(db, plan, Millis(gateway.clock.now()))

    await gateway.store.write(_undo)


async def keys(gateway: TestGateway) -> list[str]:
    return [row[0] for row in await gateway.rows("SELECT key FROM sessions ORDER BY id")]


async def ask_boss(gateway: TestGateway, text: str, chat: ChatKey = BOSS_CHAT) -> str:
    return await gateway.ask(text, chat=chat, sender=BOSS)


def buttons(gateway: TestGateway) -> dict[str, str]:
    """Return the buttons of the newest message by label."""
    return {button.label: button.command for button in gateway.adapter.requests[-1].part.buttons}


@pytest.mark.parametrize("line", ["/lineage", "/search door", "/session m1"])
async def test_lookup_commands_are_for_admins_only(gateway: TestGateway, line: str) -> None:
    await gateway.ask("the red door")
    assert await gateway.ask(line) == f"Only admins can use {line.split()[0]}."


async def test_lineage_lists_sessions_and_session_tells_how_each_began_and_ended(gateway: TestGateway) -> None:
    assert await ask_boss(gateway, "/lineage") == "This chat has no conversation yet."
    await gateway.ask("one")
    await compress(gateway, focus="the schema")
    await gateway.ask("two")
    await undo(gateway)
    said = await ask_boss(gateway, "/lineage telegram:1")
    root, child, tip = await keys(gateway)
    assert said.splitlines() == [
        "Sessions of “Ann”, oldest first:",
        f"- `{root[:8]}` just now, 2 messages, compressed",
        f"- `{child[:8]}` just now, 2 messages, compression undone",
        f"- `{tip[:8]}` just now, 0 messages, open",
    ]
    assert buttons(gateway) == {"Open the newest": f"/session {tip[:8]}"}
    assert await ask_boss(gateway, f"/lineage {child}") == said
    assert "No chat, session or message has the id" in await ask_boss(gateway, "/lineage telegram:777")
    opened = [await ask_boss(gateway, f"/session {key}") for key in (root, child, tip)]
    assert f"(compressed) → `{child[:8]}`" in opened[0]
    assert "in-loop compression (95,000 → 40,000 tokens, summary by small-model, focus “the schema”, und" in opened[1]
    assert f"(compression undone) → `{tip[:8]}`" in opened[1]
    assert f"by undoing the compression that created `{child[:8]}`; open" in opened[2]


async def test_each_undo_names_the_undone_compression(gateway: TestGateway) -> None:
    await gateway.ask("one")
    made = [await compress(gateway), await compress(gateway)]
    for _ in made:
        await undo(gateway)
    for key, undone in zip((await keys(gateway))[-2:], made[::-1], strict=True):
        opened = await ask_boss(gateway, f"/session {key}")
        assert f"by undoing the compression that created `{undone[:8]}`" in opened


@pytest.mark.parametrize("option", ["chat", "role", "since"])
async def test_a_search_option_without_a_value_is_refused(gateway: TestGateway, option: str) -> None:
    assert (await ask_boss(gateway, f"/search door --{option}")).startswith(f"`--{option}` needs a value, ")


async def test_a_search_hit_opens_its_session(gateway: TestGateway) -> None:
    await gateway.ask("the red door")
    await compress(gateway)
    await gateway.ask("something else")
    root, tip = await keys(gateway)
    said = await ask_boss(gateway, "/search door --role user")
    assert f"Ann, session `{root[:8]}`\nthe red door" in said
    (command,) = buttons(gateway).values()
    opened = await ask_boss(gateway, command)
    assert f"Session `{root[:8]}` of “Ann”" in opened
    assert "←\nthe red door" in opened
    assert "something else" not in opened
    assert buttons(gateway) == {"Child": f"/session {tip}"}
    opened = await ask_boss(gateway, f"/session {tip}")
    assert "something else" in opened
    assert f"Parent `{root[:8]}`" in opened


async def test_history_shows_the_originals_across_compressions(gateway: TestGateway) -> None:
    for text in ("one", "two", "three"):
        await gateway.ask(text)
        await compress(gateway)
    await undo(gateway)
    lines = (await gateway.ask("/history")).split("\n\n")
    said = [line.splitlines()[1] for line in lines]
    assert said == ["one", "echo: one", "two", "echo: two", "three", "echo: three"]
    assert "undone" not in "".join(lines)


async def test_a_long_session_is_paged_without_gaps(gateway: TestGateway) -> None:
    for number in range(15):
        await gateway.ask(f"word{number}")
    (key,) = await keys(gateway)
    pages = [await ask_boss(gateway, f"/session {key}")]
    while "Later" in buttons(gateway):
        pages.append(await ask_boss(gateway, buttons(gateway)["Later"]))
    seen = "\n".join(pages)
    assert all(f"\nword{number}\n" in f"{seen}\n" for number in range(15))
    assert len(pages) <= 5
    back = 0
    while "Earlier" in buttons(gateway):
        pages.append(await ask_boss(gateway, buttons(gateway)["Earlier"]))
        back += 1
    assert 1 < back <= 5
    assert "\nword0\n" in pages[-1]


@sqlite_only
async def test_a_search_mentions_an_incomplete_index(serve: Serve, store: Store) -> None:
    async with serve() as gateway:
        await gateway.ask("door door door")
        await store.write(begin_index, keeps_old=False)
        assert "0 % done" in await ask_boss(gateway, "/search door")
        while not await store.write(extend_index):
            pass
        found = await ask_boss(gateway, "/search door")
    assert "door door door" in found
    assert "% done" not in found


async def test_search_options_match_the_command_line(gateway: TestGateway) -> None:
    await gateway.ask("door door door")
    await gateway.ask("a door of Bob's house, far from the other one", chat=GROUP, sender=ANN)
    best = await ask_boss(gateway, "/search door --role user")
    newest = await ask_boss(gateway, "/search --newest door —role user")
    assert best.index("door door door") < best.index("Bob's")
    assert newest.index("Bob's") < newest.index("door door door")
    only = await ask_boss(gateway, f"/search door --chat {GROUP.name}")
    assert "Bob's" in only
    assert "door door door" not in only
    for other_words in ("what about those doors", "the dorr of my huose"):
        assert "Bob's house" in await ask_boss(gateway, f"/search {other_words}")
    missing = await ask_boss(gateway, "/search door --since 2999-01-01")
    assert missing.startswith("No message matches. I searched for each of these words")
    assert "Bob's" in await ask_boss(gateway, "/search door --since 2020-01-01")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/search", "/search <words>"),
        ("/search --newest", "/search <words>"),
        ("/search door --role king", "`--role` must be user, assistant or tool."),
        ("/search door --since yesterday", "“yesterday” is not a date"),
        ("/search door --chat telegram:777", "No chat"),
        ("/search door --chat m1", "is not a chat"),
        ("/session", "/session <id>"),
        ("/session m99999", "There is no message m99999"),
        ("/session zzzz", "has the id “zzzz”"),
        ("/session telegram:1", "`/lineage telegram:1`"),
        ("/lineage nowhere", "has the id “nowhere”"),
    ],
)
async def test_invalid_lookups_get_a_helpful_error(gateway: TestGateway, line: str, sentence: str) -> None:
    await gateway.ask("the red door")
    assert sentence in await ask_boss(gateway, line)


async def test_in_a_group_lookups_cover_only_that_group(gateway: TestGateway) -> None:
    await gateway.ask("the red door")
    (key,) = await keys(gateway)
    (message_id,) = (await gateway.rows("SELECT min(id) FROM messages"))[0]
    await gateway.ask("the blue door", chat=GROUP, sender=ANN)
    found = await ask_boss(gateway, "/search door", GROUP)
    assert "blue door" in found
    assert "red door" not in found
    for line in (f"/session {key}", f"/session m{message_id}", f"/lineage {key}"):
        said = await ask_boss(gateway, line, GROUP)
        assert "in this chat" in said
        assert "door" not in said
    for line in ("/lineage telegram:1", "/search door --chat telegram:1"):
        assert "only look up this chat" in await ask_boss(gateway, line, GROUP)
    assert GROUP.name in await ask_boss(gateway, "/lineage", GROUP)


async def test_search_and_session_redact_secrets(serve: Serve) -> None:
    secret = "configured-value-77"
    async with serve(telegram={"token": f"123456:{secret}"}) as gateway:
        await gateway.ask(f"the door opens with {KEY} or with 123456:{secret} " + "and so on " * 40)
        for line in ("/search door", "/session m1"):
            said = await ask_boss(gateway, line)
            assert "the door opens with [redacted]" in said
            assert KEY[:12] not in said
            assert secret not in said
