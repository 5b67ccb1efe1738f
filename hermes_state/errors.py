"""The error tree, grouped by the catcher's next step.

HermesError
├── ConfigError        stop at start-up and name the key
├── LockUnavailable    another process holds the token or the database: stop with exit code 75
├── PlatformError      delivery or reception failed
│   ├── PlatformUnavailable   the request never took effect: try again
│   ├── SendAmbiguous         it may have taken effect: repeat only where a repeat cannot show twice
│   ├── RateLimited           wait `retry_after` seconds, send nothing meanwhile
│   ├── MessageRejected       the platform refuses this content: fall back to plain text
│   │   └── FileSizeExceeded  a file that was sent to us is above `limit_bytes`
│   ├── ChatUnreachable       nobody there any more (blocked, kicked, deleted): give up on this message
│   ├── ChatMoved             the chat has a new id: move it and go on
│   └── TokenRejected         fatal for this adapter, not for the daemon
├── ModelError         the turn fails or is tried again; `agent/model/errors.py` has the remedies
│   ├── ModelUnavailable · ModelTimeout (ModelStallTimeout) · ModelRateLimited · AuthRejected · QuotaExceeded
│   ├── ContentRejected · ModelNotFound · ContextOverflow · OutputCapExceeded · ImageRejected · ShapeRejected
│   ├── ReplyMalformed (ReplyUnfinished)
│   └── SpendingCapExceeded · PriceNotFound
├── ToolError          goes back to the model as a tool result; the turn goes on
├── StateError
│   ├── StoreUnavailable      nothing was written; the caller's keys make the retry safe
│   │   └── StoreBroken           the database is damaged or gone: only its operator can mend that
│   ├── SessionNotFound · LineageMoved
│   ├── LookupRejected        a name or id that people gave names nothing, or too much; `reason` says which
│   ├── PairingNotFound       no code or person of this kind is paired
│   └── DatabaseRejected      the database is not ours to open: another program's, or a newer version's
└── CommandError       its text is safe to show in the chat
"""

from dataclasses import dataclass, field
from enum import StrEnum

from hermes_state.values import CanonicalUsage, MicroUsd


class HermesError(Exception):
    """Root of all errors that we raise on purpose. The message is for a reader and is never parsed."""


class ConfigError(HermesError):
    """Unusable configuration; the message names the file or key and the next step."""


