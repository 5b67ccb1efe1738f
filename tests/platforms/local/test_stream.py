"""Open pages, reconnecting pages and reloaded pages show the same entries, each once."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest

from hermes_state import inbox, journal, outbox, sessions
from hermes_state.chats import ensure_chat
from hermes_state.models.ledger import ModelCall
from hermes_state.store.sql import save_note
from hermes_state.tool_runs import ToolResult, ToolRunState
from hermes_state.transcripts import hide
from hermes_state.turns import RunningTurn, note_preview
from hermes_state.values import Button, ChatId, ChatKind, InboundEvent, InboundMessage, InboxId, MessageId, ToolCall
from platforms.base import Preview, SendRequest, TextKind
from platforms.local import chat_routes
from platforms.local.chat_routes import PAGE_ROWS
from platforms.local.chats import MAX_EVENTS, ChatStream, encode
from platforms.local.markdown import to_html
from tests.clocks import SetClock
from tests.hermes_state.rows import receive
from tests.platforms.contract import RecordingIntake, request, running
from tests.platforms.local.harness import LocalHarness, Screen

CALL = ModelCall(purpose="turn", route="main", model="m", outcome="ok", usage=None, took_ms=1)


class StoringIntake(RecordingIntake):
    """An intake that stores its events, so that a test can run turns step by step."""

    local: LocalHarness
    kind = inbox.InboxKind.MESSAGE

    async def accept(self, event: InboundEvent, cursor: object = None) -> None:
        assert isinstance(event, InboundMessage)
        is_known = event.event_ref in self._refs
        await super().accept(event)
        if is_known:
            return
        self.chat_id, self.inbox_id = await self.local.store.write(_put, event, self.kind)


def _put(db: Connection, event: InboundMessage, kind: inbox.InboxKind) -> tuple[ChatId, InboxId]:
    chat_id = ensure_chat(db, event.chat, ChatKind.LOCAL, None, event.sent_at)
    row = inbox.NewInboxRow(
        platform="local",
        account="local",
        event_ref=event.event_ref,
        chat_id=chat_id,
        kind=kind,
        mode=inbox.InboxMode.QUEUE,
        sender_ref=event.sender.ref,
        sender_name=event.sender.name,
        message_ref=event.message_ref,
        payload=inbox.InboxPayload(text=event.text, attachments=event.attachments),
        expects_more=False,
        sent_at=event.sent_at,
    )
    inbox_id = inbox.insert(db, row, event.sent_at)
    assert inbox_id is not None
    return chat_id, inbox_id


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalHarness]:
    async with storing(LocalHarness(tmp_path)) as harness, harness.running():
        await harness.sign_in()
        yield harness


def storing(harness: LocalHarness) -> LocalHarness:
    """Let the harness store its events."""
    harness.intake = StoringIntake()
    harness.intake.local = harness
    return harness


class Turn:
    """A turn in the main chat, step by step, as the gateway takes it."""

    def __init__(self, local: LocalHarness, turn: RunningTurn) -> None:
        self.local = local
        self.turn = turn
        self.chat_id = turn.chat_id
        self.id = turn.id
        self.ref: str | None = None

    async def show(self, text: str) -> None:
        preview = Preview(chat=self.local.direct_chat, is_shared=False, number=self.id, text=text, ref=self.ref)
        self.ref = await self.local.adapter.show(preview)
        assert self.ref is not None
        await self.local.store.write(note_preview, self.turn, self.ref)

    async def call_tool(self, text: str, arguments: str = '{"query": "plan"}') -> MessageId:
        call = ToolCall(id="c1", name="history_search", arguments=arguments)
        step = journal.ModelAnswer(text=text, calls=(call,), call=CALL, reported_prompt_tokens=None)
        message = await self.local.store.write(journal.append_calls, self.turn, step, self.local.clock.now())
        return message.id

    async def finish_tool(self, message_id: MessageId, text: str, state: ToolRunState = ToolRunState.DONE) -> None:
        call = ToolCall(id="c1", name="history_search", arguments='{"query": "plan"}')
        await self.local.store.write(journal.start_tools, self.turn, message_id, (call,), self.local.clock.now())
        result = ToolResult(call_message_id=message_id, call=call, text=text, state=state)
        await self.local.store.write(journal.finish_tool, self.turn, result, self.local.clock.now())

    async def finish(self, text: str) -> None:
        answer = journal.ModelAnswer(text=text, call=CALL, reported_prompt_tokens=None)
        await self.local.store.write(journal.finish_turn, self.turn, answer, self.local.clock.now())

    async def deliver(self, *, is_noted: bool = True, text_kind: TextKind = TextKind.ANSWER) -> None:
        [row] = await self.local.store.read(outbox.load_open, self.chat_id)
        assert row.written is not None
        [part] = self.local.adapter.render(row.written.markdown)
        sent = SendRequest(
            chat=self.local.direct_chat, part=part, key=f"o{row.id}", replaces=row.replaces, text_kind=text_kind
        )
        ref = await self.local.adapter.send(sent)
        if is_noted:
            await self.local.store.write(outbox.mark_sent, row.id, ref, self.local.clock.now())


async def begin(local: LocalHarness, text: str) -> Turn:
    await local.write(text)
    return await start(local)


async def start(local: LocalHarness) -> Turn:
    """Start the turn of the newest message."""
    ids = [local.intake.inbox_id]
    turn = await local.store.write(journal.start_turn, local.intake.chat_id, ids, {}, local.clock.now())
    return Turn(local, turn)


async def undo(local: LocalHarness, text: str) -> None:
    def hide_message(db: Connection) -> None:
        [(session_id, message_id)] = db.execute(
            "SELECT session_id, id FROM messages WHERE text = ?", (text,)
        ).fetchall()
        hide(db, session_id, [message_id], "undo", local.clock.now())

    await local.store.write(hide_message)


def copy(db: Connection, text: str, end: int, after_ms: int) -> None:
    """Store more messages like the one with this text, up to a number. A number at the end of the text counts up."""
    query = """INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, sender_ref, created_at)
        SELECT session_id, chat_id, lineage_id, seq + ?, role, origin, ?, sender_ref, created_at + ?
        FROM messages WHERE text = ? ORDER BY id LIMIT 1"""
    rows = [(number, text.replace(" 0", f" {number}"), after_ms, text) for number in range(1, end)]
    db.executemany(query, rows)
    db.execute("UPDATE sessions SET next_seq = ?", (end + 10,))


async def whole_turn(local: LocalHarness, question: str, answer: str) -> None:
    turn = await begin(local, question)
    await turn.finish(answer)
    await turn.deliver()


def texts(screen: Screen) -> list[str]:
    return [entry.text.strip() for entry in screen.entries]


# ---- live ----------------------------------------------------------------------------------------------------


async def test_an_answer_streams_and_its_final_form_replaces_the_preview(local: LocalHarness) -> None:
    async with local.opened() as page:
        turn = await begin(local, "why?")
        assert "why?" in (await page.next()).data
        await turn.show("Bec")
        preview = Screen(await page.until('"entry preview')).of("preview")[0]
        await turn.show("Because")
        again = Screen((await page.next()).data).of("preview")[0]
        await turn.finish("Because **so**")
        await turn.deliver()
        final = Screen((await page.next()).data).of("answer")[0]
    assert preview.ref == again.ref == final.ref
    assert (again.text.strip(), final.text.strip()) == ("Because", "Because so")


async def test_a_long_answer_is_rendered_in_a_thread(local: LocalHarness) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    async with local.opened() as page:
        turn = await begin(local, "why?")
        await page.next()
        heart = asyncio.create_task(beat())
        await turn.show("a [b](http://c.d) **e**\n\n" * 4_000)
        during = beats
        heart.cancel()
        assert Screen(await page.until('"entry preview')).of("preview")
    assert during >= 10, "others had their turns while it was rendered"


async def test_typing_is_shown_and_ends_with_the_answer(local: LocalHarness) -> None:
    async with local.opened() as page:
        await local.adapter.show_typing(local.direct_chat)
        assert "Hermes is writing" in (await page.next()).data
        await local.adapter.send(request(local.direct_chat, "done"))
        ended = (await page.next()).data
    assert 'hx-target="#writing"' in ended
    assert "Hermes is writing" not in ended


async def test_a_tool_call_shows_while_it_runs_and_when_it_is_done(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    async with local.opened() as page:
        await turn.show("Let me look.")
        assert Screen(await page.until("Let me look.")).of("preview")
        message_id = await turn.call_tool("Let me look.")
        await local.adapter.show_typing(local.direct_chat)
        running_line = await page.until("history_search")
        assert f'hx-swap="forget"><i id="m-{turn.ref}">' in running_line, "what streamed is a line now"
        assert "running" in running_line
        await turn.finish_tool(message_id, "m12: the plan")
        await local.adapter.show_typing(local.direct_chat)
        assert "m12: the plan" in await page.until("done")


async def test_a_tool_call_that_failed_does_not_say_done(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    await turn.finish_tool(await turn.call_tool("Let me look."), "no such file", ToolRunState.FAILED)
    [call] = (await local.screen()).of("tool")
    assert "failed" in call.text
    assert "done" not in call.text


async def test_a_message_sent_during_an_answer_is_shown_below_it_as_queued(local: LocalHarness) -> None:
    async with local.opened() as page:
        turn = await begin(local, "first question")
        await turn.show("first")
        await page.until("first question")
        await local.write("second question")
        assert "waiting" in Screen(await page.until("second question")).of("person")[-1].classes
        await turn.show("first answer")
        screen = await local.screen()
        assert texts(screen) == ["first question", "first answer", "second question"], "also after a reload"
        assert ">queued<" in await local.page()

        await turn.finish("first answer")
        await turn.deliver()
        begun = Screen(await page.until('class="entry person"')).of("person")[-1]
        assert (begun.text, "waiting" in begun.classes) == ("second question", False)
    next_turn = await start(local)
    await next_turn.finish("second answer")
    await next_turn.deliver()
    said = ["first question", "first answer", "second question", "second answer"]
    assert texts(await local.screen()) == said
    local.adapter = local.another_adapter()
    async with local.running():
        assert texts(await local.screen()) == said, "and after a restart, when only the store knows"
        assert "waits" not in await local.page()


async def test_a_queued_message_is_shown_below_the_error_of_its_predecessor(local: LocalHarness) -> None:
    turn = await begin(local, "first question")
    await local.write("second question")
    await local.store.write(journal.fail_turn, turn.turn, "broken", "That did not work.", local.clock.now())
    await turn.deliver(text_kind=TextKind.FAILURE)
    await start(local)
    assert texts(await local.screen()) == ["first question", "That did not work.", "second question"]


async def test_a_command_that_runs_during_an_answer_does_not_wait(local: LocalHarness) -> None:
    turn = await begin(local, "first question")
    await turn.show("first")
    local.intake.kind = inbox.InboxKind.COMMAND
    async with local.opened() as page:
        await local.write("/status")
        assert "waiting" not in Screen(await page.until("/status")).of("person")[-1].classes
        await local.adapter.send(request(local.direct_chat, "All is well.", key="k9"))
    assert texts(await local.screen())[-2:] == ["/status", "All is well."]


async def test_every_open_page_shows_a_message_sent_from_one(local: LocalHarness) -> None:
    async with local.opened() as one, local.opened() as two:
        await local.write("from one of them")
        assert "from one of them" in (await one.next()).data
        assert "from one of them" in (await two.next()).data


async def test_events_reach_only_pages_of_their_chat(local: LocalHarness) -> None:
    async with local.opened("other") as other:
        await local.write("in main")
        await local.write("in other", name="other")
        heard = (await other.next()).data
    assert "in other" in heard
    assert "in main" not in heard


# ---- reconnecting ---------------------------------------------------------------------------------------------


async def test_a_reconnecting_page_gets_the_events_it_missed(local: LocalHarness) -> None:
    async with local.opened(), local.opened() as away:
        await local.adapter.send(request(local.direct_chat, "heard", key="k1"))
        await away.next()
        last = away.last_id
        await local.adapter.send(request(local.direct_chat, "missed", key="k2"))
        async with local.listening(last=last) as back:
            event = (await back.next()).data
    assert "missed" in event
    assert "heard" not in event


async def test_a_title_reaches_open_pages(local: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_routes, "PING_SECONDS", 0.05)
    await whole_turn(local, "where to?", "to Rome")
    async with local.opened() as page:
        [(session_id,)] = await local.store.read(lambda db: db.execute("SELECT id FROM sessions").fetchall())
        await local.store.write(sessions.set_title, session_id, "A week in Rome")
        await page.until('hx-get="/chats?shown=main"')
        assert '<span class="chat-name">A week in Rome</span>' in await local.listed()


async def test_events_without_an_open_page_are_shown_after_reconnecting(local: LocalHarness) -> None:
    async with local.opened() as page:
        await local.adapter.send(request(local.direct_chat, "heard", key="k1"))
        await page.next()
        last = page.last_id
    page.response.close()
    await local.adapter.send(request(local.direct_chat, "missed", key="k2"))
    async with local.listening(last=last) as back:
        assert "missed" in (await back.next()).data


@pytest.mark.parametrize("last", ["", "0badcafe-7", "not an id", "-", "1" * 400])
async def test_a_page_with_an_unknown_position_gets_the_whole_chat(local: LocalHarness, last: str) -> None:
    await local.adapter.send(request(local.direct_chat, "everything", key="k1"))
    async with local.listening(last=last) as page:
        event = (await page.next()).data
        assert 'hx-target="#log" hx-swap="innerMorph"' in event
        assert "everything" in event
        await local.adapter.send(request(local.direct_chat, "and more", key="k2"))
        assert "and more" in (await page.next()).data


async def test_no_event_is_lost_between_the_first_content_and_the_stream(local: LocalHarness) -> None:
    async with local.listening() as page:
        await local.adapter.send(request(local.direct_chat, "in between"))
        assert "in between" in await page.until("in between")


async def test_a_stream_ends_properly_if_the_store_cannot_be_read(local: LocalHarness) -> None:
    await local.sign_in()
    await local.store.close()
    async with local.listening(last="0badcafe-7") as page:
        with pytest.raises(EOFError):
            await page.next()


async def test_streams_end_with_the_adapter_and_continue_in_the_next_run(tmp_path: Path) -> None:
    async with LocalHarness(tmp_path) as local:
        intake = RecordingIntake()
        async with running(local.adapter, intake):
            await local.sign_in()
            await local.adapter.send(request(local.direct_chat, "before", key="k1"))
            port = int(local.root.rsplit(":", 1)[1])
            stack = AsyncExitStack()
            page = await stack.enter_async_context(local.opened())
        async with stack:
            assert await asyncio.wait_for(page.response.content.read(), 20) == b"", "the stream ended properly"
        local.adapter = local.another_adapter(port=port)
        async with running(local.adapter, intake), local.listening(last=page.last_id) as back:
            assert 'hx-swap="innerMorph"' in (await back.next()).data


# ---- after a reload ------------------------------------------------------------------------------------------


async def test_a_reload_shows_the_conversation_from_the_store(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    await turn.finish_tool(await turn.call_tool("Let me look."), "m12: the plan")
    await turn.finish("It is **there**.")
    await turn.deliver()
    live = [entry.ref for entry in (await local.screen()).of("person", "answer")]
    local.adapter = local.another_adapter()
    async with local.running():
        screen = await local.screen()
    assert [entry.kind for entry in screen.entries] == ["person", "aside", "tool", "answer"]
    assert [entry.ref for entry in screen.of("person", "answer")] == live
    shown = texts(screen)
    assert shown[:2] == ["look it up", "Let me look."]
    assert "m12: the plan" in shown[2]
    assert shown[3] == "It is there."


async def test_commands_and_their_replies_keep_their_place_after_a_restart(tmp_path: Path) -> None:
    async with storing(LocalHarness(tmp_path)) as local:
        async with local.running():
            await local.sign_in()
            port = int(local.root.rsplit(":", 1)[1])
            await whole_turn(local, "first question", "first answer")
            commands = RecordingIntake()
            local.intake.accept = commands.accept  # type: ignore[method-assign]  # a command starts no turn
            await local.write("/status")
            buttons = (Button(label="Again", command="/status"),)
            await local.adapter.send(request(local.direct_chat, "All is **well**.", key="k1", buttons=buttons))
            before = await local.screen()
        for _ in range(2):
            local.adapter = local.another_adapter(port=port)
            async with running(local.adapter, commands):
                assert (await local.screen()).entries == before.entries
        assert texts(before) == ["first question", "first answer", "/status", "All is well."]
        [(note,)] = await local.store.read(
            lambda db: db.execute("SELECT value FROM meta WHERE key = 'local.remembered'").fetchall()
        )
        assert "first answer" not in note, "the transcript has it"


async def test_a_note_of_another_version_is_ignored(tmp_path: Path) -> None:
    async with LocalHarness(tmp_path) as local:
        await local.store.write(save_note, "local.remembered", '{"main": [{"kind": "from the future"}]}')
        async with local.running():
            await local.sign_in()
            assert texts(await local.screen()) == []


async def test_queued_messages_are_shown_after_a_restart(local: LocalHarness) -> None:
    await local.write("still waiting")
    local.adapter = local.another_adapter()
    async with local.running():
        assert texts(await local.screen()) == ["still waiting"]


@pytest.mark.parametrize("moment", ["owed", "sent, not noted", "noted"])
async def test_an_answer_is_shown_once_at_every_moment_of_its_delivery(local: LocalHarness, moment: str) -> None:
    turn = await begin(local, "why?")
    await turn.show("Bec")
    await turn.finish("Because")
    if moment != "owed":
        await turn.deliver(is_noted=moment == "noted")
        assert texts(await local.screen()) == ["why?", "Because"]
    else:
        async with local.opened() as page:
            assert texts(await local.screen()) == ["why?", "Bec"]
            await turn.deliver()
            assert Screen((await page.next()).data).of("answer")[0].ref == turn.ref
        assert texts(await local.screen()) == ["why?", "Because"]


@pytest.mark.parametrize("is_same_millisecond", [False, True])
async def test_earlier_conversations_are_shown_above_a_divider(local: LocalHarness, is_same_millisecond: bool) -> None:
    await whole_turn(local, "first question", "first answer")
    await local.store.write(sessions.reset, local.intake.chat_id, local.clock.now())
    if is_same_millisecond:
        local.clock = SetClock(local.clock.now() + 60_000)
    await whole_turn(local, "second question", "second answer")
    screen = await local.screen()
    assert [entry.kind for entry in screen.entries] == ["person", "answer", "divider", "person", "answer"]
    assert texts(screen)[0] == "first question"


async def test_undone_messages_stay_and_are_marked(local: LocalHarness) -> None:
    await whole_turn(local, "a slip", "an answer to it")

    await undo(local, "a slip")
    [slip, answer] = (await local.screen()).entries
    assert slip.text == "a slip"
    assert "undone" in slip.classes
    assert "undone" not in answer.classes


async def test_an_open_page_marks_messages_that_are_undone(local: LocalHarness) -> None:
    await whole_turn(local, "a slip", "an answer to it")
    async with local.opened() as page:
        await undo(local, "a slip")
        await local.adapter.show_typing(local.direct_chat)
        [slip] = Screen(await page.until(">undone<")).entries
        assert slip.text == "a slip"


async def test_a_stopped_answer_is_marked(local: LocalHarness) -> None:
    turn = await begin(local, "a long story")
    await turn.show("Once upon")
    await local.store.write(journal.stop_turn, turn.turn, "Once upon", "stopped", local.clock.now(), notice="(stopped)")
    await turn.deliver()
    local.adapter = local.another_adapter()
    async with local.running():
        assert "stopped" in await local.page()


async def test_a_long_chat_is_read_page_by_page_without_gap_or_repeat(local: LocalHarness) -> None:
    turn = await begin(local, "message 0")
    count = PAGE_ROWS * 2 + 10

    await local.store.write(copy, "message 0", count, 0)
    await turn.finish("that was a lot")
    await turn.deliver()
    html = await local.page()
    seen = texts(Screen(html))
    while found := re.search(r"/chat/main(/earlier\?before=\d+)", html):
        html = await local.page("main", found.group(1))
        seen = texts(Screen(html)) + seen
    assert seen == [*(f"message {number}" for number in range(count)), "that was a lot"]


async def test_a_call_on_an_earlier_page_than_its_result_is_shown_as_done(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    await turn.finish_tool(await turn.call_tool("Let me look."), "m12: the plan")
    await turn.finish("found")
    await turn.deliver()

    await local.store.write(copy, "found", PAGE_ROWS - 1, 0)  # the result is the first row of the newest page
    html = await local.page()
    assert Screen(html).of("tool") == []
    [earlier] = re.findall(r"/chat/main(/earlier\?before=\d+)", html)
    [call] = Screen(await local.page("main", earlier)).of("tool")
    assert "done" in call.text
    assert "running" not in call.text


async def test_a_notice_is_on_the_page_of_its_time(local: LocalHarness) -> None:
    await whole_turn(local, "hello", "good day")
    await local.adapter.send(request(local.direct_chat, "that is what was used"))

    await local.store.write(copy, "good day", PAGE_ROWS + 1, 3_600_000)
    html = await local.page()
    assert "that is what was used" not in html
    [earlier] = re.findall(r"/chat/main(/earlier\?before=\d+)", html)
    assert texts(Screen(await local.page("main", earlier))) == ["hello", "good day", "that is what was used"]


async def test_long_arguments_of_a_call_are_shortened(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    await turn.call_tool("Let me look.", "\n" * 3_000_000)
    html = await local.page()
    assert "(3,000,000 characters in total)" in html
    assert len(html) < 50_000


async def test_text_next_to_calls_is_rendered_once(local: LocalHarness) -> None:
    turn = await begin(local, "look it up")
    async with local.opened():
        for number in range(40):
            await turn.call_tool(f"{number} {'*word* ' * 100}")
        await local.adapter.show_typing(local.direct_chat)
        before = to_html.cache_info().misses
        await local.adapter.show_typing(local.direct_chat)
        assert to_html.cache_info().misses == before


# ---- ChatStream -------------------------------------------------------------------------------------------------


# ---- editing a message


async def editable(local: LocalHarness) -> dict[str, Any]:
    async with local.browser.get(f"{local.root}/chat/main/editable", headers=local.headers()) as answer:
        return dict(await answer.json()) if answer.status == 200 else {"status": answer.status}


async def test_an_edited_message_replaces_the_old_one(local: LocalHarness) -> None:
    await whole_turn(local, "a slip", "an answer to it")
    found = await editable(local)
    assert (found["text"], found["files"]) == ("a slip", [])
    for _ in range(2):  # the browser sends it again if it got no response
        fields = {"text": "better", "edits": found["ref"], "client_id": "b" * 32}
        assert (await local.post(fields))[0] == 200
    sent = list(dict.fromkeys(event.text for event in local.intake.events if isinstance(event, InboundMessage)))
    assert sent == ["a slip", "/undo", "better"]
    assert len(set(local.intake.offered)) == 3


async def test_a_waiting_notice_does_not_prevent_an_edit(local: LocalHarness) -> None:
    turn = await begin(local, "a slip")
    await turn.finish("an answer to it")
    await turn.deliver()
    text = "Background command 3 has ended."
    await local.store.write(lambda db: receive(db, turn.chat_id, text, kind=inbox.InboxKind.NOTICE))
    assert (await editable(local))["text"] == "a slip"


async def test_an_answer_that_is_being_written_cannot_be_edited(local: LocalHarness) -> None:
    await whole_turn(local, "first question", "first answer")
    ref = (await editable(local))["ref"]
    turn = await begin(local, "second question")
    assert await editable(local) == {"status": 409}
    await turn.finish("second answer")
    await turn.deliver()
    status, body = await local.post({"text": "better", "edits": ref, "client_id": "b" * 32}, files=[("a.txt", b"x")])
    assert status == 409
    assert "can no longer be edited" in body
    assert [event.text for event in local.intake.events if isinstance(event, InboundMessage)][-1] == "second question"


def test_a_slow_page_gets_only_the_newest_event_of_a_slot() -> None:
    stream = ChatStream()
    beginning = stream.newest_id
    with stream.watched():
        for number in range(1_000):
            stream.publish(partial(str, number), slot="preview")
    assert stream.after(beginning) == ["999"]


def test_a_page_that_missed_too_much_gets_none() -> None:
    stream = ChatStream()
    ids = [stream.newest_id]
    with stream.watched():
        for number in range(MAX_EVENTS + 1):
            stream.publish(partial(str, number))
            ids.append(stream.newest_id)
    assert stream.after(ids[0]) is None
    missed = stream.after(ids[1])
    assert missed is not None
    assert len(missed) == MAX_EVENTS


def test_nothing_is_rendered_while_no_page_is_open() -> None:
    stream = ChatStream()

    def render() -> str:
        raise AssertionError("nobody looks")

    beginning = stream.newest_id
    stream.publish(render)
    assert stream.after(beginning) is None
    assert stream.after(stream.newest_id) == []


async def test_a_fragment_keeps_its_lines() -> None:
    assert await encode("a\nb\r\nc\rd", "x-1") == b"id: x-1\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
