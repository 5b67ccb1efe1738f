"""Contract of every platform adapter, as one test suite.

Subclass `AdapterContract` and give it a `harness` fixture. pytest then runs every test of the suite against your
adapter. A harness uses the platform's fake like a person at the other end: it writes, edits, presses buttons and reads
visible messages. Methods that a platform does not support keep their default, which skips the test.

    class TestDiscordContract(AdapterContract):
        @pytest.fixture
        async def harness(self, tmp_path):
            async with DiscordHarness(tmp_path) as harness:
                yield harness
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_state.errors import (
    ChatUnreachable,
    FileSizeExceeded,
    MessageRejected,
    PlatformError,
    PlatformUnavailable,
    RateLimited,
    SendAmbiguous,
    StoreUnavailable,
)
from hermes_state.values import (
    Button,
    ChatKey,
    ChatKind,
    Cursor,
    DeletionEvent,
    EditEvent,
    InboundEvent,
    InboundMessage,
    InputKind,
    OutboundPart,
    UserRef,
)
from platforms.base import AdapterState, PlatformAdapter, Preview, ReceivedEvent, SendRequest
from platforms.console import Values, WebPerson

Event = TypeVar("Event", InboundMessage, EditEvent, DeletionEvent)

Trouble = Literal["refused", "answer_lost", "flood", "blocked", "rejected"]
"""Fault of the next send: the connection is refused (or the service says that nothing happened); the message appears
but the answer is lost; flood control; the chat is gone; the content is refused."""

WAIT_SECONDS = 10.0
"""Maximum wait for something that takes milliseconds on an idle machine, because several suites share two cores."""


async def eventually(claim: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until `claim` is true, for states that offer no event."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for: {what}")
        await asyncio.sleep(0.005)


class EmptyConsole:
    """A console without pages, in which everybody is an admin."""

    pages = ()
    first_page: str | None = None

    def find_person(self, ref: UserRef, name: str) -> WebPerson | None:
        return WebPerson(ref=ref, name=name, is_admin=True)

    async def start_page(self) -> str | None:
        return self.first_page

    async def load(self, page: str, person: WebPerson, query: Mapping[str, str]) -> Values:
        raise AssertionError("there are no pages")

    async def act(self, page: str, action: str, person: WebPerson, form: Mapping[str, str]) -> str:
        raise AssertionError("there are no pages")


class RecordingIntake:
    """An intake that records accepted events in order, without duplicates, and can simulate failures."""

    def __init__(self) -> None:
        self.console = EmptyConsole()
        self.overheard: list[InboundEvent] = []
        self.events: list[InboundEvent] = []
        self.offered: list[str] = []
        """`event_ref` of every call, including duplicates and refused events."""
        self.cursors: dict[str, str] = {}
        self.moves: list[tuple[str, str]] = []
        self.reach: list[tuple[str, bool]] = []
        self.refused: dict[str, str] = {}
        """Refusals of slash commands and buttons, by their command lines."""
        self.suggested: tuple[str, ...] = ()
        """Suggested values for command options."""
        self.admins: frozenset[str] = frozenset()
        self.admins_changed = asyncio.Event()
        self.batch_length = 100
        """Maximum events in one commit."""
        self.batches: list[int] = []
        """Sizes of the offered batches."""
        self.capacity = 1_000_000
        """Maximum events that can be stored."""
        self.refusals = 0
        """Number of next calls that fail like an unwritable database."""
        self.gate = asyncio.Event()
        """While cleared, `accept` waits like a slow commit."""
        self.gate.set()
        self._refs: set[str] = set()

    async def accept(self, event: InboundEvent, cursor: Cursor | None = None) -> None:
        await self.accept_batch([ReceivedEvent(event, cursor)])

    async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        self.batches.append(len(received))
        batch = received[: self.batch_length]
        self.offered += [one.event.event_ref for one in batch if one.event is not None]
        await self.gate.wait()
        self._refuse_if_told()
        for event, cursor in ((one.event, one.cursor) for one in batch):
            if event is not None and event.event_ref not in self._refs:
                self._refs.add(event.event_ref)
                self.events.append(event)
            if cursor is not None:
                self.cursors[cursor.channel_ref] = cursor.seen_ref
        return len(batch)

    async def overhear(self, event: InboundEvent) -> None:
        self.overheard.append(event)

    def refusal(self, event: InboundMessage) -> str | None:
        return self.refused.get(event.text)

    def suggestions(self, event: InboundMessage) -> Sequence[str]:
        return self.suggested

    async def next_admins(self, platform: str, known: frozenset[str] | None) -> frozenset[str]:
        while self.admins == known:
            await self.admins_changed.wait()
            self.admins_changed.clear()
        return self.admins

    async def load_cursors(self, platform: str, account: str) -> Mapping[str, str]:
        return dict(self.cursors)

    async def move_chat(self, platform: str, account: str, old_ref: str, new_ref: str) -> None:
        self._refuse_if_told()
        self.moves.append((old_ref, new_ref))

    async def note_reach(self, platform: str, account: str, chat_ref: str, is_reachable: bool) -> None:
        self._refuse_if_told()
        self.reach.append((chat_ref, is_reachable))

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def messages(self) -> list[InboundMessage]:
        return self.of(InboundMessage)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    async def next_of(self, kind: type[Event], after: int = 0) -> Event:
        """Return the event of this kind at position `after`, once it has arrived."""
        await eventually(lambda: len(self.of(kind)) > after, f"{kind.__name__} number {after + 1}")
        return self.of(kind)[after]

    async def wait_for(self, count: int) -> list[InboundMessage]:
        await eventually(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages

    def _refuse_if_told(self) -> None:
        if len(self.events) >= self.capacity:
            raise StoreUnavailable("full")
        if self.refusals > 0:
            self.refusals -= 1
            raise StoreUnavailable("the test says so")


@contextlib.asynccontextmanager
async def running(adapter: PlatformAdapter, intake: RecordingIntake) -> AsyncIterator[None]:
    """Run the adapter until the block ends. It is ready when the block begins."""
    task = asyncio.create_task(adapter.run(intake), name="adapter under test")
    try:
        await eventually(lambda: adapter.health().is_ready or task.done(), "the adapter is ready")
        if task.done():
            await task
            pytest.fail("run() ended by itself")
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, WAIT_SECONDS)


def tasks_beside_the_fakes() -> set[asyncio.Task[object]]:
    """Return the running tasks, without those of the fake servers in this loop."""

    def is_fake(task: asyncio.Task[object]) -> bool:
        code = getattr(task.get_coro(), "cr_code", None)
        return code is not None and ("/tests/fakes/" in code.co_filename or "web_protocol" in code.co_filename)

    return {task for task in asyncio.all_tasks() if not is_fake(task)}


def skip(what: str) -> NoReturn:
    pytest.skip(f"this platform has no {what}")


class AdapterHarness(ABC):
    """A person at the other end of the platform's fake, and the messages that this person sees."""

    adapter: PlatformAdapter
    """Created but not running, with its menu and settings."""
    direct_chat: ChatKey
    """Private chat between the person and the bot; exists from the start."""
    person_id: str
    """The person's bare platform id."""

    @cached_property
    def intake(self) -> RecordingIntake:
        """The intake of the running adapter."""
        return RecordingIntake()

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Run the adapter until the block ends."""
        return running(self.adapter, self.intake)

    @abstractmethod
    async def write(self, text: str) -> str:
        """Write in the direct chat as the person, and return the platform's message id."""

    @abstractmethod
    async def visible(self, chat: ChatKey) -> list[str]:
        """Return the texts of the bot's messages that are visible in the chat, oldest first."""

    @property
    def has_outage_memory(self) -> bool:
        """True if the platform keeps messages while the bot is offline."""
        return True

    def group_chat(self) -> ChatKey:
        """Return a group that has the bot as a member."""
        skip("groups")

    async def write_in_group(self, text: str, *, is_mention: bool) -> str:
        """Write in the group as the person, and return the message id. A mention starts with the bot's name."""
        skip("groups")

    async def edit(self, message_ref: str, text: str) -> None:
        """Edit a message of the direct chat as the person."""
        skip("edits")

    async def delete(self, message_ref: str) -> None:
        """Delete a message of the direct chat as the person."""
        skip("deletions that bots learn of")

    async def reply(self, message_ref: str, text: str) -> str:
        """Reply to a message of the direct chat as the person."""
        skip("replies")

    async def press(self, label: str) -> None:
        """Press a button under the bot's newest message in the direct chat as the person."""
        skip("buttons")

    async def write_with_file(self, name: str, content: bytes) -> str:
        """Send a text document in the direct chat as the person."""
        skip("files")

    async def break_next_send(self, trouble: Trouble) -> None:
        """Make the bot's next message in the direct chat fail, once."""
        skip(f"trouble of the kind {trouble}")


