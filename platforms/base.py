"""Interface between the gateway and the adapters of chat services.

An adapter converts SDK objects to our own values, and our values to SDK calls. The gateway makes all decisions.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from hermes_state.errors import MessageRejected, PlatformUnavailable
from hermes_state.ratings import SignedMessage
from hermes_state.values import (
    Button,
    ChatKey,
    Cursor,
    InboundEvent,
    InboundMessage,
    IncomingAttachment,
    Millis,
    OutboundPart,
)
from platforms.console import Console


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Features and limits of a platform. The gateway checks these values, never the platform's name."""

    max_part_units: int
    """Maximum length of a message, in UTF-16 code units."""
    preview_interval_seconds: float
    """Minimum time between two previews in one direct chat, in seconds."""
    shared_preview_interval_seconds: float
    """Minimum time between two previews in groups, in seconds. Platforms limit edits in groups more strictly."""
    has_buttons: bool
    typing_seconds: float | None
    """Seconds for which a typing indicator stays visible, or None if the platform has no typing indicator."""
    has_files: bool = False
    """True if the platform can send the end of a long reply as a file."""
    max_file_bytes: int = 0
    """Maximum size of a file, in bytes; 0 if the platform accepts no files."""
    preview_seconds: float | None = None
    """Seconds after which a preview without a placeholder disappears unless it is shown again. None: it stays."""
    shows_steps: bool = False
    """True if previews show the turn's steps and a Stop button. False if the platform shows the progress itself."""
    finds_previews: bool = False
    """True if `show` can find a turn's placeholder by the turn's id (`Preview.number`)."""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """Value that follows a command's name. Values are separated by spaces, in the order of `options`."""

    name: str
    """Name for menus, a lower-case Python identifier."""
    description: str
    choices: tuple[str, ...] = ()
    """Allowed values; empty if any text is allowed."""
    _: KW_ONLY
    is_number: bool = False
    is_required: bool = False
    has_suggestions: bool = False
    """True if `Intake.suggestions` proposes values. Other values are also accepted."""


class CommandAction(msgspec.Struct, frozen=True):
    """Sub-command, such as `add` of `/schedule`."""

    words: str
    """Name of the sub-command: one word, or several words separated by one space."""
    description: str
    options: tuple[CommandOption, ...] = ()


CommandPlace: TypeAlias = Literal["anywhere", "direct", "groups"]
"""Kind of chat in which a command is useful, and whose menu shows it."""


class MenuCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command in the platform's command menu."""

    name: str
    description: str
    argument: str | None
    """Argument that can follow the name, as shown to people (`[title]`), or None."""
    options: tuple[CommandOption, ...] = ()
    actions: tuple[CommandAction, ...] = ()
    """Sub-commands. A command with sub-commands has no options of its own."""
    is_admin_only: bool = False
    is_private: bool = False
    """True if only the person who sends the command needs the reply."""
    public: str | None = None
    """Regular expression for arguments whose reply concerns everybody in the chat, even if `is_private` is set."""
    place: CommandPlace = "anywhere"


class OutboundFile(msgspec.Struct, frozen=True, kw_only=True):
    """File that is sent with a part."""

    name: str
    mime: str
    size_bytes: int
    content: bytes | Callable[[], bytes]
    """Content of the file, or a function that reads the stored file, which may have been deleted."""
    attachment_id: int | None = None
    """Database id of the file, if the file is stored."""
    is_voice: bool = False
    """True for a recording of an answer, which the platform should show as a voice message."""

    async def read(self) -> bytes:
        """Return the content. Raises `MessageRejected` if it was deleted, and `PlatformUnavailable` on a disk error."""
        if isinstance(self.content, bytes):
            return self.content
        try:
            return await asyncio.to_thread(self.content)
        except FileNotFoundError as error:
            raise MessageRejected("the file is no longer stored") from error
        except OSError as error:
            raise PlatformUnavailable(f"the file cannot be read: {error.strerror or error}") from error


class TextKind(StrEnum):
    """Author and purpose of a message's text."""

    ANSWER = "answer"
    """Text from the model. The gateway writes the texts of all other kinds."""
    REPLY = "reply"
    """Reply to a command."""
    NOTICE = "notice"
    QUESTION = "question"
    """Approval request, or the same message with its outcome."""
    FAILURE = "failure"
    """Error that ended a turn. `/retry` runs the turn again."""
    ERROR = "error"
    """Any other error."""


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message, with everything that an adapter needs to retry without showing the part twice."""

    chat: ChatKey
    part: OutboundPart
    key: str
    """Idempotency key, the same for every attempt to send this part; at most 25 ASCII characters."""
    replaces: str | None = None
    """Id of the message that this part replaces, such as the preview's placeholder."""
    only_edits: bool = False
    """True if nothing is sent in case the message in `replaces` is gone."""
    reply_to: str | None = None
    ticket: str | None = None
    is_repeat: bool = False
    """True if an earlier attempt had an unknown outcome, so the message might already be visible."""
    first_tried_at: Millis | None = None
    is_plain: bool = False
    """True if the platform rejected the formatting or the file, so the adapter sends only `part.plain`."""
    file: OutboundFile | None = None
    """File to send with the part. Ignored if `is_plain` is set."""
    text_kind: TextKind = TextKind.ANSWER


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Unfinished answer of a running turn."""

    chat: ChatKey
    is_shared: bool
    number: int
    """Id of the turn, which is the same for all its previews and never 0."""
    text: str
    ref: str | None
    """Id of the placeholder message that an earlier preview created; None for the first preview."""
    reply_to: str | None = None
    """Id of the message that the placeholder replies to. A later edit cannot turn the placeholder into a reply."""
    buttons: tuple[Button, ...] = ()
    """Buttons below the preview. A preview with buttons needs a placeholder message."""
    since: Millis | None = None
    """If set, send nothing. Instead, find the turn's placeholder, which was sent after this time but never recorded."""


