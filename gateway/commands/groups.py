"""Commands that change how the bot behaves in a chat: `/groupcontext`, `/reactions` and `/voice`."""

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.switches import REACTIONS, VOICE, Choice, Switch
from hermes_state import talk
from hermes_state.errors import CommandError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.values import ChatKey, ChatKind, Millis

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


REACTIONS_TEXTS = {
    "on": "Reactions are on here: I mark your messages, and you can give my answers a thumbs-up or thumbs-down.",
    "off": "Reactions are off here: I do not mark messages, and I do not store your reactions.",
}
VOICE_TEXTS = {
    "off": "I answer here only with text.",
    "same": "I answer a voice message here with text and a voice message, and everything else only with text.",
    "always": "I follow every answer here with a voice message, too.",
}
NO_VOICE = "I cannot speak, because no speech model is configured (`voice.model`)."


async def groupcontext(request: CommandRequest) -> CommandResult:
    chat, access = request.chat, request.context.access
    if not chat.kind.is_shared:
        raise CommandError("This command works only in groups.")
    account = request.context.runtime.config.label_of(chat.key.account)
    is_on, health = access.hears(replace(chat.key, user_ref="")), request.context.adapters.health().get(account)
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
    default = request.context.runtime.config.notices.reactions
    return await _choose(request, REACTIONS, "on" if default else "off", REACTIONS_TEXTS)


async def voice(request: CommandRequest) -> CommandResult:
    """Show or set which answers in this chat are also spoken."""
    settings = request.context.runtime.config.voice
    if settings.model is None:
        raise CommandError(NO_VOICE)
    return await _choose(request, VOICE, settings.mode, VOICE_TEXTS)


async def _choose(
    request: CommandRequest, switch: Switch[Choice], default: Choice, texts: Mapping[str, str]
) -> CommandResult:
    word = request.argument.lower()
    if word in switch.choices:
        return CommandResult(apply=switch.choosing(request.chat.id, word, texts[word]))
    if word:
        *others, last = (f"`/{switch.key} {choice}`" for choice in switch.choices)
        raise CommandError(f"Send {', '.join(others)} or {last}.")
    return say(texts[await switch.load(request.context.store, request.chat.id, default)])


@locks(chat="key")
def _switch(key: ChatKey, kind: ChatKind, is_on: bool, text: str, db: Connection, now: Millis) -> str:
    talk.switch(db, key, kind, now, is_on=is_on)
    return text
