"""Errors: the SDK's exceptions become ours, and the few refusals that mean something of their own."""

from telegram.error import BadRequest, ChatMigrated, Conflict, Forbidden, InvalidToken, TelegramError

from hermes_state import errors
from platforms.telegram.transport import FloodControl, NotSentError

# The Bot API tells refusals apart only by their text. These are compared in lower case.
_NOBODY_THERE = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "not enough rights",
    "need administrator rights",
    "have no rights to send",
    "chat_write_forbidden",
    "chat_restricted",
    "topic_closed",
    "group chat was deactivated",
    "user is deactivated",
)
TOPIC_GONE = ("message thread not found", "topic_deleted", "topic_id_invalid")
NOT_MODIFIED = ("message is not modified",)
FILE_TOO_BIG = ("file is too big",)
NOT_EDITABLE = ("message to edit not found", "message can't be edited", "message_id_invalid", "there is no text in")


def translated(error: TelegramError) -> errors.PlatformError:
    """Translate the SDK's exception into ours, by what the catcher does next.

    A 4xx says that nothing happened; a break after sending, a 5xx or an unreadable answer leaves it open.
    """
    match error:
        case NotSentError() | Conflict():
            return errors.PlatformUnavailable(error.message)
        case FloodControl(retry_after=retry_after):
            return errors.RateLimited(retry_after)
        case ChatMigrated(new_chat_id=new_chat_id):
            return errors.ChatMoved(str(new_chat_id))
        case InvalidToken():
            # Sending is not where a token is judged: the poller meets the same answer and ends the adapter.
            return errors.PlatformUnavailable("Telegram does not accept the token")
        case BadRequest() if not is_refused(error, _NOBODY_THERE):
            return errors.MessageRejected(error.message)
        case BadRequest() | Forbidden():
            return errors.ChatUnreachable(error.message)
        case _:
            return errors.SendAmbiguous(error.message)


def is_refused(error: TelegramError, texts: tuple[str, ...]) -> bool:
    """Tell whether the Bot API refused a request with one of `texts`."""
    message = error.message.lower()
    return isinstance(error, BadRequest) and any(text in message for text in texts)