class LockUnavailable(HermesError):
    """Another living process, described by `holder`, has the lock."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PlatformError(HermesError):
    """Failure of a chat service."""


class PlatformUnavailable(PlatformError):
    """The request certainly had no effect: connecting failed, or the service said so."""


class SendAmbiguous(PlatformError):
    """The connection broke after the request left; the message may or may not be visible."""


class RateLimited(PlatformError):
    """Flood control; nothing may be sent to that chat for `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"rate limited for {retry_after:g} s")
        self.retry_after = retry_after


class MessageRejected(PlatformError):
    """The platform refuses this content for good."""


class FileSizeExceeded(MessageRejected):
    """A file cannot be fetched because it is larger than `limit_bytes`, ours or the platform's."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the file is larger than {limit_bytes:,} bytes")
        self.limit_bytes = limit_bytes


class ChatUnreachable(PlatformError):
    """The bot was blocked or removed, or the chat is gone."""


class ChatMoved(PlatformError):
    """The chat lives on under another id."""

    def __init__(self, new_chat_ref: str) -> None:
        super().__init__(f"chat moved to {new_chat_ref}")
        self.new_chat_ref = new_chat_ref


class TokenRejected(PlatformError):
    """The platform does not accept the token; only a new token helps."""


@dataclass(eq=False, repr=False)
class ModelError(HermesError):
    """A model call failed."""

    message: str
    retry_after: float | None = field(default=None, kw_only=True)
    """Seconds for which the provider asks not to be called, where it says so."""
    usage: CanonicalUsage | None = field(default=None, init=False)
    """Usage that the provider reported before it failed: the call is paid for."""
    reported_cost: MicroUsd | None = field(default=None, init=False)
    """Cost as the provider stated it."""
    has_answered: bool = field(default=False, init=False)
    """The model has answered in this conversation before, so that its address and name are right."""
    refused: "tuple[ModelError, ...]" = field(default=(), init=False)
    """Refusals of the same request before it, each put in another way then: calls, too."""

    def __str__(self) -> str:
        return self.message


class ModelUnavailable(ModelError):
    """Network trouble, or the provider is down or overloaded."""


class ModelTimeout(ModelError):
    """The provider did not answer, or stopped answering, in time."""


class ModelStallTimeout(ModelTimeout):
    """The provider keeps the line open, and the reply does not go on."""


class ModelRateLimited(ModelError):
    """Too many requests."""


@dataclass(eq=False, repr=False, kw_only=True)
class AuthRejected(ModelError):
    """The provider does not accept the key."""

    is_of_plan: bool = False  # the key is accepted, but its plan does not include the model


class QuotaExceeded(ModelError):
    """The account has no credit left."""


class ContentRejected(ModelError):
    """The provider refused the content."""


class ModelNotFound(ModelError):
    """The provider has no such model or address; the prompt does not matter."""


@dataclass(eq=False, repr=False, kw_only=True)
class ContextOverflow(ModelError):
    """The prompt does not fit."""

    prompt_tokens: int | None = None
    window: int | None = None  # size of the model in tokens, where known
    is_of_account: bool = False
    """It fits into the model, but the account may send less at once for now."""
    is_of_input: bool = False
    """`window` bounds the prompt alone, however short the answer is; the model's window may be larger."""


@dataclass(eq=False, repr=False, kw_only=True)
class OutputCapExceeded(ModelError):
    """The requested output limit is above the allowed one."""

    cap: int | None = None  # allowed value, where stated
    is_of_model: bool = False  # limit of the model, for any prompt and account


class ImageFault(StrEnum):
    """Faults that a provider finds with images."""

    UNSUPPORTED = "unsupported"  # the model takes no images at all
    TOO_LARGE = "too_large"
    """Too many bytes or pixels, or a request that is too large with its images."""
    TOO_MANY = "too_many"
    UNREADABLE = "unreadable"  # this picture cannot be processed; another one may be


@dataclass(eq=False, repr=False, kw_only=True)
class ImageRejected(ModelError):
    """The provider refused an image of the request, perhaps with its own limits."""

    fault: ImageFault = ImageFault.UNREADABLE
    max_bytes: int | None = None  # most bytes of an image, before base64
    max_side: int | None = None  # longest side of an image, in pixels
    max_count: int | None = None  # most images of a request


class ShapeRejected(ModelError):
    """The provider does not accept the order, the roles or the ids of the messages."""


class ReplyMalformed(ModelError):
    """The provider answered, but not with a whole, readable reply."""


class ReplyUnfinished(ReplyMalformed):
    """The reply broke off, or its own server could not read it: the request was accepted."""


@dataclass(eq=False, repr=False, kw_only=True)
class SpendingCapExceeded(ModelError):
    """A cap on costs forbids the call, so it was not made."""

    cap: str = "costs.daily_cap"  # configuration key of the cap
    spent: MicroUsd | None = None
    limit: MicroUsd | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class PriceNotFound(ModelError):
    """Spending is capped and the price of `model` is unknown, so the call was not made."""

    model: str = ""


class ToolError(HermesError):
    """A tool could not do its work; the text is for the model."""


class StateError(HermesError):
    """The durable state could not serve the request."""


class StoreUnavailable(StateError):
    """The database cannot be written (or read) now; nothing of the request was stored."""


class StoreBroken(StoreUnavailable):
    """The database file is damaged, deleted or replaced: only its operator can repair that."""


class SessionNotFound(StateError):
    """No session has this id."""


class LookupReason(StrEnum):
    """Reasons for which a name or id that people gave names nothing."""

    MALFORMED = "malformed"
    NOT_FOUND = "not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    AMBIGUOUS_CHAT = "ambiguous_chat"
    AMBIGUOUS_SESSION = "ambiguous_session"
    OTHER_CHAT = "other_chat"  # it names another chat than the one that may be looked at
    ALREADY_ACTIVE = "already_active"


class LookupRejected(StateError):
    """A name or id that names nothing, too much, or something hidden; `candidates` are its first possible meanings."""

    def __init__(self, reason: LookupReason, name: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(f"{reason.value}: {name[:200]!r}")
        self.reason = reason
        self.name = name
        self.candidates = candidates


class PairingNotFound(StateError):
    """No person has this code, or is paired under this id."""


class LineageMoved(StateError):
    """The session is no longer the tip of its lineage: someone else was faster."""


class DatabaseRejected(StateError):
    """The database is not one of hermes-gateway, a newer version wrote it, or its server cannot hold one."""


class CommandError(HermesError):
    """A command cannot be carried out; the text is shown to the person."""
