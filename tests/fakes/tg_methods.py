"""Methods of the Bot API that the fake server supports, by name. Error texts are those of the Bot API."""

import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from tests.fakes import tg_markup, tg_updates
from tests.fakes.labkit import Json
from tests.fakes.tg_platform import ApiError, Bot, Telegram, Upload, bad, public

TEXT_LIMIT, CAPTION_LIMIT = 4096, 1024
"""Maximum lengths in UTF-16 units."""
DOWNLOAD_LIMIT = 20 * 1024 * 1024

MEDIA = {"sendPhoto": "photo", "sendDocument": "document", "sendVoice": "voice"}
_ACTIONS = frozenset(
    (
        *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice"),
        *("upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"),
    )
)
REACTIONS = frozenset(
    "❤👍👎🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡"
)
"""Emoji with which bots can react, without the four that consist of several characters."""
_RIGHTS = (
    *("is_anonymous", "can_manage_chat", "can_delete_messages", "can_manage_video_chats", "can_restrict_members"),
    *("can_promote_members", "can_change_info", "can_invite_users", "can_post_stories", "can_edit_stories"),
    "can_delete_stories",
)
_NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same as a current "
    "content and reply markup of the message"
)

Handler: TypeAlias = Callable[[Telegram, Bot, str, Json], Awaitable[Any]]  # Any: JSON whose form depends on the method


class Described(Exception):
    """Raised to return a result with a description. This is not an error."""

    def __init__(self, result: object, description: str) -> None:
        super().__init__(description)
        self.result, self.description = result, description


async def call(telegram: Telegram, bot: Bot, method: str, params: Json) -> tuple[Any, str | None]:
    """Call a method, and return its result and its description. Raises `ApiError` if it is refused."""
    handler = METHODS.get(method)
    if handler is None:
        raise ApiError(404, "Not Found: method not found")
    try:
        return await handler(telegram, bot, method, params), None
    except Described as answer:
        return answer.result, answer.description


# Sending


