"""Deletion on request: nothing of a chat, conversation or person is left in any table, index, file or log."""

import base64
import json
import random
from collections.abc import Iterable

from tests.crash.commits import wrap_commits
from tests.databases import IS_POSTGRES
from tests.e2e.test_clock_jumps import run_on_turned_clock
from tests.e2e.test_files import on_telegram
from tests.e2e.world import World
from tests.processes import run_gateway

SECRETS = [f"{random.Random(number).getrandbits(48):012x}" for number in range(12)]
"""Words to delete. None of them starts like another, so the search index stores the end of each."""
DOCUMENT = {"media": "document", "file_name": "a.txt", "mime": "text/plain"}
BOT = "@lab_gateway_bot"


def run_doomed() -> None:
    """Run the gateway, and kill it at the commit that CRASH_KILL names."""
    wrap_commits()
    run_gateway()


def left(world: World, words: Iterable[str]) -> list[str]:
    """Return the words whose end is in a file of the gateway, in its log, or in a table of a PostgreSQL database."""
    content = world.gateway.log_bytes()
    content += b"".join(path.read_bytes() for path in sorted(world.home.rglob("*")) if path.is_file())
    if IS_POSTGRES:
        with world.connected() as db:
            query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
            for (table,) in db.execute(query).fetchall():
                rows = db.execute(f"SELECT CAST(t AS TEXT) FROM {table} t ORDER BY 1").fetchall()
                content += "".join(row for (row,) in rows).encode()
    return [word for word in words if word[-8:].encode() in content]


async def command(world: World, *words: str, code: int = 0) -> str:
    found, text = await world.command_line(*words)
    assert found == code, text
    return text


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def send_file(world: World, text: str) -> None:
    await world.say("", **DOCUMENT, caption="read", file_b64=encoded(text))


async def filled(world: World) -> None:
    """Tell the gateway secrets in every way that it stores: messages, a file, notes, a schedule, in a group."""
    await world.script(match="^(?!.*wait)", text="Noted.", times=-1)
    await world.ask(f"remember {SECRETS[0]}", "Noted")
    await send_file(world, SECRETS[1])
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (2,))
    await world.ask(f"/memory add {SECRETS[2]}", "Noted")
    await world.say(f"/schedule add @daily {SECRETS[3]}")
    await world.until_rows("SELECT count(*) FROM schedules", (1,))
    await world.ask(f"/title {SECRETS[4]}", SECRETS[4])
    await world.ask_in_group(f"{BOT} I am {SECRETS[5]}", "Noted")
    await world.ask_in_group(f"/memory{BOT} me add {SECRETS[6]}", "USER.md")
    await world.say_in_group("", **DOCUMENT, caption=f"{BOT} read", file_b64=encoded(SECRETS[7]))
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (4,))
    await world.say_in_group(f"{BOT} my marigold stays", user_id=43, first_name="Bob")
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (5,))


async def test_a_deleted_person_leaves_no_word_even_if_the_gateway_is_killed(world: World) -> None:
    world.gateway.program = run_doomed
    changes = {"HERMES_LOGGING__FILE": "true", "HERMES_ACCESS__MODERATORS": "telegram:42"}
    await world.gateway.start(CRASH_KILL="begin:1:before", **changes)
    await filled(world)
    assert left(world, [*SECRETS[:8], "marigold"]) == [*SECRETS[:8], "marigold"], "all of them are stored"

    assert "No person has the id" in await command(world, "forget", "person", "telegram:99", code=1)
    assert "has the id" in await command(world, "forget", "nowhere", code=1)
    assert "Name a chat" in await command(world, "forget", code=1)
    plan = await command(world, "forget", "person", "telegram:42", "--dry-run")
    assert "This removes 4 messages and 1 file and 1 schedule and the words of 2 messages in shared chats" in plan
    assert "Answers, summaries, notes and archives of shared chats can still repeat" in plan
    assert left(world, SECRETS[:8]) == SECRETS[:8], "a dry run removes nothing"
    await world.hold(match="wait", text="Done.")
    await world.say("wait for me")
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'running'", (1,))
    assert "An answer is being written" in await command(world, "forget", "telegram:42", "--yes", code=1)
    await world.release()
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'running'", (0,))

    await world.say("/privacy delete")
    assert await world.replies(1, match="This removes")
    await world.press("Delete")
    await world.gateway.wait()
    await world.gateway.spawn(CRASH_KILL="blank:1:after")
    await world.gateway.wait()
    await world.gateway.start(CRASH_KILL="")
    await world.until_rows("SELECT count(*) FROM meta WHERE key LIKE 'forget.%'", (0,))
    await world.until_rows("SELECT count(*) FROM chats WHERE deleted_at IS NOT NULL AND removed_at IS NULL", (0,))
    assert left(world, [*SECRETS, "marigold"]) == ["marigold"]
    rows = world.query("SELECT text, sender_name FROM messages WHERE origin = 'human' ORDER BY id")
    assert rows[:2] == [("[removed on request]", None)] * 2
    assert "marigold" in rows[2][0]
    await world.ask_in_group(f"{BOT} and now?", "Noted", user_id=43)
    assert await world.violations() == []


