"""The error tree, grouped by what the caller should do next.

HermesError
├── ConfigError        stop at start-up and name the key
├── LockUnavailable    another process has the lock: exit with code 75
├── PlatformError      sending or receiving failed
│   ├── PlatformUnavailable   the request had no effect: try again
│   ├── SendAmbiguous         the request may have had an effect: repeat only if people cannot see a duplicate
│   ├── RateLimited           wait `retry_after` seconds before sending again
│   ├── MessageRejected       the platform refuses this content: fall back to plain text
│   │   └── FileSizeExceeded  a received file is larger than `limit_bytes`
│   ├── ChatUnreachable       blocked, kicked or deleted: give up on this message
│   ├── ChatMoved             the chat has a new id: update it and continue
│   └── TokenRejected         fatal for this adapter, not for the daemon
├── ModelError         the turn fails or is retried; remedies are in `agent/model/errors.py`
│   ├── ModelUnavailable · ModelTimeout (ModelStallTimeout) · ModelRateLimited · AuthRejected · QuotaExceeded
│   ├── ContentRejected · ModelNotFound · ContextOverflow · OutputCapExceeded · ImageRejected · ShapeRejected
│   ├── ReplyMalformed (ReplyUnfinished)
│   └── SpendingCapExceeded · PriceNotFound
├── ToolError          becomes a tool result for the model; the turn continues
├── StateError
│   ├── StoreUnavailable      nothing was written; unique keys make a retry safe
│   │   └── StoreBroken           the database is damaged or missing: the operator must repair it
│   ├── SessionNotFound · LineageMoved
│   ├── LookupRejected        a name or id from a user matches nothing or too much
│   ├── PairingNotFound       no pairing request or paired person matches
│   └── DatabaseRejected      the database belongs to another program or a newer version
└── CommandError       its text is shown in the chat
"""

from dataclasses import dataclass, field
from enum import StrEnum

from hermes_state.values import CanonicalUsage, MicroUsd


class HermesError(Exception):
    """Base class of the gateway's own errors. The message is for people; code never parses it."""


class ConfigError(HermesError):
    """Invalid configuration. The message names the file or key and the next step."""


