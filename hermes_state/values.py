"""Immutable values of more than one package: ids, chats, messages in and out."""

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NewType, Protocol, TypeAlias

import msgspec

ChatId = NewType("ChatId", int)
SessionId = NewType("SessionId", int)
LineageId = NewType("LineageId", int)
MessageId = NewType("MessageId", int)
TurnId = NewType("TurnId", int)
InboxId = NewType("InboxId", int)
OutboxId = NewType("OutboxId", int)
AttachmentId = NewType("AttachmentId", int)

Millis = NewType("Millis", int)  # UTC milliseconds since the epoch

Tokens = NewType("Tokens", int)
"""Size in tokens that people or providers set: a window, a limit, a budget."""

EstimatedTokens = NewType("EstimatedTokens", int)
"""Our own guess, before a provider has counted. Never mixed with reported tokens."""

ReportedTokens = NewType("ReportedTokens", int)  # a provider's own count

MicroUsd = NewType("MicroUsd", int)  # money: millionths of a US dollar

UserRef = NewType("UserRef", str)
"""A person as configuration names them: platform and the platform's stable id, such as `telegram:42`."""


class Clock(Protocol):
    """Source of the time of day; tests bring their own."""

    def now(self) -> Millis: ...


class SystemClock:
    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)


class ChatKind(StrEnum):
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"
    LOCAL = "local"

    @property
    def is_shared(self) -> bool:
        """True where more than one person can write."""
        return self not in (ChatKind.DIRECT, ChatKind.LOCAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatKey:
    """A chat. `account` is the name of the configured adapter, which today is the platform's name.

    `thread_ref` is a forum topic where the platform numbers topics inside a chat. `user_ref` (the bare platform id of a
    person) is set only under `sessions.groups: per_user`.
    """

    platform: str
    account: str
    chat_ref: str
    thread_ref: str = ""
    user_ref: str = ""

    @property
    def name(self) -> str:
        """The chat as people see it: `telegram:42`, `telegram:-100123/7`, `telegram:-100123/7#42`."""
        thread = f"/{self.thread_ref}" if self.thread_ref else ""
        user = f"#{self.user_ref}" if self.user_ref else ""
        return f"{self.platform}:{self.chat_ref}{thread}{user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRef:
    """A conversation, and the turn on whose behalf it is looked at, if any."""

    chat_id: ChatId
    lineage_id: LineageId
    chat: ChatKey
    chat_kind: ChatKind
    turn_id: TurnId | None = None
    paid_by: tuple[LineageId, TurnId] | None = None
    """Conversation and turn that pay for a sub-agent; None: it pays for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Author of a message. `id` is the platform's stable id; `name` is for reading only and never decides access."""

    platform: str
    id: str
    name: str
    is_bot: bool = False

    @property
    def ref(self) -> UserRef:
        return UserRef(f"{self.platform}:{self.id}")


class AttachmentKind(StrEnum):
    IMAGE = "image"
    DOCUMENT = "document"
    VOICE = "voice"
    AUDIO = "audio"
    VIDEO = "video"
    OTHER = "other"


class IncomingAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file a person sent, not fetched yet. `file_ref` is opaque to everyone but the adapter."""

    kind: AttachmentKind
    file_ref: str
    name: str
    mime: str | None = None
    size_bytes: int | None = None
    seconds: float | None = None  # length of a recording, where the platform says so
    is_quoted: bool = False  # of the message that is quoted


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The message that a reply answers, as the platform showed it (no `message_ref`: in another chat). Untrusted."""

    message_ref: str
    author: str
    text: str
    is_from_bot: bool = False
    is_selection: bool = False  # the sender selected this part of the message


class InputKind(StrEnum):
    """Way in which an inbound message was made."""

    TYPED = "typed"
    SLASH = "slash"
    BUTTON = "button"
    SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """One message, slash command or button press from a platform.

    `event_ref` identifies the platform event and starts with the bot's id: an event that is delivered twice has the
    same one. A slash command or a button has its command line (`/stop`, `/title Plans`) in `text`, without the name and
    without a leading mention of the bot.
    """

    event_ref: str
    chat: ChatKey
    chat_kind: ChatKind
    sender: Sender
    text: str
    message_ref: str  # the platform's id of the message itself, for replies, edits and deletions
    sent_at: Millis  # the platform's time, which orders and merges messages
    is_addressed: bool  # direct chat, mention, reply to the bot, command to this bot, or button
    is_bare_command: bool = False
    """Addressed only by a command that names no bot: it is for whichever bots of the chat know it."""
    via: InputKind = InputKind.TYPED
    expects_more: bool = False
    """Another piece is likely to follow: within 200 UTF-16 units of the platform's limit, or part of an album."""
    chat_title: str | None = None
    attachments: tuple[IncomingAttachment, ...] = ()
    quote: Quote | None = None
    words_by: str | None = None
    """Author of its words if the sender only passed them on (empty: unknown); None: they are the sender's own."""
    ticket: str | None = None
    """Token with which the adapter answers a slash command in its own place; valid for minutes, in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditEvent:
    """A person's change of an earlier message."""

    event_ref: str
    chat: ChatKey
    sender: Sender
    text: str
    message_ref: str
    sent_at: Millis
    words_by: str | None = None  # see `InboundMessage`


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionEvent:
    """A deletion of a message on the platform."""

    event_ref: str
    chat: ChatKey
    message_ref: str
    sent_at: Millis


InboundEvent: TypeAlias = InboundMessage | EditEvent | DeletionEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Place in a channel: all messages up to and including `seen_ref` were handled."""

    platform: str
    account: str
    channel_ref: str
    seen_ref: str


class Button(msgspec.Struct, frozen=True, kw_only=True):
    """A button under a message. Pressing it sends `command` as the person who pressed."""

    label: str
    command: str


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is given to a chat: a reference to an `attachments` row, never the bytes."""

    attachment_id: int
    name: str
    mime: str
    size_bytes: int
    path: str  # relative to the state directory's `attachments/`
    created_at: Millis


class OutboundPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rendered platform message: stored before the first send, so that a retry sends the same bytes.

    Only the adapter that rendered it reads `markup` (entities for Telegram). `plain` is sent instead if the platform
    rejects the marked-up form, or the file.
    """

    text: str
    plain: str
    markup: str = ""
    buttons: tuple[Button, ...] = ()
    file: str = ""  # Markdown to send as a file; empty: none
    attached: SentFile | None = None  # kept file to send, with `text` as its caption


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asked for. `arguments` is its JSON text, exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file that a person sent, read into the turn."""

    name: str
    text: str
    was_truncated: bool = False


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a person sent: a reference to an `attachments` row, never the bytes."""

    attachment_id: int
    mime: str
    path: str  # relative to the state directory's `attachments/`


ReasoningEffort: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Effort of thinking before an answer; each protocol has words of its own."""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Thoughts of a model before it called tools, in the form that its API wants back."""

    made_by: str
    """Protocol and model, such as `anthropic:claude-opus-4`: no other model can read it."""
    blocks: str  # JSON list


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a message row besides its text; stored as JSON in `messages.body`, NULL when empty."""

    calls: tuple[ToolCall, ...] = ()
    documents: tuple[Document, ...] = ()
    images: tuple[Image, ...] = ()
    quote: Quote | None = None
    words_by: str | None = None  # see `InboundMessage`
    notes: tuple[str, ...] = ()
    """Facts for the model about this message, such as an attachment that could not be read."""
    was_interrupted: bool = False
    reasoning: Reasoning | None = None  # only with calls: after a whole answer no API wants it back


class MessageRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Source of a message row, set when it is written."""

    HUMAN = "human"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SUMMARY = "summary"
    NOTICE = "notice"
    TODO = "todo"
    SYSTEM = "system"


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One stored row of a transcript. It cannot be part of a cycle, so the collector need not walk long views."""

    id: MessageId
    session_id: SessionId
    seq: int
    role: MessageRole
    origin: Origin
    text: str | None
    body: MessageBody
    sender_ref: str | None
    sender_name: str | None
    turn_id: TurnId | None
    tool_call_id: str | None
    tool_name: str | None
    created_at: Millis


Transcript: TypeAlias = tuple[Message, ...]


RECALL_ID = r"m(\d{1,18})"  # pattern of a recall id inside other text


def recall_id(message_id: int) -> str:
    """Return the name of a stored message for people and models: `m123`."""
    return f"m{message_id}"


def parse_recall_id(text: str) -> MessageId | None:
    """Return the message that a recall id names; None for any other text.

    >>> parse_recall_id(" M123 ")
    123
    >>> parse_recall_id("123") is None
    True
    """
    found = re.fullmatch(RECALL_ID, text.strip(), re.IGNORECASE)
    return MessageId(int(found[1])) if found else None


class TurnState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class ToolEffect(StrEnum):
    """Effect of a tool on the world: a restart runs only `read_only` calls again."""

    READ_ONLY = "read_only"
    WRITES = "writes"
    EXECUTES = "executes"


class SessionKind(StrEnum):
    """Origin of a session: a conversation's first, one that continues another, or the first of a sub-agent."""

    ROOT = "root"
    CONTINUATION = "continuation"
    BRANCH = "branch"
    SUBAGENT = "subagent"


class EndReason(StrEnum):
    """End of a session."""

    COMPRESSION = "compression"
    UNDO = "undo"
    RESET = "reset"
    EXPIRED = "expired"
    SWITCHED = "switched"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalUsage:
    """Tokens of one model call as the provider reported them; the three prompt parts do not overlap."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> ReportedTokens:
        """Fresh input and both kinds of cached input."""
        return ReportedTokens(self.input + self.cache_read + self.cache_write)

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """Row of the ledger: a model call, also a failed one."""

    purpose: str
    route: str
    model: str
    outcome: str
    usage: CanonicalUsage | None
    took_ms: int
    is_estimated: bool = False
    """The usage is our estimate, or the price is that of the model's family."""
    cost: MicroUsd | None = None  # None: the usage or the price is unknown


MICROS = 1_000_000


def micro_usd(value: float) -> MicroUsd:
    """Convert dollars to millionths."""
    return MicroUsd(round(value * MICROS))
