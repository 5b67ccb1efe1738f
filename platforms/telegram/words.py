"""Words for messages without text: locations, polls and the like, and kinds that the SDK does not know."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final  # JSON as the Bot API sent it

from telegram import ExternalReplyInfo, Message
from telegram.constants import MessageType

from platforms.text import text_in, utf16_units

_KNOWN: Final = frozenset(inspect.signature(Message).parameters) | {"from"}
_ABOUT: Final = {"effect_id", "sender_boost_count", "sender_business_bot", "reply_to_story", "suggested_post_info"}
_KINDS: Final = {kind.value for kind in MessageType} - _ABOUT - {"business_connection_id"}
_NOT_SAID: Final = re.compile(r"(ed|left|set|done|paid|gift|members|user|chat|bot|reply|quote|origin|_message_)_?$")
"""Ends of the names of service messages, and of fields about a message or with another one."""


def describe(message: Message | ExternalReplyInfo) -> str | None:
    """Return a location, venue, contact, poll, checklist or dice in words; None for every other message."""
    if location := message.venue.location if message.venue is not None else message.location:
        venue = f"{message.venue.title}, {message.venue.address}: " if message.venue is not None else ""
        kind = "Venue" if venue else "Live location" if "live_period" in location.to_dict() else "Location"
        return f"{kind}: {venue}latitude {location.latitude}, longitude {location.longitude}"
    if (contact := message.contact) is not None:
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        return "\n".join(filter(None, (f"Contact: {name}, phone {contact.phone_number}", contact.vcard)))
    if (poll := message.poll) is not None:
        options = (f"- {option.text} ({option.voter_count} votes)" for option in poll.options)
        return "\n".join((f"{poll.type.capitalize()} poll: {poll.question}", *options))
    if (checklist := message.checklist) is not None:
        tasks = (f"- {one.text}{' (done)' * bool(one.completed_by_user)}" for one in checklist.tasks)
        return "\n".join((f"Checklist: {checklist.title}", *tasks))
    return None if message.dice is None else f"Dice: {message.dice.emoji} shows {message.dice.value}"


def unknown_content(message: Mapping[str, Any]) -> list[str]:
    """Return the names of fields with what somebody sent, in a message of a kind that the SDK does not know."""
    if any(message.get(kind) for kind in _KINDS):
        return []
    said = (name for name, part in message.items() if part and isinstance(part, dict | list | str))
    return [name for name in said if name not in _KNOWN and not _NOT_SAID.search(name)]


def with_words(message: Any, bot: str) -> Any:
    """Return a message, and the one it answers, with the words of unknown content as its text.

    The text begins with the name of the field: no command is read from it. A mention of `bot` in it counts.
    """
    if isinstance(answered := message.get("reply_to_message"), dict):
        message = {**message, "reply_to_message": with_words(answered, bot)}
    said = {name: words for name in unknown_content(message) if (words := text_in(message[name]))}
    if not said or "caption" in message:
        return message
    text = "\n".join(f"{name.replace('_', ' ').strip().capitalize()}:\n{words}" for name, words in said.items())
    mention = {"type": "mention", "offset": utf16_units(text.partition(bot)[0]), "length": len(bot)}
    return {**message, "text": text, "entities": [mention] if bot in text else []}