async def _send(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json:
    message = _composed(telegram, bot, params)
    if method == "sendMessage":
        message.update(_text(params))
    else:
        message.update(_media(telegram, MEDIA[method], params))
    chat_id = message["chat"]["id"]
    telegram.flood.check(chat_id, telegram.config["flood"])
    message["message_id"] = telegram.take_id(chat_id)
    telegram.store(message)
    await telegram.record(method, params, message)
    return public(message)


async def _send_draft(telegram: Telegram, bot: Bot, method: str, params: Json) -> bool:
    chat = telegram.chat(params.get("chat_id"))
    if chat["info"]["type"] != "private":
        raise bad("method is available only for private chats")
    if not int(params.get("draft_id") or 0):
        raise bad("RANDOM_ID_INVALID")
    text, _ = _formatted(params, "text", "entities", TEXT_LIMIT, "message is too long")
    telegram.flood.check(chat["info"]["id"], telegram.config["flood"])
    await telegram.record(method, params, None, draft_id=int(params["draft_id"]), draft_text=text)
    return True


def _composed(telegram: Telegram, bot: Bot, params: Json) -> Json:
    """Return a message without content and id: only sender, chat, topic, reply and keyboard."""
    chat = telegram.chat(params.get("chat_id"))
    telegram.check_can_send(chat)
    me = telegram.me(bot)
    message: Json = {
        "message_id": 0,
        "from": {key: me[key] for key in ("id", "is_bot", "first_name", "username")},
        "chat": dict(chat["info"]),
        "date": int(time.time()),
    }
    thread = params.get("message_thread_id")
    if thread not in (None, "", 0):
        if not str(thread).isdigit() or int(str(thread)) not in chat["topics"]:
            raise bad("message thread not found")
        message.update(message_thread_id=int(str(thread)), is_topic_message=True)
    if reply := _reply(telegram, chat["info"]["id"], params):
        message["reply_to_message"] = reply
    markup = _keyboard(params.get("reply_markup"))
    if markup and "inline_keyboard" in markup:
        message["reply_markup"] = markup
    return message


def _reply(telegram: Telegram, chat_id: int, params: Json) -> Json | None:
    reply = params.get("reply_parameters")
    if not reply and params.get("reply_to_message_id"):
        keys = {"message_id": "reply_to_message_id", "allow_sending_without_reply": "allow_sending_without_reply"}
        reply = {key: params.get(name) for key, name in keys.items()}
    if not reply:
        return None
    answered = telegram.find(chat_id, reply.get("message_id"))
    if answered is not None:
        return {key: value for key, value in public(answered).items() if key != "reply_to_message"}
    if not reply.get("allow_sending_without_reply"):
        raise bad("message to be replied not found")
    return None


def _text(params: Json) -> Json:
    text, entities = _formatted(params, "text", "entities", TEXT_LIMIT, "message is too long")
    if not text:
        raise bad("message text is empty")
    return {"text": text, "entities": entities} if entities else {"text": text}


def _caption(params: Json) -> Json:
    too_long = "message caption is too long"
    caption, entities = _formatted(params, "caption", "caption_entities", CAPTION_LIMIT, too_long)
    return {"caption": caption, "caption_entities": entities}


def _media(telegram: Telegram, kind: str, params: Json) -> Json:
    value = params.get(kind)
    if isinstance(value, str) and value.startswith("attach://"):
        value = params.get(value.removeprefix("attach://"))
    if isinstance(value, Upload):
        if not value.content:
            raise bad("file must be non-empty")
        file_id = telegram.add_file(kind, value.name, value.content, value.mime)["file_id"]
    elif isinstance(value, str) and value in telegram.files:
        file_id = value
    elif isinstance(value, str) and value.startswith(("http://", "https://")):
        raise bad("failed to get HTTP URL content")
    elif value in (None, ""):
        raise bad(f"there is no {kind} in the request")
    else:
        raise bad("wrong file identifier/HTTP URL specified")
    made: Json = {kind: telegram.media_field(kind, file_id)}
    if params.get("caption"):
        made.update({key: value for key, value in _caption(params).items() if value})
    return made


def _formatted(params: Json, field: str, entity_field: str, limit: int, too_long: str) -> tuple[str, list[Json]]:
    """Return the checked text and entities of a request. Text without visible characters becomes an empty string."""
    raw = "" if params.get(field) is None else str(params[field])
    try:
        entities = tg_markup.check_entities(raw, params.get(entity_field) or [])
    except tg_markup.MarkupError as error:
        raise bad(f"can't parse entities: {error}") from None
    if tg_markup.u16(raw) > limit:
        raise bad(too_long)
    found = [entity for entity in tg_markup.detect(raw) if not _is_taken(entity, entities)]
    return (raw if raw.strip() else ""), sorted([*entities, *found], key=lambda entity: entity["offset"])


def _is_taken(found: Json, entities: list[Json]) -> bool:
    """Return True if the server must not add an entity, because code or an entity of the same range is already
    there."""
    return any(
        (known["offset"], known["length"]) == (found["offset"], found["length"])
        or (known["type"] in ("code", "pre") and 0 <= found["offset"] - known["offset"] < known["length"])
        for known in entities
    )


def _keyboard(markup: Any) -> Json | None:
    if not markup:
        return None
    if not isinstance(markup, dict):
        raise bad("object expected as reply markup")
    for row in markup.get("inline_keyboard", []):
        for button in row:
            if not button.get("text"):
                raise bad('can\'t parse inline keyboard button: Field "text" must be non-empty')
            data = button.get("callback_data")
            if data is not None and not 1 <= len(str(data).encode()) <= 64:
                raise bad("BUTTON_DATA_INVALID")
            if len(button) < 2:
                raise bad("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
    return markup


# Edits


def _own(telegram: Telegram, params: Json, missing: str) -> Json:
    """Return the message that a request changes. It must exist and be reachable."""
    chat = telegram.chat(params.get("chat_id"))
    telegram.check_can_send(chat)
    message = telegram.find(chat["info"]["id"], params.get("message_id"))
    if message is None:
        raise bad(missing)
    return message


async def _edit(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json:
    message = _own(telegram, params, "message to edit not found")
    if message["from"]["id"] != bot.id:
        raise bad("message can't be edited")
    if "text" not in message:
        raise bad("there is no text in the message to edit")
    changes: Json = {"entities": None, **_text(params)}
    markup = _keyboard(params.get("reply_markup"))
    changes["reply_markup"] = markup if markup and markup.get("inline_keyboard") else None
    if all((message.get(key) or None) == (value or None) for key, value in changes.items()):
        raise bad(_NOT_MODIFIED)
    telegram.flood.check(message["chat"]["id"], telegram.config["flood"])
    message.setdefault("_versions", []).append(message["text"])
    for key, value in changes.items():
        if value:
            message[key] = value
        else:
            message.pop(key, None)
    message["edit_date"] = int(time.time())
    await telegram.record(method, params, message)
    return public(message)


async def _delete(telegram: Telegram, bot: Bot, method: str, params: Json) -> bool:
    message = _own(telegram, params, "message to delete not found")
    message["_deleted"] = True
    await telegram.record(method, params, message)
    return True


async def _react(telegram: Telegram, bot: Bot, method: str, params: Json) -> bool:
    message = _own(telegram, params, "message to react not found")
    chosen = [str(one.get("emoji")) for one in params.get("reaction") or []]
    if telegram.chat(params.get("chat_id"))["no_reactions"] or not REACTIONS.issuperset(chosen):
        raise bad("REACTION_INVALID")
    if len(chosen) > 1:
        raise bad("REACTIONS_TOO_MANY")
    telegram.flood.check(message["chat"]["id"], telegram.config["flood"])
    await telegram.record(method, params, None, emoji="".join(chosen))  # without the text that a person wrote
    return True


async def _get_chat_member(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json:
    user = {key: telegram.me(bot)[key] for key in ("id", "is_bot", "first_name", "username")}
    if not telegram.chat(params.get("chat_id"))["is_admin"]:
        return {"status": "member", "user": user}
    return {"status": "administrator", "user": user, "can_be_edited": False, **dict.fromkeys(_RIGHTS, True)}


async def _chat_action(telegram: Telegram, bot: Bot, method: str, params: Json) -> bool:
    telegram.check_can_send(telegram.chat(params.get("chat_id")))
    if params.get("action") not in _ACTIONS:
        raise bad("wrong parameter action in request")
    await telegram.record(method, params, None, action=params["action"])
    return True


async def _answer_callback(telegram: Telegram, bot: Bot, method: str, params: Json) -> bool:
    query = telegram.callbacks.get(str(params.get("callback_query_id")))
    if not query or query["answered"] or time.monotonic() - query["t"] > query["ttl"]:
        raise bad("query is too old and response timeout expired or query ID is invalid")
    if len(str(params.get("text") or "")) > 200:
        raise bad("MESSAGE_TOO_LONG")
    query["answered"] = True
    await telegram.record(method, params, None, callback_query_id=params["callback_query_id"])
    return True


# Queries


async def _get_me(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json:
    return telegram.me(bot)


async def _get_file(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json:
    file_id = str(params.get("file_id") or "")
    file = telegram.files.get(file_id)
    if file is None:
        raise bad("invalid file_id" if file_id else "file_id not specified")
    if folder := telegram.config["local_files"]:
        place = Path(folder) / file_id
        place.write_bytes(file["content"])
        return {**telegram.file_ref(file_id), "file_path": str(place)}
    if file["size"] > DOWNLOAD_LIMIT:
        raise bad("file is too big")
    return {**telegram.file_ref(file_id), "file_path": file["path"]}


# The bot itself


async def _commands(telegram: Telegram, bot: Bot, method: str, params: Json) -> list[Json] | bool:
    key = json.dumps([params.get("scope") or {"type": "default"}, params.get("language_code") or ""], sort_keys=True)
    if method == "getMyCommands":
        return bot.commands.get(key, [])
    commands = (params.get("commands") or []) if method == "setMyCommands" else []
    if len(commands) > 100:
        raise bad("BOT_COMMANDS_TOO_MUCH")
    for command in commands:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", str(command.get("command", "")).lstrip("/")):
            raise bad("BOT_COMMAND_INVALID")
        if not 1 <= len(str(command.get("description", ""))) <= 256:
            raise bad("BOT_COMMAND_DESCRIPTION_INVALID")
    bot.commands[key] = [
        {"command": command["command"].lstrip("/"), "description": command["description"]} for command in commands
    ]
    await telegram.record(method, params, None)
    return True


async def _get_updates(telegram: Telegram, bot: Bot, method: str, params: Json) -> list[Json]:
    return await tg_updates.get_updates(bot, params)


async def _webhook(telegram: Telegram, bot: Bot, method: str, params: Json) -> Json | bool:
    if method == "getWebhookInfo":
        return tg_updates.webhook_info(bot)
    if method == "deleteWebhook" or not params.get("url"):
        raise Described(True, tg_updates.delete_webhook(bot))

    tg_updates.set_webhook(bot, params)
    raise Described(True, "Webhook was set")


METHODS: dict[str, Handler] = {
    **dict.fromkeys(("sendMessage", *MEDIA), _send),
    "sendMessageDraft": _send_draft,
    "editMessageText": _edit,
    "deleteMessage": _delete,
    "sendChatAction": _chat_action,
    "setMessageReaction": _react,
    "getChatMember": _get_chat_member,
    "answerCallbackQuery": _answer_callback,
    "getMe": _get_me,
    "getFile": _get_file,
    **dict.fromkeys(("setMyCommands", "getMyCommands", "deleteMyCommands"), _commands),
    "getUpdates": _get_updates,
    **dict.fromkeys(("setWebhook", "deleteWebhook", "getWebhookInfo"), _webhook),
}
