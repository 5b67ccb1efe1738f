"""Commands for new users (/start /help /whoami) and for admins who manage access (/pair)."""

from functools import partial

from agent.model.protocols.offline import MODEL_SETUP_HINT
from gateway.access.pairing import approve_pairing, revoke_pairing
from gateway.commands.registry import Apply, CommandReply, CommandRequest, CommandResult, say
from hermes_state.admin import pairings
from hermes_state.admin.pairings import Pairing, PairingState, UserRole
from hermes_state.errors import CommandError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.text import place_name, plain
from hermes_state.values import Millis, UserRef


async def start(request: CommandRequest) -> CommandResult:
    is_offline = request.context.runtime.config.model.protocol == "offline"
    offline = f"\n\nFor now, a small built-in model answers. To use a real one, {MODEL_SETUP_HINT}."
    return say(
        "Hello! Send me a message and I will answer. I remember this conversation until you send /new. "
        f"/help lists all commands.{offline if is_offline else ''}"
    )


async def help_(request: CommandRequest) -> CommandResult:
    registry = request.context.registry
    name, is_admin = request.argument, request.role is UserRole.ADMIN
    return say(
        registry.explain(name, is_admin=is_admin) if name else registry.help(request.chat.kind, is_admin=is_admin)
    )


async def whoami(request: CommandRequest) -> CommandResult:
    row, chat = request.row, request.chat
    who = f"You are {plain(row.sender_name)} (`{row.sender_ref}`), and your role is {request.role}."
    called = f"{place_name(chat.title, '')} (`{chat.key.name}`)" if chat.title else f"`{chat.key.name}`"
    server = f"\nIts server is `{chat.scope.guild_ref}`." if chat.scope.guild_ref else ""
    roles = f" Your roles there: {', '.join(f'`{role}`' for role in chat.scope.roles)}." if chat.scope.roles else ""
    return say(f"{who}\nThis chat is {called}.{server}{roles}")


async def pair(request: CommandRequest) -> CommandResult:
    decided_by = request.row.sender_ref
    match request.argument.split():
        case [] | ["list"]:
            return CommandResult(apply=_list)
        case ["approve", code] | ["approve", code, "user"]:
            apply: Apply = partial(_approve, code, UserRole.USER, decided_by)
        case ["approve", code, "admin"]:
            apply = partial(_approve, code, UserRole.ADMIN, decided_by)
        case ["revoke", person]:
            apply = partial(_revoke, UserRef(person), decided_by)
        case _:
            raise CommandError("Send `/pair list`, `/pair approve <code> [admin]` or `/pair revoke <platform:id>`.")
    return CommandResult(apply=apply, after=request.context.access.load)


@locks(EVERYTHING)
def _approve(code: str, role: UserRole, decided_by: str, db: Connection, now: Millis) -> CommandReply:
    pairing, chat_id = approve_pairing(db, code, role, decided_by, now)
    return CommandReply(markdown=f"{_named(pairing)} now has access with the role {role}.", other_chat=chat_id)


@locks(EVERYTHING)
def _revoke(person: UserRef, decided_by: str, db: Connection, now: Millis) -> str:
    return f"{_named(revoke_pairing(db, person, decided_by, now))} no longer has access."


def _list(db: Connection, now: Millis) -> str:
    found = pairings.list_pairings(db, now)
    if not found:
        return "No paired people and no pending requests."
    lines = []
    for pairing in found:
        minutes = max(0, pairing.expires_at - now) // 60_000
        state = f"pending, {minutes} min left" if pairing.state is PairingState.PENDING else pairing.role
        lines.append(f"- {_named(pairing)}: {state}")
    return "\n".join(lines)


def _named(pairing: Pairing) -> str:
    """Return a person's name and id as plain text for admins, because people can put links into their names."""
    name = pairing.display_name.replace("`", "'").strip() or "?"
    return f"`{name}` (`{pairing.user_ref}`)"
