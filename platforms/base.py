"""Interface between the gateway and the adapters of chat services.

An adapter turns SDK objects into values and values into SDK calls. All decisions are the gateway's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from hermes_state.errors import MessageRejected, PlatformUnavailable
from hermes_state.values import ChatKey, Cursor, InboundEvent, InboundMessage, IncomingAttachment, Millis, OutboundPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a platform; the gateway asks this value, never the platform's name."""

    max_part_units: int
    """Longest message that the platform accepts, in UTF-16 code units."""
    preview_interval_seconds: float
    """Shortest time between two previews in one direct chat, in seconds."""
    shared_preview_interval_seconds: float
    """Shortest time between two previews in groups, in seconds: platforms count edits there more strictly."""
    has_buttons: bool
    typing_seconds: float | None
    """Seconds for which one typing signal is visible; None if there is none."""
    has_files: bool = False
    """A long reply may end in a file."""
    max_file_bytes: int = 0
    """Largest file that the platform accepts, in bytes; 0: none."""
    preview_seconds: float | None = None
    """Seconds for which a preview without a placeholder is visible unless shown again; None: for good."""
    finds_previews: bool = False
    """True if `show` finds the placeholder of a turn by its number."""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """Value that follows a command's name. In a command line, values are separated by spaces, in this order."""

    name: str
    """Name for menus, a lower-case Python identifier."""
    description: str
    choices: tuple[str, ...] = ()
    """The only values; empty: any text."""
    _: KW_ONLY
    is_number: bool = False
    is_required: bool = False
    has_suggestions: bool = False
    """`Intake.suggestions` knows values, and other values are accepted."""