async def test_conversations_and_chats_are_deleted_and_the_files_prove_it(world: World) -> None:
    await world.gateway.start()
    await world.script(match="^(?!.*wait)", text="Noted.", times=-1)
    await world.ask(f"first {SECRETS[0]}", "Noted")
    await world.ask("/new", "new conversation")
    await world.ask(f"second {SECRETS[1]}", "Noted")
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (2,))
    [(old,), _] = world.query("SELECT key FROM sessions ORDER BY id")
    report = json.loads(await command(world, "forget", old[:8], "--yes", "--json"))
    assert (report["words"], report["found_in"]) == (1, [])
    assert report["files"] > 2
    assert left(world, SECRETS[:2]) == [SECRETS[1]], "the other conversation stays"
    await world.ask("/forget telegram:42", "Only admins")
    await world.ask("/forget telegram:42", "This removes 2 messages", chat_id=1)
    await world.press("Delete", chat_id=1)
    await world.until_rows("SELECT count(*) FROM chats WHERE removed_at IS NOT NULL AND chat_ref = 'deleted 1'", (1,))
    assert left(world, SECRETS[:2]) == []
    assert world.query("SELECT person, subject FROM audit ORDER BY id") == [("telegram:1", "/forget telegram:42")]

    await world.ask(f"third {SECRETS[2]}", "Noted")
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (1,))
    await world.gateway.stop()
    (world.home / "backup.db").write_text(f"a copy with {SECRETS[2]}")
    assert "found in backup.db" in await command(world, "forget", "telegram:42", "--yes")
    (world.home / "backup.db").unlink()
    assert left(world, SECRETS[:3]) == []


async def test_people_see_get_and_delete_their_own_data(world: World) -> None:
    await world.gateway.start()
    await world.script(match="^(?!.*wait)", text="Noted.", times=-1)
    await world.ask(f"I am {SECRETS[0]}", "Noted")
    await world.ask_in_group(f"{BOT} here {SECRETS[1]}", "Noted")
    await world.ask_in_group(f"{BOT} Bob's {SECRETS[2]}", "Noted", user_id=43)
    shown = "I store 2 messages of your own chats and 1 message that you wrote in shared chats"
    await world.ask("/privacy", shown)
    await world.ask_in_group(f"/privacy{BOT}", "In a direct chat")
    await world.ask_in_group(f"/privacy{BOT} delete", "Only in a direct chat")
    await world.press("Send me my data")
    [(_, name, data)] = await on_telegram(world, "document")
    content = data.decode()
    assert name == "my-data.jsonl"
    assert SECRETS[0] in content
    assert SECRETS[1] in content
    assert SECRETS[2] not in content
    assert await world.replies(1, match="Here is what I store")
    await world.ask("/privacy delete", "This removes 2 messages")
    await world.press("Delete")
    await world.until_rows("SELECT count(*) FROM chats WHERE removed_at IS NOT NULL", (1,))
    await world.until_rows("SELECT count(*) FROM meta WHERE key LIKE 'forget.%'", (0,))
    assert left(world, SECRETS[:3]) == [SECRETS[2]]


def run_doomed_later() -> None:
    """Run the gateway as `run_doomed` does, on the clock of `run_on_turned_clock`."""
    wrap_commits()
    run_on_turned_clock()


async def test_old_conversations_are_archived_and_deleted_even_if_the_gateway_is_killed(world: World) -> None:
    world.gateway.program = run_doomed_later
    await world.gateway.start(HERMES_RETENTION__DAYS="5", CRASH_KILL="request:2:after")
    await world.script(match="^(?!.*wait)", text="Noted.", times=-1)
    for number in range(3):
        await send_file(world, f"say {SECRETS[number]}")
        await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (number + 1,))
        await world.say("/new")
        await world.until_rows("SELECT count(*) FROM sessions", (number + 2,))
    await world.say(f"say {SECRETS[3]}")
    await world.until_rows("SELECT count(*) FROM turns WHERE state = 'finished'", (4,))
    assert "0 conversations old enough" in await command(world, "forget", "--old", "--dry-run")
    (world.home.parent / "offset").write_text(str(10 * 86_400 * 10**9))
    assert "3 conversations old enough" in await command(world, "forget", "--old", "--dry-run")
    await world.command_line("forget", "--old", "--yes")
    await world.gateway.wait()
    for point in ("begin:2:after", "finish:1:before"):
        await world.gateway.spawn(CRASH_KILL=point)
        await world.gateway.wait()
    await world.gateway.start(CRASH_KILL="")
    assert "1 conversation archived" in await command(world, "forget", "--old", "--yes")
    await world.until_rows("SELECT count(*) FROM chats WHERE deleted_at IS NOT NULL AND removed_at IS NULL", (0,))
    archive = sorted((world.home / "archive" / "1").iterdir())
    for suffix in (".jsonl", ".txt"):
        texts = [path.read_text() for path in archive if path.suffix == suffix]
        assert [word for word in SECRETS if any(word in text for text in texts)] == SECRETS[:3], suffix
    for path in archive:
        path.unlink()
    assert left(world, SECRETS[:4]) == [SECRETS[3]], "the open conversation stays"
