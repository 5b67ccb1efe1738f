"""Every command from intake to reply."""

import asyncio
import re
import threading
from collections.abc import Sequence

import pytest

from agent.model.protocols.offline import MODEL_SETUP_HINT
from gateway.commands.registry import Command, CommandKind, CommandRegistry, CommandRequest, CommandResult, parse
from gateway.commands.runner import CRASH_SENTENCE
from gateway.commands.table import REGISTRY
from gateway.inbound.intake import AFTER_THIS_ANSWER, STEERED
from gateway.turns.lanes import TURNED_AWAY
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.values import ChatKind, LineageId, MessageRole, Millis, Origin, Sender
from tests.gateway.helpers import (
    ANN,
    BOB,
    BOSS,
    BOSS_CHAT,
    EVE,
    EVE_CHAT,
    GROUP,
    Hang,
    Serve,
    TestGateway,
    asked,
    calls,
    config_of,
    eventually,
    hanging,
    settled,
)
from tests.gateway.turns.test_lanes import tool
from tests.hermes_state.helpers import one_batch

# ---- the table


def test_names_and_aliases_are_unique_and_every_command_is_described() -> None:
    names = [name for command in REGISTRY.commands for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    wanted = "start help new reset stop status retry undo history title sessions resume queue steer whoami pair"
    assert set(names) >= set(wanted.split())
    assert all(command.description for command in REGISTRY.commands)


def test_help_and_menus_follow_the_table_and_mark_admin_commands() -> None:
    assert "`/reset`" in REGISTRY.explain("new", is_admin=False)
    menu = {item.name: item.is_admin_only for item in REGISTRY.menu()}
    assert not menu["new"]
    assert menu["pair"]
    assert "reset" not in menu
    assert not any("`" in item.description for item in REGISTRY.menu())


def test_options_fit_every_menu() -> None:
    for command in REGISTRY.commands:
        assert not (command.options and command.actions), command.name
        for owner in command.actions or (command,):
            names = [option.name for option in owner.options]
            required = [option.is_required for option in owner.options]
            assert all(name.isidentifier() and name.islower() and len(name) <= 32 for name in names)
            assert len(names) == len(set(names))
            assert required == sorted(required, reverse=True), "a required value comes before one that may be left out"
            assert all(0 < len(text.description) <= 100 for text in (*owner.options, *command.actions))


def test_syntax_follows_the_options() -> None:
    shown = {command.name: command.argument for command in REGISTRY.commands}
    assert shown["start"] is None
    assert (shown["resume"], shown["approve"]) == ("<id>", "[id] [once|session|always]")
    assert shown["schedule"] == "[list|add|pause|resume|remove|run]"


@pytest.mark.parametrize("name", [command.name for command in REGISTRY.commands if command.actions])
async def test_a_command_with_actions_has_an_action_for_the_bare_command(gateway: TestGateway, name: str) -> None:
    await gateway.ask("hello", sender=BOSS)  # rules and todos belong to a conversation
    alone = await gateway.ask(f"/{name}", sender=BOSS)
    assert await gateway.ask(f"/{name} list", sender=BOSS) == alone


def suggested(gateway: TestGateway, text: str, sender: Sender) -> Sequence[str]:
    return gateway.intake.suggestions(gateway.message(text, sender=sender))


async def test_suggestions_need_permission_for_the_command(serve: Serve) -> None:
    async with serve(model={"aliases": {"fast": "small"}}) as gateway:
        assert "fast" in suggested(gateway, "/model f", ANN)
        assert "default" in suggested(gateway, "/model", ANN)
        assert "preview" in suggested(gateway, "/compress", ANN)
        assert suggested(gateway, "/title x", ANN) == ()
        assert suggested(gateway, "/model f", EVE) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/new", ("new", "")),
        ("  /NEW  Some title \n", ("new", "Some title")),
        ("/queue first\nsecond", ("queue", "first\nsecond")),
        ("/etc/hosts is a file", None),
        ("hello /new", None),
        ("/", None),
        ("/ new", None),
        ("//new", None),
        ("/1", None),
        ("", None),
    ],
)
def test_which_texts_are_commands(text: str, expected: tuple[str, str] | None) -> None:
    parsed = parse(text)
    assert (None if parsed is None else (parsed.name, parsed.argument)) == expected


