"""Pairing: transactions that offer a code to a stranger, approve a code and revoke access.

The transactions that offer or approve a code also store the reply to the person, so that it is sent exactly once. An
admin can decide in a chat. An operator can decide on the command line, even while the daemon is stopped.
"""

from gateway.outbound.webhooks import HookWriter
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
"""Minutes before a code expires. This is enough time to reach an admin, but limits the misuse of a leaked code."""

OFFER = (
    "You do not have access yet. Your pairing code is `{code}`, valid for {minutes} minutes. The owner of this bot can "
    "approve it with `hermes-gateway pair approve {code}`, or an admin with `/pair approve {code}`."
)
HINT = "You wrote to me in a group, but you do not have access yet. "
HINT_PAIRING = f"{HINT}Send me any message here, and you receive a pairing code that the owner of this bot can approve."
HINT_CLOSED = f"{HINT}Please ask the owner of this bot for access."
STILL_WAITING = "You do not have access yet. Your code still needs approval from the owner of this bot or an admin."

COMMAND_LINE = "command line"
"""Value stored instead of an admin's id if the decision was made on the command line."""

WELCOME = {
    UserRole.USER: "You now have access. Send me a message and I will answer. /help lists all commands.",
    UserRole.ADMIN: "You now have access as an admin. Send me a message and I will answer. /help lists all commands.",
}


@locks("pairings", chat="message.chat cursor")
def offer_pairing(
    db: Connection,
    message: InboundMessage,
    code: str,
    cursor: Cursor | None,
    now: Millis,
    max_pending: int = 100,
    hooks: HookWriter | None = None,
) -> ChatId | None:
    """Give a stranger a code, or say that their code still needs approval. Return None if no reply is due.

    At most `max_pending` codes are pending at a time, so that strangers cannot fill the database.
    """
    if pairings.offer(db, message.sender, code, CODE_MINUTES * 60_000, max_pending, now):
        text = OFFER.format(code=code, minutes=CODE_MINUTES)
        if hooks is not None:  # the event never contains the code, because everyone who knows it can approve it
            data = {"person": message.sender.ref, "name": message.sender.name, "chat": message.chat.name}
            chat_id = ensure_chat(db, message.chat, message.chat_kind, message.chat_title, now)
            hooks.write(db, "person.requested_access", chat_id, pairings.hash_code(code)[:16], data, now)
        return refuse(db, message, message.chat, _offer_key(pairings.hash_code(code)), text, cursor, now)
    if pairings.is_waiting(db, message.sender.ref, now):
        # Send this reply at most every 5 minutes. Answer every slash command, because Discord shows it as hanging.
        moment = message.event_ref if message.ticket is not None else now // 300_000
        once = f"waits:{message.chat.account}:{message.sender.ref}:{moment}"
        return refuse(db, message, message.chat, once, STILL_WAITING, cursor, now)
    inbox.advance_cursor(db, cursor)
    return None


@locks(EVERYTHING)
def approve_pairing(
    db: Connection, code: str, role: UserRole, decided_by: str, now: Millis
) -> tuple[Pairing, ChatId | None]:
    """Give access to the person who received the code, and store a welcome message.

    Raises `CommandError` for an invalid code.
    """
    return approve_request(db, pairings.hash_code(code), role, decided_by, now)


@locks(EVERYTHING)
def approve_request(
    db: Connection, code_hash: str, role: UserRole, decided_by: str, now: Millis
) -> tuple[Pairing, ChatId | None]:
    """Like `approve_pairing`, but with the hash of the code instead of the code."""
    try:
        pairing = pairings.approve(db, code_hash, role, decided_by, now)
    except PairingNotFound as error:
        raise CommandError("That code is not valid. It was already used, has expired, or never existed.") from error
    chat_id = outbox.find_recipient(db, _offer_key(code_hash))
    if chat_id is not None:
        reply = Reply(chat_id=chat_id, markdown=WELCOME[role], dedupe_key=f"welcome:{code_hash[:16]}")
        outbox.enqueue(db, reply, now)
    return pairing, chat_id


@locks("pairings")
def deny_request(db: Connection, code_hash: str) -> None:
    """Deny a pending request. The person can ask again.

    Raises `CommandError` if the request was answered or has expired.
    """
    if not pairings.deny(db, code_hash):
        raise CommandError("This request was already answered or has expired. Reload the page.")


@locks(EVERYTHING)
def revoke_pairing(db: Connection, person: UserRef, decided_by: str, now: Millis) -> Pairing:
    """End a person's pairing, and keep their messages out of running turns.

    Raises `CommandError` if the person is not paired.
    """
    try:
        pairing = pairings.revoke(db, person, decided_by, now)
    except PairingNotFound as error:
        text = f"{person} is not paired. To revoke access given by the configuration file, edit `access` there."
        raise CommandError(text) from error
    # If the configuration also gives the person access, their steering messages are not lost. They wait for a turn.
    inbox.queue_steers(db, lambda ref: ref != person)
    return pairing


def load_pairing_rows(db: Connection, now: Millis) -> list[dict[str, str]]:
    """Return all paired people and pending requests as JSON objects."""
    return [pairing_row(pairing) for pairing in pairings.list_pairings(db, now)]


def pairing_row(pairing: Pairing) -> dict[str, str]:
    """Return a pairing as a JSON object for the command line."""
    return {
        "user": pairing.user_ref,
        "name": pairing.display_name,
        "state": pairing.state.value,
        "role": pairing.role.value,
        "asked": format_time(pairing.created_at),
        "expires": format_time(pairing.expires_at),
    }


def _offer_key(code_hash: str) -> str:
    """Return the dedupe key of the reply that offers a code. `approve_request` uses it to find the person's chat."""
    return f"pairing:{code_hash[:16]}"


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
    """Store a reply that refuses the message. The message itself is not stored.

    Return the chat, or None if this reply was already stored.
    """
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