class AdapterState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STANDBY = "standby"
    """State of an adapter whose account is served by another node."""


STATE_WORDS: Final = {
    AdapterState.STARTING: "Starting",
    AdapterState.RUNNING: "Connected",
    AdapterState.STALLED: "No answer from the service",
    AdapterState.BACKING_OFF: "Waiting before the next attempt",
    AdapterState.FAILED: "Stopped; needs the owner's attention",
    AdapterState.STANDBY: "Served by another node",
}
"""Words for people."""


class AdapterHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of an adapter. An adapter that is connected but makes no progress is not healthy."""

    state: AdapterState
    last_progress_at: Millis | None
    """Time at which the platform last answered a poll or a heartbeat."""
    detail: str = ""
    """One sentence about the adapter's state, for the operator."""
    hears_groups: bool = True
    """False if the platform delivers only those group messages that address the bot."""

    @property
    def is_ready(self) -> bool:
        return self.state in (AdapterState.RUNNING, AdapterState.STANDBY)


class ReceivedEvent(msgspec.Struct, frozen=True):
    """Event for the intake, with the cursor position after it. If the event is None, only the cursor moves."""

    event: InboundEvent | None
    cursor: Cursor | None = None


class Intake(Protocol):
    """The gateway's intake, which receives the events of all adapters."""

    @property
    def console(self) -> Console:
        """Data and actions of the web pages."""

    async def accept(self, event: InboundEvent, cursor: Cursor | None = None) -> None:
        """Store the event (unless it is a duplicate, ignored or denied) and move the cursor in the same commit.

        Returns after the commit. Only then is the adapter allowed to acknowledge the event to the platform. Raises
        `StoreUnavailable` if nothing could be stored; the adapter must then deliver the event again.
        """

    async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        """Store one or more events from the start of a batch, in order, in one commit.

        Return the number of stored events. An error refers to the first event and means that nothing was stored.
        See `accept`.
        """

    async def overhear(self, event: InboundEvent) -> None:
        """Let an urgent event (`/stop`) take effect before it is stored. `accept` must still be called to store it."""

    def refusal(self, event: InboundMessage) -> str | None:
        """Return the reason why the slash command or button is refused, or None if it is accepted. Stores nothing."""

    def suggestions(self, event: InboundMessage) -> Sequence[str]:
        """Return suggested values for the option of an unfinished command. Empty if the person may not use it."""

    async def next_admins(self, platform: str, known: frozenset[str] | None) -> frozenset[str]:
        """Wait until the ids of the platform's admins differ from `known`, and return them."""

    async def load_cursors(self, platform: str, account: str) -> Mapping[str, str]:
        """Return the stored cursors, which map each `channel_ref` to its `seen_ref`."""

    async def move_chat(self, platform: str, account: str, old_ref: str, new_ref: str) -> None:
        """Change the stored id of a group that became a supergroup."""

    async def note_reach(self, platform: str, account: str, chat_ref: str, is_reachable: bool) -> None:
        """Record that a person blocked or removed the bot, or allowed it to write again."""


class PlatformAdapter(Protocol):
    """Adapter for one account (bot) on one chat service."""

    @property
    def name(self) -> str:
        """Name of the configured account, which is `ChatKey.account`."""

    @property
    def capabilities(self) -> Capabilities: ...

    def health(self) -> AdapterHealth: ...

    async def run(self, intake: Intake) -> None:
        """Receive events until cancelled, then close all connections. Can be called again afterwards.

        Raises `TokenRejected` if only the operator can fix the problem, and another `PlatformError` if a new attempt
        might succeed. The supervisor then backs off and calls `run` again.
        """

    def render(self, text: str) -> Sequence[OutboundPart]:
        """Render Markdown as at least one part, each within the limit. Has no side effects and never raises."""

    async def send(self, request: SendRequest) -> str:
        """Deliver one part, and return the platform's id of the visible message.

        Raises `PlatformUnavailable`, `SendAmbiguous`, `RateLimited`, `MessageRejected`, `ChatUnreachable` and
        `ChatMoved`.
        """

    async def show(self, preview: Preview) -> str | None:
        """Show or update a preview.

        Return the id of its placeholder message, or None if there is no placeholder. Raises the errors of
        `send`. A lost preview does no harm.
        """

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        """Show that an answer is being written, or a voice message recorded. Raises the errors of `send`."""

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        """Set a reaction. Return False if the message was deleted or reactions do not exist. Raises like `send`."""

    async def sees_reactions(self, group: ChatKey) -> bool:
        """Return False if the platform does not report people's reactions in this group to the bot."""

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        """Write the file to `target`, and return its size in bytes.

        Raises `FileSizeExceeded` if it is larger than `max_bytes` or than the platform's download limit,
        `MessageRejected` if it was deleted, and `PlatformUnavailable` if a retry might succeed.
        """