# ---- reading


async def test_start_help_whoami(gateway: TestGateway) -> None:
    assert "/help" in await gateway.ask("/start")
    assert await gateway.ask("/help") == REGISTRY.help(ChatKind.DIRECT, is_admin=False)
    said = await gateway.ask("/whoami")
    assert "`telegram:1`" in said
    assert "your role is user" in said
    assert await gateway.rows("SELECT count(*) FROM messages") == [(0,)]


async def test_without_a_model_start_and_status_give_the_same_setup_hint(serve: Serve) -> None:
    async with serve(model={"protocol": "offline", "name": None}) as gateway:
        for line in ("/start", "/status"):
            assert MODEL_SETUP_HINT in await gateway.ask(line)


async def test_an_unknown_command_gets_a_suggestion_and_starts_no_turn(gateway: TestGateway) -> None:
    assert await gateway.ask("/stat") == "There is no command /stat. Did you mean /start? /help lists all commands."
    assert await gateway.ask("/xyzzyq now") == "There is no command /xyzzyq. /help lists all commands."
    assert gateway.model.requests == []


async def test_status_shows_the_running_turn_the_queue_and_the_context(gateway: TestGateway) -> None:
    assert "Conversation: none yet" in await gateway.ask("/status")
    await gateway.ask("q")
    await hanging(gateway, "q2")
    await gateway.say("waits")
    before = len(gateway.adapter.texts())
    await gateway.say("/status")
    await eventually(lambda: len(gateway.adapter.texts()) > before, "an answer")
    said = gateway.adapter.texts()[-1]
    assert len(said.splitlines()) <= 6
    assert said.splitlines()[0] == "- Model: scripted"
    assert re.search(r"- Conversation: 3 messages, `\w{8}`\n- Context: \d+ % full, not compressed so far\n", said)
    assert re.search(r"- Working on an answer \(0 s so far\); /stop cancels it; Queue: 1 message\n", said)
    assert "- Connected: telegram" in said
    await gateway.say("/status", chat=BOSS_CHAT, sender=BOSS)
    [detailed] = await gateway.replies(1, BOSS_CHAT)
    assert "route scripted" in detailed
    assert "telegram: connected" in detailed


async def test_history_shows_undone_messages_with_a_mark(gateway: TestGateway) -> None:
    assert "has no messages yet" in await gateway.ask("/history")
    await gateway.ask("one")
    await gateway.ask("two")
    await gateway.ask("/undo")
    said = await gateway.ask("/history")
    lines = said.split("\n\n")
    assert [line.splitlines()[1] for line in lines] == ["one", "echo: one", "two", "echo: two"]
    assert ["(undone)" in line for line in lines] == [False, False, True, True]
    assert len((await gateway.ask("/history 1")).split("\n\n")) == 1
    assert len((await gateway.ask("/history " + "9" * 5_000)).split("\n\n")) == 4
    assert "`/history 30`" in await gateway.ask("/history all")


async def test_history_shows_whole_pages_in_a_group_with_much_talk(gateway: TestGateway) -> None:
    def overhear(db: Connection) -> None:
        for number in range(90):
            talk = NewMessage(role=MessageRole.USER, origin=Origin.TALK, text=f"talk {number}", sender_name="Bob")
            append_to_tip(db, LineageId(1), talk, Millis(1))

    for number in range(4):
        await gateway.ask(f"question {number}")
        await gateway.store.write(overhear)
    shown = [await gateway.ask(command) for command in ("/history 3", "/history 3 3", "/history 3 6")]
    texts = [[line.splitlines()[1] for line in page.split("\n\n")] for page in shown]
    said = [text for number in range(4) for text in (f"question {number}", f"echo: question {number}")]
    assert texts == [said[5:8], said[2:5], said[0:2]]
    requests = gateway.adapter.requests[-3:]
    assert [[button.command for button in one.part.buttons] for one in requests] == [
        ["/history 3 3"],
        ["/history 3 6"],
        [],
    ]


