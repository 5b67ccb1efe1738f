"""Pairing: transactions that offer a code to a stranger, approve it and revoke access.

Each also stores the reply to the person, so that it is sent once: an admin in a chat may decide, or the command line
with or without a running daemon.
"""

from gateway.times import format_time
from hermes_state import inbox, outbox
from hermes_state.admin import pairings
from hermes_state.admin.pairings import Pairing, UserRole
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError, PairingNotFound
from hermes_state.outbox import Reply
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, ChatKey, Cursor, InboundMessage, Millis, UserRef

CODE_MINUTES = 60
"""Minutes in which a code can be approved: long enough to reach an admin, short enough that a lost code is harmless."""

OFFER = (
    "You have no access yet. Your pairing code is `{code}`, valid for {minutes} minutes: whoever runs this bot can "
    "let you in with `hermes-gateway pair approve {code}`, and an admin with `/pair approve {code}`."
)
STILL_WAITING = (
    "You have no access yet: the code that I gave you still waits for whoever runs this bot, or for an admin."
)

COMMAND_LINE = "command line"
"""Name of the decider if no admin in a chat decided."""

WELCOME = {
    UserRole.USER: "You have access now. Write to me and I answer; /help lists what else I can do.",
    UserRole.ADMIN: "You have access now, as an admin. Write to me and I answer; /help lists what else I can do.",
}


@locks("pairings", chat="message.chat cursor")
def offer_pairing(
    db: Connection, message: InboundMessage, code: str, cursor: Cursor | None, now: Millis, max_pending: int = 100
) -> ChatId | None:
    """Give a stranger a code, or tell them that theirs still waits; returns None if there is nothing to say.

    At most `max_pending` codes wait at one time, so that strangers cannot fill the database.
    """
    if pairings.offer(db, message.sender, code, CODE_MINUTES * 60_000, max_pending, now):
        text = OFFER.format(code=code, minutes=CODE_MINUTES)
        return refuse(db, message, message.chat, _offer_key(code), text, cursor, now)
    if pairings.is_waiting(db, message.sender.ref, now):
        # Once in 5 minutes; but a slash command needs an answer each time, or its sender sees it hang.
        moment = message.event_ref if message.ticket is not None else now // 300_000
        return refuse(db, message, message.chat, f"waits:{message.sender.ref}:{moment}", STILL_WAITING, cursor, now)
    inbox.advance_cursor(db, cursor)
    return None


@locks(EVERYTHING)
def approve_pairing(
    db: Connection, code: str, role: UserRole, decided_by: str, now: Millis
) -> tuple[Pairing, ChatId | None]:
    """Turn a code into access and welcome the person in the chat of the code, if it is still known.

    Raises `CommandError` for an invalid code.
    """
    try:
        pairing = pairings.approve(db, code, role, decided_by, now)
    except PairingNotFound as error:
        raise CommandError("That code is not valid: it was used, has expired, or was never given out.") from error
    chat_id = outbox.find_recipient(db, _offer_key(code))
    if chat_id is not None:
        key = f"welcome:{pairings.hash_code(code)[:16]}"
        outbox.enqueue(db, Reply(chat_id=chat_id, markdown=WELCOME[role], dedupe_key=key), now)
    return pairing, chat_id


@locks(EVERYTHING)
def revoke_pairing(db: Connection, person: UserRef, decided_by: str, now: Millis) -> Pairing:
    """Revoke access, also for messages that wait to join a running turn. Raises `CommandError`."""
    try:
        pairing = pairings.revoke(db, person, decided_by, now)
    except PairingNotFound as error:
        text = f"{person} is not paired. Access from the configuration file is taken away there."
        raise CommandError(text) from error
    # People with access by configuration lose nothing: their message waits for the next turn.
    inbox.queue_steers(db, lambda ref: ref != person)
    return pairing


def load_pairing_rows(db: Connection, now: Millis) -> list[dict[str, str]]:
    """Return rows of all people who wait for access or have it by code."""
    return [pairing_row(pairing) for pairing in pairings.list_pairings(db, now)]


def pairing_row(pairing: Pairing) -> dict[str, str]:
    """Return the row of a pairing for the command line."""
    return {
        "user": pairing.user_ref,
        "name": pairing.display_name,
        "state": pairing.state.value,
        "role": pairing.role.value,
        "asked": format_time(pairing.created_at),
        "expires": format_time(pairing.expires_at),
    }


def _offer_key(code: str) -> str:
    """Return the key of the reply with a code, by which its chat is found."""
    return f"pairing:{pairings.hash_code(code)[:16]}"


@locks(chat="key cursor")
def refuse(
    db: Connection,
    message: InboundMessage,
    key: ChatKey,
    dedupe_key: str,
    markdown: str,
    cursor: Cursor | None,
    now: Millis,
) -> ChatId | None:
    """Refuse a message in the chat `key` and store nothing of it; returns None if that was said before."""
    inbox.advance_cursor(db, cursor)
    chat_id = ensure_chat(db, key, message.chat_kind, message.chat_title, now)
    reply = Reply(
        chat_id=chat_id,
        markdown=markdown,
        dedupe_key=dedupe_key,
        reply_to=message.message_ref if message.chat_kind.is_shared else None,
        ticket=message.ticket,
    )
    return chat_id if outbox.enqueue(db, reply, now) is not None else None
