"""The error tree, grouped by what the catcher does next.

HermesError
├── ConfigError        stop at start-up and name the key
├── LockUnavailable    another process holds the token or the database: stop with exit code 75
├── PlatformError      delivery or reception failed
│   ├── PlatformUnavailable   the request never took effect: try again
│   ├── SendAmbiguous         it may have taken effect: repeat only where a repeat cannot show twice
│   ├── RateLimited           wait `retry_after` seconds, send nothing meanwhile
│   ├── MessageRejected       the platform refuses this content: fall back to plain text
│   │   └── FileTooLarge      a file that was sent to us is above `limit_bytes`
│   ├── ChatUnreachable       nobody there any more (blocked, kicked, deleted): give up on this message
│   ├── ChatMigrated          the chat has a new id: move it and go on
│   └── TokenRejected         fatal for this adapter, not for the daemon
├── ModelError         the turn fails or is tried again; `agent/model/errors.py` has the remedies
│   ├── ModelUnavailable · ModelTimeout (ModelStalled) · ModelRateLimited · AuthRejected · QuotaExceeded
│   ├── ContentFiltered · ModelNotFound · ContextOverflow · OutputCapTooLarge · ImageRejected · ReplyMalformed
│   └── SpendingCapExceeded · PriceNotFound
├── ToolError          goes back to the model as a tool result; the turn goes on
├── StateError
│   ├── StoreUnavailable      nothing was written; the caller's keys make the retry safe
│   ├── SessionNotFound · LineageMoved
│   ├── LookupFailed          a name or id that people gave names nothing, or too much; `reason` says which
│   ├── PairingNotFound       no code or person of this kind is paired
│   └── SchemaTooNew · DatabaseRejected
└── CommandError       its text is safe to show in the chat
"""

from enum import StrEnum

from hermes_state.values import CanonicalUsage, MicroUsd


class HermesError(Exception):
    """Root of everything we raise on purpose. The message is for a reader and is never parsed."""


class ConfigError(HermesError):
    """The configuration cannot be used; the message names the file or key and what to do."""


class LockUnavailable(HermesError):
    """Another living process holds what we need; `holder` describes it."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PlatformError(HermesError):
    """A chat service did not do what we asked."""


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


class FileTooLarge(MessageRejected):
    """A file cannot be fetched because it is larger than `limit_bytes`, ours or the platform's."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the file is larger than {limit_bytes:,} bytes")
        self.limit_bytes = limit_bytes


class ChatUnreachable(PlatformError):
    """The bot was blocked or removed, or the chat is gone."""


class ChatMigrated(PlatformError):
    """The chat lives on under another id."""

    def __init__(self, new_chat_ref: str) -> None:
        super().__init__(f"chat moved to {new_chat_ref}")
        self.new_chat_ref = new_chat_ref


class TokenRejected(PlatformError):
    """The platform does not accept the token; only a new token helps."""


class ModelError(HermesError):
    """A model call failed. `retry_after`: seconds for which the provider asks not to be called, where it says so."""

    usage: CanonicalUsage | None = None
    """Usage that the provider reported before it failed: the call is paid for."""
    reported_cost: MicroUsd | None = None
    """Cost as the provider stated it."""
    has_answered = False
    """The model has answered in this conversation before, so that its address and name are right."""
    refused: "tuple[ModelError, ...]" = ()
    """Refusals of the same request before it, each put in another way then: calls, too."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelUnavailable(ModelError):
    """Network trouble, or the provider is down or overloaded."""


class ModelTimeout(ModelError):
    """The provider did not answer, or stopped answering, in time."""


class ModelStalled(ModelTimeout):
    """The provider keeps the line open, and the reply does not go on."""


class ModelRateLimited(ModelError):
    """Too many requests."""


class AuthRejected(ModelError):
    """The provider does not accept the key. `is_of_plan`: it does, but the key's plan does not include the model."""

    def __init__(self, message: str, *, is_of_plan: bool = False) -> None:
        super().__init__(message)
        self.is_of_plan = is_of_plan


class QuotaExceeded(ModelError):
    """The account has no credit left."""


class ContentFiltered(ModelError):
    """The provider refused the content."""