# ---- conversations


async def test_new_starts_a_conversation_and_resume_goes_back(gateway: TestGateway) -> None:
    await gateway.ask("/title First things")
    await gateway.ask("one")
    said = await gateway.ask("/new Second things")
    assert "“Second things”" in said
    old = said.split("`")[1].split()[1]
    await gateway.ask("two")
    assert [row.text for row in gateway.model.requests[-1].transcript] == ["two"]
    listed = await gateway.ask("/sessions")
    assert listed.index("Second things") < listed.index("First things")
    assert "- Second things (active): 2 messages, just now, `" in listed
    assert "“First things”" in await gateway.ask(f"/resume {old}")
    await gateway.ask("three")
    assert [row.text for row in gateway.model.requests[-1].transcript] == ["one", "echo: one", "three"]
    assert await gateway.ask(f"/resume {old}") == "That conversation is already active."
    assert "“First things”" in await gateway.ask("/title")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/resume", "an id from /sessions"),
        ("/resume zzzz", "No conversation in this chat has an id that starts with “zzzz”. /sessions lists them."),
        ("/resume ab", "Use at least the first four characters of an id from /sessions."),
        ("/title", "no title"),
        ("/title " + "x" * 200, "at most 100"),
        ("/new " + "x" * 200, "at most 100"),
        ("/sessions", "no conversation yet"),
        ("/undo", "no conversation yet"),
        ("/undo some", "/undo 3"),
        ("/undo 0", "/undo 3"),
        ("/history 0", "/history 30"),
        ("/retry", "no conversation yet"),
        ("/queue", "The queue is empty"),
        ("/steer", "/steer <message>"),
        ("/stop", "Nothing was running"),
        ("/stop everything", "/stop all"),
        ("/pair list", "Only admins"),
    ],
)
async def test_invalid_commands_get_a_helpful_error(gateway: TestGateway, line: str, sentence: str) -> None:
    said = await gateway.ask(line)
    assert sentence in said
    assert "\n" not in said
    assert await gateway.inbox_states() == ["done"]


async def test_a_command_sent_right_after_a_message_is_acknowledged(gateway: TestGateway) -> None:
    hang = Hang()
    gateway.model.script.append(hang)
    async with one_batch(gateway.store):  # in which they keep their order
        saying = [asyncio.create_task(gateway.say(text)) for text in ("q", "/new")]
        await settled()
    await asyncio.gather(*saying)
    await eventually(lambda: gateway.adapter.texts() == [AFTER_THIS_ANSWER], "the acknowledgement", 1.0)
    hang.release()
    await gateway.quiet()


# ---- retry, undo


async def test_retry_answers_the_same_message_again_without_the_old_answer(serve: Serve) -> None:
    async with serve(tools=[tool("look")]) as gateway:
        gateway.model.script.append(calls("look", text="Let me look."))
        await gateway.ask("one")
        await gateway.ask("/retry")
        assert [row.text for row in gateway.model.requests[-1].transcript] == ["one"]
        await gateway.ask("two")
        assert [row.text for row in gateway.model.requests[-1].transcript] == ["one", "echo: one", "two"]


async def test_an_interrupted_retry_resumes_after_a_crash(serve: Serve) -> None:
    async with serve() as gateway:
        await gateway.ask("one")
        await hanging(gateway, "/retry")
    async with serve(adapter=gateway.adapter) as again:
        assert await again.replies(2) == ["echo: one", "echo: one"]
        assert await again.inbox_states() == ["done", "done"]


