"""Commands that switch a feature of a chat on or off: `/groupcontext` and `/reactions`."""

from dataclasses import replace
from functools import partial

from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.outbound.reactions import load_switch, switch_key
from hermes_state import talk
from hermes_state.errors import CommandError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, save_note
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis

NOW_HEARS = (
    "From now on I read and store what is said here, even if it does not mention me and the writer has no access. "
    f"My next answer sees the newest {talk.MAX_SHOWN} messages of the last day as untrusted text. An admin or "
    "moderator can end this with `/groupcontext off`."
)
NO_LONGER_HEARS = (
    "I no longer store what is said here, only messages to me. I removed the messages that no answer had used yet."
)
PRIVACY_MODE = (
    "\n\nTelegram's privacy mode is on for this bot, so I only receive messages to me, unless I am an admin of this "
    "group. To change that, send /setprivacy to @BotFather, choose *Disable*, and add me to the group again."
)


REACTIONS_ON = "Reactions are on here: I mark your messages, and you can give my answers a thumbs-up or thumbs-down."
REACTIONS_OFF = "Reactions are off here: I do not mark messages, and I do not store your reactions."


async def groupcontext(request: CommandRequest) -> CommandResult:
    chat, access = request.chat, request.context.access
    if not chat.kind.is_shared:
        raise CommandError("This command works only in groups.")
    is_on, health = access.hears(replace(chat.key, user_ref="")), request.context.health().get(chat.key.platform)
    hint = PRIVACY_MODE if health is not None and not health.hears_groups else ""
    match request.argument.lower():
        case "":
            state = f"on: I read and store what is said here.{hint}" if is_on else "off: I store only messages to me."
            return say(f"The group context is {state}")
        case "on" | "off" as choice:
            if not access.may_moderate(request.row.sender_ref):
                raise CommandError("Only admins and moderators (`access.moderators`) can do this.")
            turns_on = choice == "on"
            apply = partial(
                _switch, chat.key, chat.kind, turns_on, f"{NOW_HEARS}{hint}" if turns_on else NO_LONGER_HEARS
            )
            return CommandResult(apply=apply, after=access.load)
        case _:
            raise CommandError("Send `/groupcontext on` or `/groupcontext off`.")


async def reactions(request: CommandRequest) -> CommandResult:
    """Show or set whether the bot uses reactions in this chat."""
    chat_id, word = request.chat.id, request.argument.lower()
    if word in ("on", "off"):
        return CommandResult(apply=partial(_set_reactions, chat_id, word))
    if word:
        raise CommandError("Send `/reactions on` or `/reactions off`.")
    default = request.context.runtime.config.notices.reactions
    is_on = await load_switch(request.context.store, chat_id, default=default)
    return say(REACTIONS_ON if is_on else REACTIONS_OFF)


@locks("notes")
def _set_reactions(chat_id: ChatId, word: str, db: Connection, now: Millis) -> str:
    save_note(db, switch_key(chat_id), word)
    return REACTIONS_ON if word == "on" else REACTIONS_OFF


@locks(chat="key")
def _switch(key: ChatKey, kind: ChatKind, is_on: bool, text: str, db: Connection, now: Millis) -> str:
    talk.switch(db, key, kind, now, is_on=is_on)
    return text