def part(text: str, *, buttons: tuple[Button, ...] = ()) -> OutboundPart:
    return OutboundPart(text=text, plain=text, buttons=buttons)


def request(
    chat: ChatKey,
    text: str,
    *,
    key: str = "k1",
    replaces: str | None = None,
    buttons: tuple[Button, ...] = (),
    is_repeat: bool = False,
) -> SendRequest:
    content = part(text, buttons=buttons)
    return SendRequest(chat=chat, part=content, key=key, replaces=replaces, is_repeat=is_repeat)


def utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class AdapterContract:
    """Tests that hold for every adapter; see the module's docstring."""

    @pytest.fixture
    async def live(self, harness: AdapterHarness) -> AsyncIterator[AdapterHarness]:
        """The harness with a running adapter."""
        async with harness.running():
            yield harness

    # Life

    async def test_is_not_ready_before_it_runs(self, harness: AdapterHarness) -> None:
        assert not harness.adapter.health().is_ready

    async def test_running_means_progress_was_made(self, live: AdapterHarness) -> None:
        health = live.adapter.health()
        assert health.state is AdapterState.RUNNING
        assert health.last_progress_at is not None

    async def test_a_cancelled_run_ends_at_once_and_leaves_no_task(self, harness: AdapterHarness) -> None:
        before = tasks_beside_the_fakes()
        async with harness.running():
            await harness.adapter.send(request(harness.direct_chat, "hello"))
            started = time.monotonic()
        assert time.monotonic() - started < 20
        assert not harness.adapter.health().is_ready
        await eventually(lambda: tasks_beside_the_fakes() <= before, "every task of the adapter has ended")

    async def test_runs_again_after_it_ended(self, harness: AdapterHarness) -> None:
        async with harness.running():
            await harness.write("one")
            await harness.intake.wait_for(1)
        async with harness.running():
            await harness.write("two")
            await harness.intake.wait_for(2)
            await harness.adapter.send(request(harness.direct_chat, "still here"))
        assert harness.intake.texts == ["one", "two"]
        assert "still here" in await harness.visible(harness.direct_chat)

    async def test_sending_while_it_does_not_run_is_retryable(self, harness: AdapterHarness) -> None:
        with pytest.raises(PlatformUnavailable):
            await harness.adapter.send(request(harness.direct_chat, "hello"))

    # In

    async def test_a_direct_message_arrives_whole(self, harness: AdapterHarness) -> None:
        async with harness.running():
            ref = await harness.write("Grüße, 世界 👋 *as typed*")
            [message] = await harness.intake.wait_for(1)
        assert (message.text, message.chat) == ("Grüße, 世界 👋 *as typed*", harness.direct_chat)
        assert message.chat.account == harness.adapter.name
        assert not message.chat_kind.is_shared
        assert message.sender.id == harness.person_id
        assert message.sender.ref == f"{harness.direct_chat.platform}:{harness.person_id}"
        assert not message.sender.is_bot
        assert message.message_ref == ref
        assert message.is_addressed
        assert message.via is not InputKind.BUTTON
        assert not message.expects_more
        assert abs(message.sent_at / 1000 - time.time()) < 60

    async def test_messages_arrive_in_order_and_once(self, live: AdapterHarness) -> None:
        for number in range(12):
            await live.write(f"message {number}")
        await live.intake.wait_for(12)
        assert live.intake.texts == [f"message {number}" for number in range(12)]
        assert len({message.event_ref for message in live.intake.messages}) == 12

    async def test_messages_written_while_it_was_offline_arrive_in_order(self, harness: AdapterHarness) -> None:
        if not harness.has_outage_memory:
            skip("memory of an outage")
        async with harness.running():
            await harness.write("before")
            await harness.intake.wait_for(1)
        for number in range(6):
            await harness.write(f"message {number}")
        async with harness.running():
            await harness.intake.wait_for(7)
        assert harness.intake.texts[1:] == [f"message {number}" for number in range(6)]

    async def test_an_event_that_could_not_be_stored_is_delivered_again(self, live: AdapterHarness) -> None:
        live.intake.refusals = 1
        with contextlib.suppress(Exception):  # the local chat reports the error at once; other platforms retry
            await live.write("keep me")
        await live.intake.wait_for(1)
        assert live.intake.texts == ["keep me"]
        assert len(set(live.intake.offered)) == 1, "a redelivery carries the same event_ref"

    async def test_a_message_near_the_limit_expects_more(self, live: AdapterHarness) -> None:
        limit = live.adapter.capabilities.max_part_units
        await live.write("x" * (limit - 50))
        [message] = await live.intake.wait_for(1)
        assert message.expects_more

    async def test_a_command_keeps_its_arguments(self, live: AdapterHarness) -> None:
        await live.write("/title Plans for May")
        [message] = await live.intake.wait_for(1)
        assert message.text == "/title Plans for May"

    async def test_in_a_group_only_a_mention_addresses_the_bot(self, live: AdapterHarness) -> None:
        group = live.group_chat()
        await live.write_in_group("to somebody else", is_mention=False)
        await live.write_in_group("what do you think?", is_mention=True)
        first, second = await live.intake.wait_for(2)
        assert not first.is_addressed
        assert second.is_addressed
        assert second.text == "what do you think?", "a leading mention is removed"
        assert {first.chat, second.chat} == {group}
        assert second.chat_kind in (ChatKind.GROUP, ChatKind.CHANNEL, ChatKind.THREAD)

    async def test_an_edit_names_the_message_it_changes(self, live: AdapterHarness) -> None:
        ref = await live.write("firts")
        await live.intake.wait_for(1)
        await live.edit(ref, "first")
        edit = await live.intake.next_of(EditEvent)
        assert (edit.message_ref, edit.text, edit.chat) == (ref, "first", live.direct_chat)
        assert edit.event_ref != live.intake.messages[0].event_ref

    async def test_a_deletion_names_the_message(self, live: AdapterHarness) -> None:
        ref = await live.write("never mind")
        await live.intake.wait_for(1)
        await live.delete(ref)
        deletion = await live.intake.next_of(DeletionEvent)
        assert (deletion.message_ref, deletion.chat) == (ref, live.direct_chat)

    async def test_a_reply_quotes_the_answered_message(self, live: AdapterHarness) -> None:
        sent = await live.adapter.send(request(live.direct_chat, "word " * 300))
        await live.reply(sent, "why?")
        [message] = await live.intake.wait_for(1)
        assert message.text == "why?"
        assert message.quote is not None
        assert message.quote.message_ref == sent
        assert message.quote.is_from_bot
        assert message.quote.text.startswith("word word")
        assert len(message.quote.text) <= 500

    async def test_a_pressed_button_sends_its_command(self, live: AdapterHarness) -> None:
        if not live.adapter.capabilities.has_buttons:
            skip("buttons")
        buttons = (
            Button(label="Yes", command="/approve 7"),
            Button(label="Long", command="/title " + "a long title " * 12),
        )
        await live.adapter.send(request(live.direct_chat, "May I?", buttons=buttons))
        await live.press("Yes")
        await live.press("Long")
        first, second = await live.intake.wait_for(2)
        assert (first.text, first.via, first.sender.id) == ("/approve 7", InputKind.BUTTON, live.person_id)
        assert first.is_addressed
        assert second.text == "/title " + "a long title " * 12

    async def test_a_file_is_announced_and_can_be_fetched(self, live: AdapterHarness, tmp_path: Path) -> None:
        content = b"some lines\n" * 100
        await live.write_with_file("notes.txt", content)
        [message] = await live.intake.wait_for(1)
        [attachment] = message.attachments
        target = tmp_path / "fetched"
        size = await live.adapter.download(attachment, target, max_bytes=10_000)
        assert (size, target.read_bytes()) == (len(content), content)
        with pytest.raises(FileSizeExceeded) as caught:
            await live.adapter.download(attachment, tmp_path / "capped", max_bytes=100)
        assert (caught.value.limit_bytes, attachment.name) == (100, "notes.txt")

    # Out

    async def test_a_sent_part_is_visible_and_has_an_id(self, live: AdapterHarness) -> None:
        first = await live.adapter.send(request(live.direct_chat, "one", key="k1"))
        second = await live.adapter.send(request(live.direct_chat, "two", key="k2"))
        assert first
        assert second
        assert first != second
        assert await live.visible(live.direct_chat) == ["one", "two"]

    async def test_rendered_parts_can_be_sent(self, live: AdapterHarness) -> None:
        parts = live.adapter.render("# Head\n\n**bold** and `code`\n\n```python\nprint(1)\n```\n\n" + "word " * 2000)
        assert len(parts) > 1
        for number, content in enumerate(parts):
            await live.adapter.send(SendRequest(chat=live.direct_chat, part=content, key=f"k{number}"))
        assert len(await live.visible(live.direct_chat)) == len(parts)

    async def test_a_part_that_replaces_a_message_adds_no_other(self, live: AdapterHarness) -> None:
        ref = await live.adapter.send(request(live.direct_chat, "draft"))
        assert await live.adapter.send(request(live.direct_chat, "final", key="k2", replaces=ref)) == ref
        repeat = request(live.direct_chat, "final", key="k2", replaces=ref, is_repeat=True)
        assert await live.adapter.send(repeat) == ref
        assert await live.visible(live.direct_chat) == ["final"]

    async def test_a_preview_becomes_the_final_answer(self, live: AdapterHarness) -> None:
        ref = None
        for text in ("thin", "thinking", "thinking about it"):
            preview = Preview(chat=live.direct_chat, is_shared=False, number=9, text=text, ref=ref)
            ref = await live.adapter.show(preview) or ref
        await live.adapter.send(request(live.direct_chat, "thought", replaces=ref))
        assert await live.visible(live.direct_chat) == ["thought"]

    async def test_previews_in_a_group_share_one_placeholder(self, live: AdapterHarness) -> None:
        group = live.group_chat()
        ref = await live.adapter.show(Preview(chat=group, is_shared=True, number=9, text="thin", ref=None))
        again = await live.adapter.show(Preview(chat=group, is_shared=True, number=9, text="thinking", ref=ref))
        assert again in (ref, None)
        await live.adapter.send(request(group, "thought", replaces=ref))
        assert await live.visible(group) == ["thought"]

    async def test_an_abandoned_preview_does_not_look_like_a_second_answer(self, live: AdapterHarness) -> None:
        """The process that showed the preview was killed, and the next one does not know its placeholder."""
        group = live.group_chat()
        await live.adapter.show(Preview(chat=group, is_shared=True, number=9, text="thought", ref=None))
        await live.adapter.send(request(group, "thought"))
        shown = await live.visible(group)
        assert shown.count("thought") == 1
        assert set(shown) <= {"thought", "thought …"}

    async def test_a_preview_longer_than_a_message_is_cut(self, live: AdapterHarness) -> None:
        text = "```python\n" + "print('👋')\n" * 2000
        ref = await live.adapter.show(Preview(chat=live.direct_chat, is_shared=False, number=9, text=text, ref=None))
        await live.adapter.send(request(live.direct_chat, "done", replaces=ref))
        assert await live.visible(live.direct_chat) == ["done"]

    async def test_typing_can_be_shown(self, live: AdapterHarness) -> None:
        await live.adapter.show_typing(live.direct_chat)
        assert await live.visible(live.direct_chat) == []

    @pytest.mark.parametrize(
        ("trouble", "error", "shown"),
        [
            ("refused", PlatformUnavailable, []),
            ("answer_lost", SendAmbiguous, ["hello"]),
            ("flood", RateLimited, []),
            ("blocked", ChatUnreachable, []),
            ("rejected", MessageRejected, []),
        ],
    )
    async def test_a_failed_send_raises_what_delivery_needs_to_know(
        self, live: AdapterHarness, trouble: Trouble, error: type[PlatformError], shown: list[str]
    ) -> None:
        await live.break_next_send(trouble)
        with pytest.raises(error) as caught:
            await live.adapter.send(request(live.direct_chat, "hello"))
        assert not isinstance(caught.value, RateLimited) or caught.value.retry_after > 0
        assert await live.visible(live.direct_chat) == shown

    # Rendering

    # Rendering has no state, so neither a shared fixture nor another adapter can affect an example.
    @settings(
        max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(text=st.text(max_size=400) | st.text(st.sampled_from("a b\n`*_|<>[]()#$~-👋世"), max_size=6000))
    def test_any_text_renders_to_parts_within_the_limit(self, harness: AdapterHarness, text: str) -> None:
        parts = harness.adapter.render(text)
        assert parts
        limit = harness.adapter.capabilities.max_part_units
        for content in parts:
            assert content.text.strip()
            assert content.plain.strip()
            assert utf16_units(content.text) <= limit
            assert utf16_units(content.plain) <= limit

    def test_words_survive_rendering_in_order(self, harness: AdapterHarness) -> None:
        words = [f"word{number}" for number in range(3000)]
        shown = "\n".join(content.plain for content in harness.adapter.render("\n".join(words))).split()
        assert [word for word in shown if word.startswith("word")] == words