async def test_undo_hides_whole_exchanges(serve: Serve) -> None:
    async with serve(tools=[tool("look")]) as gateway:
        await gateway.ask("one")
        gateway.model.script.append(calls("look"))
        await gateway.ask("two")
        await gateway.ask("three")
        assert "2 exchanges" in await gateway.ask("/undo 2")
        await gateway.ask("four")
        assert [row.text for row in gateway.model.requests[-1].transcript] == ["one", "echo: one", "four"]
        assert "2 exchanges" in await gateway.ask("/undo 99")
        assert "nothing to undo" in await gateway.ask("/undo")


# ---- queue, steer


async def test_a_queued_message_waits_and_is_a_turn_of_its_own(serve: Serve) -> None:
    async with serve(sessions={"busy_mode": "interrupt"}) as gateway:
        hang = await hanging(gateway)
        await gateway.say("/queue one thing")
        await gateway.say("/queue another")
        await eventually(lambda: gateway.adapter.texts() == [AFTER_THIS_ANSWER] * 2, "acknowledgements")
        await gateway.say("/queue")
        await eventually(lambda: len(gateway.adapter.texts()) == 3, "the list")
        assert "1. one thing\n2. another" in gateway.adapter.texts()[2]
        hang.release()
        assert (await gateway.replies(6))[3:] == ["finally", "echo: one thing", "echo: another"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_steer_whose_sender_was_removed_from_the_configuration_does_not_join(
    serve: Serve, is_restarted: bool
) -> None:
    gate = asyncio.Event()
    tools = [tool("look", lambda: gate)]
    async with serve(tools=tools) as gateway:
        gateway.model.script.append(calls("look"))
        await gateway.say("q", chat=GROUP)
        await gateway.until_rows("SELECT 1 FROM tool_runs")
        assert await _said(gateway, "/steer in French", BOSS) == STEERED
        if not is_restarted:
            gateway.configure(config_of(access={"admins": []}))
            changed = asyncio.Event()
            changed.set()
            following = asyncio.create_task(gateway.access.follow(changed))
            await gateway.until_rows("SELECT 1 FROM inbox WHERE state = 'new' AND mode = 'queue'")
            following.cancel()
            gate.set()
            assert (await gateway.replies(3, GROUP))[1:] == ["echo: q", TURNED_AWAY]
            return
    gate.set()
    async with serve(adapter=gateway.adapter, tools=tools, access={"admins": []}) as again:
        assert (await again.replies(3, GROUP))[1:] == ["echo: q", TURNED_AWAY]


async def test_a_steer_without_a_turn_is_a_message(gateway: TestGateway) -> None:
    assert await gateway.ask("/steer hello") == "echo: hello"


# ---- groups


async def test_in_a_group_stop_all_drops_the_senders_messages_or_all_for_an_admin(gateway: TestGateway) -> None:
    hang = await hanging(gateway, "ann asks", chat=GROUP)
    await gateway.say("bob waits", chat=GROUP, sender=BOB)
    await gateway.say("ann waits", chat=GROUP)
    second = Hang()
    gateway.model.script.append(second)
    assert "Removed 1 message from the queue" in await _said(gateway, "/stop all", None)
    await second.begun.wait()
    assert asked(gateway.model.requests[-1])[-1] == "bob waits"
    await gateway.say("ann waits again", chat=GROUP)
    assert await _said(gateway, "/stop all", BOSS) == "Stopped. Removed 1 message from the queue."
    assert not hang.released.is_set()
    await gateway.quiet(GROUP)


async def test_in_a_group_a_steer_from_another_person_waits(gateway: TestGateway) -> None:
    hang = await hanging(gateway, "ann asks", chat=GROUP)
    assert await _said(gateway, "/steer bob steers", BOB) == AFTER_THIS_ANSWER
    hang.release()
    await gateway.quiet(GROUP)
    assert await gateway.turns_of(GROUP) == [("finished", "ann asks"), ("finished", "bob steers")]


async def _said(gateway: TestGateway, text: str, sender: Sender | None) -> str:
    before = len(gateway.adapter.texts(GROUP))
    await gateway.say(text, chat=GROUP, sender=sender or ANN)
    await eventually(lambda: len(gateway.adapter.texts(GROUP)) > before, f"an answer to {text}")
    return gateway.adapter.texts(GROUP)[before]


# ---- pairing


async def test_an_admin_approves_and_revokes_a_stranger(gateway: TestGateway) -> None:
    code = (await gateway.ask("hello", chat=EVE_CHAT, sender=EVE)).split("`")[1]
    listed = await gateway.ask("/pair list", chat=BOSS_CHAT, sender=BOSS)
    assert EVE.ref in listed
    assert code not in listed
    assert "now has access" in await gateway.ask(f"/pair approve {code}", chat=BOSS_CHAT, sender=BOSS)
    assert "You now have access" in (await gateway.replies(2, EVE_CHAT))[1]
    assert await gateway.ask("hello", chat=EVE_CHAT, sender=EVE) == "echo: hello"
    assert "not valid" in await gateway.ask(f"/pair approve {code} admin", chat=BOSS_CHAT, sender=BOSS)
    hang = await hanging(gateway, "long", chat=EVE_CHAT, sender=EVE)
    assert "no longer has access" in await gateway.ask(f"/pair revoke {EVE.ref}", chat=BOSS_CHAT, sender=BOSS)
    hang.release()
    await gateway.quiet(EVE_CHAT)
    assert "do not have access yet" in await gateway.ask("again", chat=EVE_CHAT, sender=EVE)
    assert "/pair approve" in await gateway.ask("/pair what", chat=BOSS_CHAT, sender=BOSS)


async def test_a_queued_command_is_refused_after_access_was_revoked(gateway: TestGateway) -> None:
    hang = await hanging(gateway, chat=GROUP)
    await gateway.say("/title Ours", chat=GROUP, sender=BOB)
    gateway.configure(
        gateway.live.config.model_copy(
            update={"access": gateway.live.config.access.model_copy(update={"allow": ("telegram:1",)})}
        )
    )
    hang.release()
    assert (await gateway.replies(3, GROUP))[-1] == "You no longer have access to this bot."


async def test_a_queued_message_is_not_answered_after_access_was_revoked(gateway: TestGateway) -> None:
    hang = await hanging(gateway, chat=GROUP)
    await gateway.say("one", chat=GROUP, sender=BOB)
    await gateway.say("two", chat=GROUP, sender=BOB)
    gateway.configure(
        gateway.live.config.model_copy(
            update={"access": gateway.live.config.access.model_copy(update={"allow": ("telegram:1",)})}
        )
    )
    hang.release()
    assert await gateway.replies(2, GROUP) == ["finally", TURNED_AWAY]
    await gateway.ask("three", chat=GROUP)
    assert gateway.model.heard[-1] == ["three"]
    assert (await gateway.inbox_states())[1:3] == ["dropped", "dropped"]


# ---- replays, crashes


EVERY_COMMAND = (
    *("/start", "/help", "/new", "/reset again", "/title x", "/sessions", "/resume {old}", "/history", "/stop"),
    *("/stop all", "/status", "/retry", "/undo", "/queue later", "/queue", "/steer quickly", "/whoami", "/pair list"),
    *("/privacy", "/forget {old}"),
    *("/steps", "/steps full"),
    *("/compress", "/compress preview", "/compress undo", "/model", "/model other", "/unknown"),
    *("/rules", "/rules drop m1", "/memory", "/memory add x", "/todo", "/todo clear"),
    *("/schedule", "/schedule add @daily look", "/schedule run 1"),
    *("/think", "/think high", "/think default", "/think lots", "/agent", "/agent auto", "/agent nobody"),
    *("/approve", "/approve a1 always", "/deny", "/deny a1 not now", "/tools", "/tools forget"),
    *(
        "/reactions",
        "/reactions off",
        "/voice off",
        "/groupcontext",
        "/groupcontext on",
        "/mcp",
        "/lineage",
        "/search one",
        "/session m1",
        "/why m1",
        "/usage",
        "/insights 3",
    ),
)


def test_the_replay_tests_cover_every_command() -> None:
    assert {line.split()[0].removeprefix("/") for line in EVERY_COMMAND} >= {
        name for command in REGISTRY.commands for name in (command.name, *command.aliases)
    }


@pytest.mark.parametrize("line", EVERY_COMMAND)
async def test_a_replayed_command_does_nothing(gateway: TestGateway, line: str) -> None:
    await gateway.ask("one", sender=BOSS)
    [(old,)] = await gateway.rows("SELECT key FROM sessions")
    await gateway.ask("/new", sender=BOSS)
    await gateway.ask("two", sender=BOSS)
    command = gateway.message(line.format(old=old[:8]), sender=BOSS)
    await gateway.intake.accept(command)
    await gateway.replies(4)
    tables = ["sessions", "view_edits", "turns", "outbox", "messages", "inbox"]

    async def everything() -> list[object]:
        return [await gateway.rows(f"SELECT * FROM {table}") for table in tables]

    before = await everything()
    sent = len(gateway.adapter.requests)
    for _ in range(3):
        await gateway.intake.accept(command)
    await settled()
    assert await everything() == before
    assert len(gateway.adapter.requests) == sent


async def test_a_replayed_stop_does_not_stop_the_next_turn(gateway: TestGateway) -> None:
    await hanging(gateway)
    stop = await gateway.say("/stop")
    await gateway.quiet()
    later = await hanging(gateway, "next")
    await gateway.intake.accept(stop)
    await settled()
    assert gateway.model.running == 1
    later.release()
    await gateway.quiet()


async def test_a_command_stored_before_a_crash_runs_at_the_next_start(serve: Serve) -> None:
    async with serve() as gateway:
        await hanging(gateway)
        gateway.commands.run_soon = lambda _inbox_id: None  # type: ignore[method-assign, assignment]
        await gateway.say("/stop")
        await gateway.say("/new")
    async with serve(adapter=gateway.adapter) as again:
        await again.quiet()
        texts = again.adapter.texts()
        assert texts[0] == "Stopped."
        assert "Started a new conversation." in texts[-1]
        assert await again.turns_of() == [("stopped", "q")]


async def test_a_crashing_command_gets_an_error_reply_and_blocks_no_chat(serve: Serve) -> None:
    async def crash(_request: CommandRequest) -> CommandResult:
        raise ValueError("bug")

    async def crash_inside(_request: CommandRequest) -> CommandResult:
        return CommandResult(apply=lambda db, _now: str(db.execute("SELECT nothing").fetchall()))

    broken = type(REGISTRY)(
        [
            *REGISTRY.commands,
            Command(name="boom", kind=CommandKind.READ, description="x", handler=crash),
            Command(name="bang", kind=CommandKind.CHANGE, description="x", handler=crash_inside),
            Command(name="clang", kind=CommandKind.READ, description="x", handler=crash_inside),
        ]
    )
    async with serve(registry=broken) as gateway:
        for line in ("/boom", "/bang", "/clang"):
            assert await gateway.ask(line) == CRASH_SENTENCE
        assert await gateway.ask("hello") == "echo: hello"
        assert await gateway.inbox_states() == ["done"] * 4


async def test_a_cancelled_command_ends_even_if_its_last_step_hangs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.commands.runner.LAST_SECONDS", 0.05)
    storing, stored, last = threading.Event(), threading.Event(), asyncio.Event()

    def apply(db: Connection, now: Millis) -> str:
        storing.set()
        stored.wait(30)
        return "done"

    async def never_end() -> None:
        last.set()
        await asyncio.Event().wait()

    async def handle(request: CommandRequest) -> CommandResult:
        return CommandResult(apply=apply, after=never_end)

    registry = CommandRegistry([Command(name="last", kind=CommandKind.READ, description="x", handler=handle)])
    async with serve(registry=registry) as gateway:
        await gateway.say("/last")
        await eventually(storing.is_set, "it is being stored")
        async with asyncio.timeout(30):
            await gateway.commands.close()
        assert last.is_set()
        stored.set()
