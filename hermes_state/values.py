"""Immutable values that several packages share: ids, chats, incoming and outgoing messages."""

import re
import time
from collections.abc import Callable
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

Progress: TypeAlias = Callable[[str, int, int], None]
"""Function that long work calls with the name of a step, how much of it is done, and how much there is in total."""

Tokens = NewType("Tokens", int)
"""Number of tokens set by people or providers, such as a window, a limit or a budget."""

EstimatedTokens = NewType("EstimatedTokens", int)
"""Number of tokens that the gateway estimates. The type keeps estimates apart from the counts that providers report."""

ReportedTokens = NewType("ReportedTokens", int)  # counted by a provider

MicroUsd = NewType("MicroUsd", int)  # millionths of a US dollar

UserRef = NewType("UserRef", str)
"""A person's platform and stable id, as written in the configuration: `telegram:42`."""

LOCAL_OWNER = UserRef("local:owner")
"""Person who signs in with the links that `hermes-gateway url` prints. Always an admin."""


class Clock(Protocol):
    """Source of the current time, replaced in tests."""

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
        """True if more than one person can write in the chat."""
        return self not in (ChatKind.DIRECT, ChatKind.LOCAL)


class ChatKey(msgspec.Struct, frozen=True, kw_only=True):
    """A chat. `account` names the bot: the platform's name for its first bot, `telegram/operations` for another one.

    `thread_ref` is a forum topic, for platforms that number topics inside a chat. `user_ref` (a person's bare platform
    id) is set only under `sessions.groups: per_user`.
    """

    platform: str
    account: str
    chat_ref: str
    thread_ref: str = ""
    user_ref: str = ""

    @property
    def name(self) -> str:
        """The chat as people see it: `telegram:42`, `telegram:-100123/7#42`, `telegram/operations:42`."""
        thread = f"/{self.thread_ref}" if self.thread_ref else ""
        user = f"#{self.user_ref}" if self.user_ref else ""
        return f"{self.account}:{self.chat_ref}{thread}{user}"


class ChatScope(msgspec.Struct, frozen=True, kw_only=True):
    """Where a Discord chat is, and the roles of the person whose session it is."""

    guild_ref: str = ""
    """Id of the server."""
    parent_ref: str = ""
    """Id of the channel to which a thread belongs."""
    role_refs: str = ""
    """Ids of the person's roles in the server, the highest role first, with spaces between them."""

    @property
    def roles(self) -> list[str]:
        return self.role_refs.split()


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation and, during a turn, that turn."""

    chat_id: ChatId
    lineage_id: LineageId
    chat: ChatKey
    chat_kind: ChatKind
    turn_id: TurnId | None = None
    paid_by: tuple[LineageId, TurnId] | None = None
    """Conversation and turn to which a sub-agent's costs are charged. None means this conversation."""


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """Author of a message. `id` is the platform's stable id. `name` is only for display and never decides access."""

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
    """A received file that is not downloaded yet. Only the adapter knows what `file_ref` means."""

    kind: AttachmentKind
    file_ref: str
    name: str
    mime: str | None = None
    size_bytes: int | None = None
    seconds: float | None = None  # length of a recording, if known
    is_quoted: bool = False  # belongs to the quoted message


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The quoted message as the platform shows it. Its content is untrusted.

    `message_ref` is empty if the message is in another chat.
    """

    message_ref: str
    author: str
    text: str
    is_from_bot: bool = False
    is_selection: bool = False  # the sender selected this part of the message


class InputKind(StrEnum):
    TYPED = "typed"
    SLASH = "slash"
    BUTTON = "button"
    PAGE = "page"
    """Button that shows another page of a list in place of the message."""
    SCHEDULED = "scheduled"
    CLIENT = "client"
    """Text from a program, such as an API client or a script. It is never a command."""


class PlatformEvent(msgspec.Struct, frozen=True, kw_only=True):
    event_ref: str
    """Id of the platform event, even if it is redelivered. It starts with the bot's id."""
    chat: ChatKey
    message_ref: str
    """The platform's id of the message itself."""
    sent_at: Millis
    """The platform's time, which orders and merges messages."""


class InboundMessage(PlatformEvent, frozen=True, kw_only=True):
    """A message, slash command or button press from a platform.

    For a slash command or button, `text` holds the command line (`/stop`, `/title Plans`), without a mention of the
    bot.
    """

    chat_kind: ChatKind
    sender: Sender
    text: str
    is_addressed: bool  # direct chat, mention, reply to the bot, command to this bot, or button
    is_bare_command: bool = False
    """True for a command without a bot's name, which addresses every bot in the chat that knows the command."""
    via: InputKind = InputKind.TYPED
    expects_more: bool = False
    """True if another message probably follows: this one is near the platform's length limit, or part of an album."""
    chat_title: str | None = None
    attachments: tuple[IncomingAttachment, ...] = ()
    quote: Quote | None = None
    words_by: str | None = None
    """Original author of a forwarded text (empty if unknown), or None if the sender wrote the text."""
    ticket: str | None = None
    """Token for a direct reply to a slash command. It is valid for minutes, and only in this process."""
    direct_ref: str | None = None
    """`chat_ref` with which the bot can try to write to the sender in private. None: the platform has no such chat."""
    scope: ChatScope | None = None
    """Server, parent channel, and roles of the sender. None if unknown, or if there is no server."""

    @property
    def is_literal(self) -> bool:
        """True if the text cannot be a command, because a program or another author wrote it."""
        return self.words_by is not None or self.via is InputKind.CLIENT