@dataclass(frozen=True, slots=True)
class CommandAction:
    """Sub-command, such as `add` of `/schedule`."""

    words: str
    """Words after the command's name, separated by one space."""
    description: str
    options: tuple[CommandOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MenuCommand:
    """Command as the platform's own menu shows it."""

    name: str
    description: str
    argument: str | None
    """Argument that may follow the name, for people (`[title]`), or None."""
    options: tuple[CommandOption, ...] = ()
    actions: tuple[CommandAction, ...] = ()
    """Sub-commands of a command, which then has no options of its own."""
    is_admin_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundFile:
    """File that goes along with a part."""

    name: str
    mime: str
    size_bytes: int
    content: bytes | Callable[[], bytes]
    """The bytes, or a function that reads the stored file, which may be gone."""
    attachment_id: int | None = None
    """Row of a kept file."""

    async def read(self) -> bytes:
        """Return the bytes. Raises `MessageRejected` if they are gone, and `PlatformUnavailable` if the disk fails."""
        if isinstance(self.content, bytes):
            return self.content
        try:
            return await asyncio.to_thread(self.content)
        except FileNotFoundError as error:
            raise MessageRejected("the file is not kept any more") from error
        except OSError as error:
            raise PlatformUnavailable(f"the file cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """One part to deliver, with all an adapter needs to repeat it without showing it twice."""

    chat: ChatKey
    part: OutboundPart
    key: str
    """Idempotency key, the same for every attempt of this part; at most 25 ASCII characters."""
    replaces: str | None = None
    """Message of ours that this part is edited into: the preview's placeholder."""
    reply_to: str | None = None
    ticket: str | None = None
    is_repeat: bool = False
    """An earlier attempt ended ambiguously: the message may be there already."""
    first_tried_at: Millis | None = None
    is_plain: bool = False
    """The marked-up form or the file was rejected: send `part.plain`."""
    file: OutboundFile | None = None
    """File of the part, unless `is_plain`."""
    is_notice: bool = False
    """Words of the gateway, such as a command's reply or an error, not of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Unfinished answer of a running turn, shown while it grows."""

    chat: ChatKey
    is_shared: bool
    number: int
    """Id of the turn: same for all previews of a turn, never 0."""
    text: str
    ref: str | None
    """Placeholder that an earlier preview made, None the first time."""
    reply_to: str | None = None
    """Message that a placeholder answers: it becomes the final, and an edit cannot make it a reply any more."""
    since: Millis | None = None
    """Set: show nothing, and look for the placeholder of this turn, which was made after this time and never noted."""


class AdapterState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STANDBY = "standby"
    """Another node has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHealth:
    """Health of an adapter: it makes progress or not; being connected is not enough."""

    state: AdapterState
    last_progress_at: Millis | None
    """Time at which the platform last answered a poll or a heartbeat."""
    detail: str = ""
    """One sentence for the operator."""

    @property
    def is_ready(self) -> bool:
        return self.state in (AdapterState.RUNNING, AdapterState.STANDBY)


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """Event on its way to the intake, with the cursor that moves over it; no event: only the cursor moves."""

    event: InboundEvent | None
    cursor: Cursor | None = None


class Intake(Protocol):
    """Intake of the gateway, which adapters hand their events to."""

    async def accept(self, event: InboundEvent, cursor: Cursor | None = None) -> None:
        """Store the event (unless it is a duplicate, ignored or denied) and move the cursor with it.

        Returns after the commit: only then may the event be acknowledged to the platform. Raises `StoreUnavailable`
        when nothing could be stored; the event must then come again.
        """

    async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        """Store events that arrived together, in order, as far as one commit goes; returns how many: at least one.

        An error is about the first event, and nothing was stored then. See `accept`.
        """

    async def overhear(self, event: InboundEvent) -> None:
        """Look at an event that must wait because one before it cannot be stored.

        Acts on urgent events (`/stop`) and stores nothing: the event comes again through `accept`.
        """

    def refusal(self, event: InboundMessage) -> str | None:
        """Return the sentence that refuses a slash command or a button, which is not stored then; None: accept it."""

    def suggestions(self, event: InboundMessage) -> Sequence[str]:
        """Return values for the option of an unfinished command; none for a person who may not give the command."""

    async def next_admins(self, platform: str, known: frozenset[str] | None) -> frozenset[str]:
        """Return the ids of the platform's admins; waits while they are `known`."""

    async def load_cursors(self, platform: str, account: str) -> Mapping[str, str]:
        """`seen_ref` by `channel_ref`."""

    async def move_chat(self, platform: str, account: str, old_ref: str, new_ref: str) -> None:
        """Follow a chat to its new id (a group became a supergroup)."""

    async def note_reach(self, platform: str, account: str, chat_ref: str, is_reachable: bool) -> None:
        """Note that a person blocked or removed the bot, or let it write again."""


class PlatformAdapter(Protocol):
    """One account on one chat service."""

    @property
    def name(self) -> str:
        """Name of the configured account, which is `ChatKey.account`."""

    @property
    def capabilities(self) -> Capabilities: ...

    def health(self) -> AdapterHealth: ...

    async def run(self, intake: Intake) -> None:
        """Receive until cancelled; ends its own connections. May be called again after it ended.

        Raises `TokenRejected` when only the operator can help, any other `PlatformError` when a new attempt may
        succeed. The supervisor backs off and calls again.
        """

    def render(self, text: str) -> Sequence[OutboundPart]:
        """Render Markdown as at least one part, each within the platform's limit. Pure; raises nothing."""

    async def send(self, request: SendRequest) -> str:
        """Deliver one part; returns the platform's id of the visible message.

        Raises `PlatformUnavailable`, `SendAmbiguous`, `RateLimited`, `MessageRejected`, `ChatUnreachable` and
        `ChatMoved`.
        """

    async def show(self, preview: Preview) -> str | None:
        """Show or update a preview; returns the placeholder's id if the platform has one, or has found one.

        Raises what `send` raises; a lost preview is no harm.
        """

    async def show_typing(self, chat: ChatKey) -> None:
        """Show that an answer is being written. Raises what `send` raises."""

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        """Write the file to `target`; returns its size in bytes.

        Raises `FileSizeExceeded` when it is larger than `max_bytes` or than the platform hands out, `MessageRejected`
        when it is gone, and `PlatformUnavailable` when a retry may help.
        """