class ModelNotFound(ModelError):
    """The provider has no such model or address; the prompt does not matter."""


class ContextOverflow(ModelError):
    """The prompt does not fit; `window` is the model's size in tokens where known.

    `is_of_account`: the model would hold it, but what the account may send at once is less, for now. `is_of_input`:
    `window` bounds the prompt alone, however short the answer is; the model's window may be larger.
    """

    def __init__(
        self,
        message: str,
        *,
        prompt_tokens: int | None = None,
        window: int | None = None,
        is_of_account: bool = False,
        is_of_input: bool = False,
    ) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.window = window
        self.is_of_account = is_of_account
        self.is_of_input = is_of_input


class OutputCapTooLarge(ModelError):
    """The requested output limit is above what is allowed; `cap` is the allowed value where stated.

    `is_of_model`: the model writes no more, whatever the prompt and the account are.
    """

    def __init__(self, message: str, *, cap: int | None = None, is_of_model: bool = False) -> None:
        super().__init__(message)
        self.cap = cap
        self.is_of_model = is_of_model


class ImageFault(StrEnum):
    """Faults that a provider finds with images."""

    UNSUPPORTED = "unsupported"
    """The model takes no images at all."""
    TOO_LARGE = "too_large"
    """Too many bytes or pixels, or a request that is too large with its images."""
    TOO_MANY = "too_many"
    UNREADABLE = "unreadable"
    """This picture cannot be processed; another one may be."""


class ImageRejected(ModelError):
    """The request was refused because of an image in it.

    Where the provider states its limits: `max_bytes` of an image (before base64), `max_side` in pixels, `max_count` of
    images in a request. `index`: the image that it names, counted from 0 through all images of the request.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: ImageFault = ImageFault.UNREADABLE,
        max_bytes: int | None = None,
        max_side: int | None = None,
        max_count: int | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.max_bytes = max_bytes
        self.max_side = max_side
        self.max_count = max_count
        self.index = index


class ReplyMalformed(ModelError):
    """The provider answered, but not with a whole, readable reply."""


class SpendingCapExceeded(ModelError):
    """A cap on costs forbids the call, so it was not made; `cap` is the configuration key that says so."""

    def __init__(
        self,
        message: str,
        *,
        cap: str = "costs.daily_cap",
        spent: MicroUsd | None = None,
        limit: MicroUsd | None = None,
    ) -> None:
        super().__init__(message)
        self.cap = cap
        self.spent = spent
        self.limit = limit


class PriceNotFound(ModelError):
    """Spending is capped and nobody knows what `model` costs, so the call was not made."""

    def __init__(self, message: str, *, model: str = "") -> None:
        super().__init__(message)
        self.model = model


class ToolError(HermesError):
    """A tool could not do its work; the text is for the model."""


class StateError(HermesError):
    """The durable state could not serve the request."""


class StoreUnavailable(StateError):
    """The database cannot be written (or read) now; nothing of the request was stored."""


class SessionNotFound(StateError):
    """No session has this id."""


class LookupReason(StrEnum):
    """Reasons for which a name or id that people gave names nothing."""

    MALFORMED = "malformed"
    NOT_FOUND = "not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    AMBIGUOUS_CHAT = "ambiguous_chat"
    AMBIGUOUS_SESSION = "ambiguous_session"
    OTHER_CHAT = "other_chat"
    """It names another chat than the one that may be looked at."""
    ALREADY_ACTIVE = "already_active"


class LookupFailed(StateError):
    """A name or id names nothing, too much, or what may not be looked at.

    `name` is as it was looked for; `candidates` are the first of what it may mean.
    """

    def __init__(self, reason: LookupReason, name: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(f"{reason.value}: {name[:200]!r}")
        self.reason = reason
        self.name = name
        self.candidates = candidates


class PairingNotFound(StateError):
    """Nobody holds this code, or nobody is paired under this id."""


class LineageMoved(StateError):
    """The session is no longer the tip of its lineage: someone else was faster."""


class SchemaTooNew(StateError):
    """The database was written by a newer version."""


class DatabaseRejected(StateError):
    """The file is not a hermes-gateway database."""


class CommandError(HermesError):
    """A command cannot be carried out; the text is shown to the person."""
