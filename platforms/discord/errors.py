"""Errors: Discord's and aiohttp's exceptions become ours, once, here."""

import contextlib
import json
from collections.abc import Iterator

import aiohttp
import discord

from hermes_state.errors import (
    ChatUnreachable,
    MessageRejected,
    PlatformError,
    PlatformUnavailable,
    RateLimited,
    SendAmbiguous,
    TokenRejected,
)

UNKNOWN_MESSAGE = 10008
TICKET_CODES = frozenset({10015, 10062, 50027})
"""Codes of an interaction that can no longer be answered: unknown webhook or interaction, invalid webhook token."""

REPLY_CODES = frozenset({160002, 160009})
"""Codes of a rejected reply: it needs the right to read the channel's history; a message of its own does not."""

OPERATOR_CODES = {
    4004: "Discord does not accept the bot token: set discord.token to the token of the developer portal's Bot page.",
    4010: "Discord closed the connection: invalid shard (4010).",
    4011: "This bot is in too many servers for one connection: Discord asks for sharding (4011).",
    4012: "Discord no longer speaks this version of its gateway protocol (4012): update hermes-gateway.",
    4013: "Discord refused the requested intents as invalid (4013): update hermes-gateway.",
    4014: (
        "Discord refused the MESSAGE CONTENT intent: switch it on for this bot in the developer portal "
        "(Bot, Privileged Gateway Intents, Message Content Intent)."
    ),
}
"""Close codes after which only the operator can help, and what to tell them."""

FLOOD_SECONDS = 60.0
"""Seconds to wait when Discord's edge blocks us without saying for how long."""


class MessageNotFound(PlatformError):
    """The message to edit was deleted; stays inside this package, which then sends anew."""


class ReplyRejected(PlatformError):
    """The message may be sent, but not as a reply; stays inside this package, which then sends it as none."""


class TicketRejected(PlatformError):
    """Discord takes no answer in the interaction's own place any more; stays inside this package."""


@contextlib.contextmanager
def rest_errors(*, is_read: bool = False) -> Iterator[None]:
    """Translate what a REST call raises.

    A connection that breaks after the request left is `SendAmbiguous`, except for a read, which had no
    effect to be unsure about.
    """
    broken = PlatformUnavailable if is_read else SendAmbiguous
    try:
        yield
    except discord.RateLimited as error:
        raise RateLimited(error.retry_after) from error
    except discord.HTTPException as error:
        raise _of_answer(error, broken) from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise PlatformUnavailable(f"Discord cannot be reached: {type(error).__name__}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise broken(f"the connection to Discord broke: {type(error).__name__}") from error


def _of_answer(error: discord.HTTPException, broken: type[PlatformError]) -> PlatformError:
    text = f"Discord answered {error.status} (code {error.code})"
    if error.code == UNKNOWN_MESSAGE:
        return MessageNotFound(text)
    if error.code in TICKET_CODES:
        return TicketRejected(text)
    if error.code in REPLY_CODES:
        return ReplyRejected(text)
    if error.status == 429:
        headers = getattr(error.response, "headers", {})
        try:
            return RateLimited(max(1.0, float(headers.get("Retry-After", FLOOD_SECONDS))))
        except ValueError:
            return RateLimited(FLOOD_SECONDS)
    if error.status == 401:
        # The gateway connection learns it too and says so to the operator; what waits here is not lost.
        return PlatformUnavailable(f"{text}: the token is not accepted")
    if error.status in (403, 404) or error.code == 50083:  # 50083: the thread is archived and locked
        return ChatUnreachable(text)
    if error.status == 503:
        return PlatformUnavailable(text)
    if error.status >= 500 or error.status == 408:
        return broken(text)
    return MessageRejected(text)


@contextlib.contextmanager
def connection_errors(client: discord.Client) -> Iterator[None]:
    """Translate what logging in and holding the gateway connection raise."""
    try:
        yield
    except discord.LoginFailure as error:
        raise TokenRejected(OPERATOR_CODES[4004]) from error
    except discord.PrivilegedIntentsRequired as error:
        raise TokenRejected(OPERATOR_CODES[4014]) from error
    except discord.ConnectionClosed as error:
        if sentence := OPERATOR_CODES.get(error.code):
            raise TokenRejected(sentence) from error
        raise PlatformUnavailable(f"Discord closed the connection ({error.code})") from error
    except (discord.DiscordException, aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as error:
        raise PlatformUnavailable(f"Discord cannot be reached: {type(error).__name__}") from error
    except AttributeError as error:
        # discord.py 2.7.1 stumbles over its missing socket when the very first connect fails (its types say there
        # always is one); what went wrong is the context.
        if getattr(client, "ws", None) is not None:
            raise
        reason = type(error.__context__ or error).__name__
        raise PlatformUnavailable(f"Discord's gateway cannot be reached: {reason}") from error
