"""Pairing: access by code, in transactions that offer a code to a stranger, approve it and revoke it.

What a person is told stands in the transaction that decided it, so that it is told once, whoever decides: an admin in a
chat, the command line through the running daemon, or the command line alone while there is none.
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
MAX_PENDING = 100
"""Most codes that wait for approval at one time, so that a crowd of strangers cannot fill the database."""
MIN_NOTICE_INTERVAL_MS = 300_000
"""Shortest time between two notices that a code still waits, in milliseconds."""

OFFER = (
    "You have no access yet. Your pairing code is `{code}`, valid for {minutes} minutes: whoever runs this bot can "
    "let you in with `hermes-gateway pair approve {code}`, and an admin with `/pair approve {code}`."
)
STILL_WAITING = (
    "You have no access yet: the code that I gave you still waits for whoever runs this bot, or for an admin."
)

COMMAND_LINE = "command line"
"""Name of the decider where no admin in a chat decided."""

WELCOME = {
    UserRole.USER: "You have access now. Write to me and I answer; /help lists what else I can do.",
    UserRole.ADMIN: "You have access now, as an admin. Write to me and I answer; /help lists what else I can do.",
}


@locks("pairings", chat="message.chat cursor")
def offer_pairing(
    db: Connection,
    message: InboundMessage,
    code: str,
    cursor: Cursor | None,
    now: Millis,
    max_pending: int = MAX_PENDING,
) -> ChatId | None:
    """Give a stranger a code, or tell one who has a code that it still waits; None when there is nothing to say."""
    if pairings.offer(db, message.sender, code, CODE_MINUTES * 60_000, max_pending, now):
        text = OFFER.format(code=code, minutes=CODE_MINUTES)
        return refuse(db, message, message.chat, _offer_key(code), text, cursor, now)
    if pairings.is_waiting(db, message.sender.ref, now):
        # A slash command is answered in its own place each time, or its sender sees it hang.
        moment = message.event_ref if message.ticket is not None else now // MIN_NOTICE_INTERVAL_MS
        return refuse(db, message, message.chat, f"waits:{message.sender.ref}:{moment}", STILL_WAITING, cursor, now)
    inbox.advance_cursor(db, cursor)
    return None


@locks(EVERYTHING)
def approve_pairing(
    db: Connection, code: str, role: UserRole, decided_by: str, now: Millis
) -> tuple[Pairing, ChatId | None]:
    """Turn a code into access and owe a welcome to the chat that asked for it, if it is still known.

    Raises `CommandError` for a code that is not valid.
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
    """Take access away, also from what waits to join a running turn. Raises `CommandError`."""
    try:
        pairing = pairings.revoke(db, person, decided_by, now)
    except PairingNotFound as error:
        raise CommandError(
            f"{person} is not paired. Access from the configuration file is taken away there."
        ) from error
    # Who has access by configuration too loses nothing: their message waits for the next turn.
    inbox.queue_steers(db, lambda ref: ref != person)
    return pairing


def load_pairing_rows(db: Connection, now: Millis) -> list[dict[str, str]]:
    """Rows of everybody who waits for access or has it by code."""
    return [pairing_row(pairing) for pairing in pairings.list_pairings(db, now)]


def pairing_row(pairing: Pairing) -> dict[str, str]:
    """Row of a pairing for the command line, whether the daemon or the database answers."""
    return {
        "user": pairing.user_ref,
        "name": pairing.display_name,
        "state": pairing.state.value,
        "role": pairing.role.value,
        "asked": format_time(pairing.created_at),
        "expires": format_time(pairing.expires_at),
    }


def _offer_key(code: str) -> str:
    """Key of the reply that told a code, by which the chat that asked is found."""
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
    """Say in the chat `key` why a message is not taken, and keep nothing of it; None when this was said before."""
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