class EditEvent(PlatformEvent, frozen=True, kw_only=True):
    sender: Sender
    text: str
    words_by: str | None = None  # see `InboundMessage`

    @property
    def is_literal(self) -> bool:
        return self.words_by is not None


class DeletionEvent(PlatformEvent, frozen=True, kw_only=True):
    """A person or the platform deleted a message."""


class ReactionEvent(PlatformEvent, frozen=True, kw_only=True):
    """A person added or removed a thumbs-up or thumbs-down. `chat` has no thread if the platform does not report it."""

    sender: Sender
    value: int  # 1: thumbs-up; -1: thumbs-down
    is_removed: bool


THUMBS = {"\N{THUMBS UP SIGN}": 1, "\N{THUMBS DOWN SIGN}": -1}  # value of a `ReactionEvent` by emoji

InboundEvent: TypeAlias = InboundMessage | EditEvent | DeletionEvent | ReactionEvent


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Position in a channel: all messages up to and including `seen_ref` have been handled."""

    platform: str
    account: str
    channel_ref: str
    seen_ref: str


class Button(msgspec.Struct, frozen=True, kw_only=True):
    """A button below a message. Pressing it sends `command` on behalf of the person who pressed it."""

    label: str
    command: str
    turns_page: bool = False
    """True if the reply replaces the message, because it is another page of the same list."""


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file sent to a chat: a reference to an `attachments` row, never the bytes."""

    attachment_id: int
    name: str
    mime: str
    size_bytes: int
    path: str  # relative to the state directory's `attachments/`
    created_at: Millis


class OutboundPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rendered platform message, stored before the first send so that a retry sends the same bytes.

    `markup` (entities for Telegram) is private to the adapter. `plain` is sent if the platform rejects the formatting
    or the file.
    """

    text: str
    plain: str
    markup: str = ""
    buttons: tuple[Button, ...] = ()
    file: str = ""  # Markdown to send as a file
    attached: SentFile | None = None  # stored file to send, captioned with `text`


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call by the model. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file that a person sent."""

    name: str
    text: str
    was_truncated: bool = False


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a person sent: a reference to an `attachments` row, never the bytes."""

    attachment_id: int
    mime: str
    path: str  # relative to the state directory's `attachments/`


ReasoningEffort: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Amount of reasoning before an answer. Each protocol maps these words to its own parameters."""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """The model's reasoning before it called tools, in the form that its API expects back."""

    made_by: str
    """Protocol and model, such as `anthropic:claude-opus-4`. No other model can read the reasoning."""
    blocks: str  # JSON list


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a message besides its text, stored as JSON in `messages.body` (NULL if empty)."""

    calls: tuple[ToolCall, ...] = ()
    documents: tuple[Document, ...] = ()
    images: tuple[Image, ...] = ()
    quote: Quote | None = None
    words_by: str | None = None  # see `InboundMessage`
    notes: tuple[str, ...] = ()
    """Facts about this message for the model, such as an attachment that could not be read."""
    other_files: tuple[str, ...] = ()
    """Names of attached files that were not stored, because the model cannot read them."""
    was_interrupted: bool = False
    reasoning: Reasoning | None = None  # only with tool calls, because no API expects it after a complete answer


class MessageRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Source of a message row, set when the row is written."""

    HUMAN = "human"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SUMMARY = "summary"
    NOTICE = "notice"
    TODO = "todo"
    SYSTEM = "system"
    TALK = "talk"
    """A group message that did not address the bot."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored row of a transcript. It cannot be part of a reference cycle, so the garbage collector skips it."""

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

    @property
    def writer(self) -> str | None:
        """Name for exports: the person's name, or "Gateway" for its own notices."""
        return self.sender_name or ("Gateway" if self.origin is Origin.NOTICE else None)


Transcript: TypeAlias = tuple[Message, ...]


RECALL_ID = r"m(\d{1,18})"  # part of larger patterns


def recall_id(message_id: int) -> str:
    """Return the name by which people and models refer to a message, such as `m123`."""
    return f"m{message_id}"


def parse_recall_id(text: str) -> MessageId | None:
    """Return the message id of a recall id, or None for any other text.

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
    """Effect of a tool. After a restart, only interrupted `read_only` calls run again."""

    READ_ONLY = "read_only"
    WRITES = "writes"
    EXECUTES = "executes"


class CanonicalUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one model call, as reported by the provider. `input` excludes cache reads and cache writes."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> ReportedTokens:
        """Total number of prompt tokens, cached or not."""
        return ReportedTokens(self.input + self.cache_read + self.cache_write)

    @property
    def total(self) -> int:
        return self.prompt + self.output


MICROS = 1_000_000


def micro_usd(value: float) -> MicroUsd:
    return MicroUsd(round(value * MICROS))
