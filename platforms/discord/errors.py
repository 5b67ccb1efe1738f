"""Translation of exceptions from discord.py and aiohttp into our own."""

import contextlib
import json
import re
from collections.abc import Iterator

import aiohttp
import discord

from hermes_state import errors
from hermes_state.connector import proxy_fault
from hermes_state.errors import PlatformError, PlatformUnavailable, TokenRejected

OPERATOR_CODES = {
    4004: "Discord rejected the bot token: set {token_key} to the token on the Bot page of the developer portal.",
    4010: "Discord closed the connection: invalid shard (4010).",
    4011: "This bot is in too many servers for one connection: Discord requires sharding (4011).",
    4012: "Discord no longer supports this version of its gateway protocol (4012): update hermes-gateway.",
    4013: "Discord refused the requested intents as invalid (4013): update hermes-gateway.",
    4014: (
        "Discord refused the MESSAGE CONTENT intent: enable it for this bot in the developer portal "
        "(Bot, Privileged Gateway Intents, Message Content Intent)."
    ),
}
"""Sentences for the operator, by close code. Only the operator can fix these problems.

`{token_key}` stands for the setting that contains the token.
"""


class MessageNotFound(PlatformError):
    """The message to edit was deleted. This package then sends a new message."""


class ReplyRejected(PlatformError):
    """Discord accepts the message, but not as a reply. This package then sends it as an ordinary message."""


class TicketRejected(PlatformError):
    """Discord no longer accepts a response to the interaction. This package then sends an ordinary message."""


@contextlib.contextmanager
def rest_errors(*, is_read: bool = False) -> Iterator[None]:
    """Translate REST errors. Raises `SendAmbiguous` if the connection breaks during a write (never for reads)."""
    broken = PlatformUnavailable if is_read else errors.SendAmbiguous
    try:
        yield
    except discord.RateLimited as error:
        raise errors.RateLimited(error.retry_after) from error
    except discord.HTTPException as error:
        raise _of_answer(error, broken) from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise PlatformUnavailable(f"Discord cannot be reached: {proxy_fault(error) or type(error).__name__}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise broken(f"the connection to Discord broke: {type(error).__name__}") from error


def _of_answer(error: discord.HTTPException, broken: type[PlatformError]) -> PlatformError:
    text = f"Discord answered {error.status} (code {error.code})"
    match error.code:
        case 10008:  # unknown message
            return MessageNotFound(text)
        case 10015 | 10062 | 50027:  # unknown webhook or interaction, invalid webhook token
            return TicketRejected(text)
        case 160002 | 160009:  # a reply needs the right to read the channel's history
            return ReplyRejected(text)
        case 50083:  # the thread is archived and locked
            return errors.ChatUnreachable(text)
    match error.status:
        case 429:
            seconds = getattr(error.response, "headers", {}).get("Retry-After", "")
            # Discord's proxy can block the gateway without saying for how long.
            return errors.RateLimited(max(1.0, float(seconds)) if re.fullmatch(r"\d+\.?\d*", seconds) else 60.0)
        case 401:  # the gateway connection reports this to the operator; waiting messages are kept
            return PlatformUnavailable(f"{text}: the token was rejected")
        case 403 | 404:
            return errors.ChatUnreachable(text)
        case 503:
            return PlatformUnavailable(text)
    return broken(text) if error.status >= 500 or error.status == 408 else errors.MessageRejected(text)


@contextlib.contextmanager
def connection_errors(client: discord.Client, token_key: str = "discord.token") -> Iterator[None]:
    """Translate login and connection errors into `PlatformError`. Name the setting of the token in the message."""
    try:
        yield
    except discord.LoginFailure as error:
        raise TokenRejected(OPERATOR_CODES[4004].format(token_key=token_key)) from error
    except discord.PrivilegedIntentsRequired as error:
        raise TokenRejected(OPERATOR_CODES[4014]) from error
    except discord.ConnectionClosed as error:
        if sentence := OPERATOR_CODES.get(error.code):
            raise TokenRejected(sentence.format(token_key=token_key)) from error
        raise PlatformUnavailable(f"Discord closed the connection ({error.code})") from error
    except (discord.DiscordException, aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as error:
        raise PlatformUnavailable(f"Discord cannot be reached: {proxy_fault(error) or type(error).__name__}") from error
    except AttributeError as error:
        # If the first connection fails, discord.py 2.7.1 raises an unrelated error, whose context has the reason.
        if getattr(client, "ws", None) is not None:
            raise
        reason = proxy_fault(error.__context__) or type(error.__context__ or error).__name__
        raise PlatformUnavailable(f"Discord's gateway cannot be reached: {reason}") from error