class LockUnavailable(HermesError):
    """Another running process, described by `holder`, has the lock."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PlatformError(HermesError):
    """A chat platform reported an error or could not be reached."""


class PlatformUnavailable(PlatformError):
    """The request had no effect, because the connection failed or the platform could not process it."""


class SendAmbiguous(PlatformError):
    """The connection broke after the request was sent, so the message may be visible."""


class RateLimited(PlatformError):
    """Flood control: send nothing to this chat for `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"rate limited for {retry_after:g} s")
        self.retry_after = retry_after


class MessageRejected(PlatformError):
    """The platform permanently refuses this content."""


class FileSizeExceeded(MessageRejected):
    """A file is larger than `limit_bytes`, a limit of the gateway or the platform."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the file is larger than {limit_bytes:,} bytes")
        self.limit_bytes = limit_bytes


class ChatUnreachable(PlatformError):
    """The bot was blocked or removed, or the chat is gone."""


class ChatMoved(PlatformError):
    """The chat continues under another id."""

    def __init__(self, new_chat_ref: str) -> None:
        super().__init__(f"chat moved to {new_chat_ref}")
        self.new_chat_ref = new_chat_ref


class TokenRejected(PlatformError):
    """The platform rejected the token. Only a new token helps."""


@dataclass(eq=False, repr=False)
class ModelError(HermesError):
    """A model call failed."""

    message: str
    retry_after: float | None = field(default=None, kw_only=True)
    """Seconds to wait before the next call, if the provider states a time."""
    usage: CanonicalUsage | None = field(default=None, init=False)
    """Usage that the provider reported before the failure. The call is still billed."""
    reported_cost: MicroUsd | None = field(default=None, init=False)
    has_answered: bool = field(default=False, init=False)
    """True if the model has answered in this conversation before, so its address and name are correct."""
    refused: "tuple[ModelError, ...]" = field(default=(), init=False)
    """Errors of earlier attempts to send the same request in another form. Each attempt was a separate call."""

    def __str__(self) -> str:
        return self.message


class ModelUnavailable(ModelError):
    """The network failed, or the provider is down or overloaded."""


class ModelTimeout(ModelError):
    """The provider did not answer in time, or its reply stopped partway."""


class ModelStallTimeout(ModelTimeout):
    """The connection is open, but the reply stopped growing."""


class ModelRateLimited(ModelError):
    """The provider received too many requests."""


@dataclass(eq=False, repr=False, kw_only=True)
class AuthRejected(ModelError):
    """The provider rejected the API key."""

    is_of_plan: bool = False  # the key is valid, but its plan does not include the model


class QuotaExceeded(ModelError):
    """The account has no credit left."""


class ContentRejected(ModelError):
    """The provider refused the content."""


class ModelNotFound(ModelError):
    """The provider does not know this model or address. Another prompt would not help."""


@dataclass(eq=False, repr=False, kw_only=True)
class ContextOverflow(ModelError):
    """The prompt exceeds the context window or another size limit."""

    prompt_tokens: int | None = None
    window: int | None = None  # context window in tokens, if known
    is_of_account: bool = False
    """True if the prompt fits the model but exceeds a limit of the account, such as tokens per minute."""
    is_of_input: bool = False
    """True if `window` is a limit for the prompt alone. The model's context window may be larger."""


@dataclass(eq=False, repr=False, kw_only=True)
class OutputCapExceeded(ModelError):
    """The requested output limit is too high."""

    cap: int | None = None  # highest allowed value, if stated
    is_of_model: bool = False  # the limit applies to every prompt and account


class ImageFault(StrEnum):
    """Reason why a provider rejected an image."""

    UNSUPPORTED = "unsupported"  # the model accepts no images
    TOO_LARGE = "too_large"
    """The image has too many bytes or pixels, or the whole request is too large because of its images."""
    TOO_MANY = "too_many"
    UNREADABLE = "unreadable"  # this image cannot be processed; others may work


@dataclass(eq=False, repr=False, kw_only=True)
class ImageRejected(ModelError):
    """The provider rejected an image, perhaps stating its limits."""

    fault: ImageFault = ImageFault.UNREADABLE
    max_bytes: int | None = None  # per image, before base64
    max_side: int | None = None  # longest side, in pixels
    max_count: int | None = None  # images per request


class ShapeRejected(ModelError):
    """The provider rejected the order, roles or ids of the messages."""


class ReplyMalformed(ModelError):
    """The provider's reply is incomplete or unreadable."""


class ReplyUnfinished(ReplyMalformed):
    """The provider accepted the request, but its reply broke off, or it could not parse the model's tool call."""


@dataclass(eq=False, repr=False, kw_only=True)
class SpendingCapExceeded(ModelError):
    """A spending cap forbids the call. No request was made."""

    cap: str = "costs.daily_cap"  # configuration key
    spent: MicroUsd | None = None
    limit: MicroUsd | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class PriceNotFound(ModelError):
    """A spending cap is set and the price of `model` is unknown. No request was made."""

    model: str = ""


class ToolError(HermesError):
    """A tool failed. The text is for the model."""


class StateError(HermesError):
    """An operation on the stored state failed."""


class StoreUnavailable(StateError):
    """The database cannot be read or written now. Nothing was stored."""


class StoreBroken(StoreUnavailable):
    """The database file is damaged, deleted or replaced. Only the operator can repair it."""


class SessionNotFound(StateError):
    """No session has this id."""


class LookupReason(StrEnum):
    """Reason why a name or id from a user was rejected."""

    MALFORMED = "malformed"
    NOT_FOUND = "not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    AMBIGUOUS_CHAT = "ambiguous_chat"
    AMBIGUOUS_SESSION = "ambiguous_session"
    OTHER_CHAT = "other_chat"  # belongs to a chat that this user may not see
    ALREADY_ACTIVE = "already_active"


class LookupRejected(StateError):
    """A name or id matches nothing, several things, or something hidden. `candidates` lists the first matches."""

    def __init__(self, reason: LookupReason, name: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(f"{reason.value}: {name[:200]!r}")
        self.reason = reason
        self.name = name
        self.candidates = candidates


class PairingNotFound(StateError):
    """No pairing request has this code, or no paired person has this user id."""


class LineageMoved(StateError):
    """The session is no longer the newest of its conversation, or has changed, because another change came first."""


class DatabaseRejected(StateError):
    """The database belongs to another program or a newer version, or its server is unsuitable."""


class CommandError(HermesError):
    """A command failed. The text is shown to the user."""
