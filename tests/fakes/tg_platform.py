"""State of the fake Telegram: bots, chats, messages, files and limits. Contains no HTTP code.

Messages are stored in the Bot API's format. Keys that begin with `_` are internal and are never sent. All times come
from this machine's clock. `reset` clears everything.
"""

import asyncio
import base64
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes import labkit, tg_markup
from tests.fakes.labkit import Json

UPDATE_KINDS = frozenset(
    (
        *("message", "edited_message", "channel_post", "edited_channel_post", "callback_query", "inline_query"),
        *("chosen_inline_result", "shipping_query", "pre_checkout_query", "poll", "poll_answer", "my_chat_member"),
        *("chat_member", "chat_join_request", "message_reaction", "message_reaction_count", "chat_boost"),
        *("removed_chat_boost", "business_connection", "business_message", "edited_business_message"),
        *("deleted_business_messages", "purchased_paid_media"),
    )
)
OPT_IN_KINDS = frozenset(("chat_member", "message_reaction", "message_reaction_count"))
"""Kinds of updates that only bots with these kinds in `allowed_updates` receive."""

FIRST_UPDATE = 700_000_001
DEFAULT_PERSON = 1001
PRESS_SECONDS = 15
"""Seconds for which a pressed button waits for its answer."""

_REFUSALS = {
    "blocked": "bot was blocked by the user",
    "kicked": "bot was kicked from the supergroup chat",
    "deactivated": "user is deactivated",
    "restricted": "not enough rights to send text messages to the chat",
}
_CHAT_FIELDS = ("blocked", "migrated_to", "is_admin", "no_reactions")
_SERVICE_FIELDS = (
    *("media_group_id", "quote", "forward_origin", "via_bot", "sender_chat", "new_chat_members"),
    *("left_chat_member", "migrate_to_chat_id", "migrate_from_chat_id", "forum_topic_created"),
    *("external_reply", "reply_to_story", "is_automatic_forward"),
)


class ApiError(Exception):
    """Error with the Bot API's text. The code is also the HTTP status."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters

    def body(self) -> Json:
        body: Json = {"ok": False, "error_code": self.code, "description": self.description}
        if self.parameters:
            body["parameters"] = self.parameters
        return body


def bad(text: str) -> ApiError:
    return ApiError(400, "Bad Request: " + text)


def flood(seconds: float) -> ApiError:
    wait = max(1, int(seconds + 0.999))
    return ApiError(429, f"Too Many Requests: retry after {wait}", retry_after=wait)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in a multipart request."""

    name: str
    content: bytes
    mime: str

    def __repr__(self) -> str:
        return f"<upload {self.name} {len(self.content)} bytes>"


def public(message: Json) -> Json:
    """Return the message in the Bot API's format."""
    return {key: value for key, value in message.items() if not key.startswith("_")}


class Bot:
    """All state of one bot token."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.updates: list[Json] = []
        self.next_update_id = FIRST_UPDATE
        self.allowed: set[str] | None = None
        self.poller: asyncio.Future[None] | None = None
        self.changed = asyncio.Event()
        self.commands: dict[str, list[Json]] = {}
        self.webhook: Json = {"url": ""}
        self.webhook_error: Json = {}
        self.worker: asyncio.Task[None] | None = None

    @property
    def id(self) -> int:
        return int(self.token.split(":")[0]) if self.token else 0

    def push(self, kind: str, payload: Json) -> Json | None:
        """Queue an update, unless the bot does not want its kind."""
        is_wanted = kind in self.allowed if self.allowed else kind not in OPT_IN_KINDS
        if not is_wanted:
            return None
        update = {"update_id": self.next_update_id, kind: payload}
        self.next_update_id += 1
        self.updates.append(update)
        self.changed.set()
        return update

    def set_allowed(self, value: object) -> None:
        if not isinstance(value, list):
            raise bad("can't parse allowed updates: expected an array")
        self.allowed = {kind for kind in value if kind in UPDATE_KINDS} or None

    def stop(self) -> None:
        """Stop the webhook delivery and the poll of the bot."""
        if self.worker:
            self.worker.cancel()
        if self.poller and not self.poller.done():
            self.poller.cancel()


class FloodControl:
    """Sliding-window limits for each chat, each group and in total. A penalty blocks the chat for its duration."""

    def __init__(self) -> None:
        self._windows: dict[tuple[object, ...], deque[float]] = {}
        self._banned_until: dict[int, float] = {}

    def check(self, chat_id: int, limits: Mapping[str, Any]) -> None:
        """Count a message to the chat. Raises a 429 error if it exceeds a limit."""
        if not limits:
            return
        now = time.monotonic()
        if (until := self._banned_until.get(chat_id, 0)) > now:
            raise flood(until - now)
        rules = [
            (("chat", chat_id), limits.get("per_chat_per_sec"), 1.0),
            (("all",), limits.get("global_per_sec"), 1.0),
        ]
        if chat_id < 0:
            rules.append((("group", chat_id), limits.get("group_per_min"), 60.0))
        for key, cap, span in rules:
            if not cap:
                continue
            window = self._windows.setdefault(key, deque())
            while window and window[0] <= now - span:
                window.popleft()
            if len(window) >= cap:
                wait = max(window[0] + span - now, float(limits.get("penalty", 0)))
                self._banned_until[chat_id] = now + wait
                raise flood(wait)
        for key, cap, _ in rules:
            if cap:
                self._windows[key].append(now)


class Telegram:
    """The whole platform in memory. The `inject…` methods are actions of people."""

    def __init__(self, token: str = "", username: str = "lab_gateway_bot", flood_control: Json | None = None) -> None:
        self.only_token, self.username = token, username
        self.flood_default = flood_control or {}
        self.faults = labkit.Faults()
        self.bots: dict[str, Bot] = {}
        self.reset()

    def reset(self) -> None:
        for bot in self.bots.values():
            bot.stop()
        self.spare = Bot(None)
        self.bots = {}
        self.chats: dict[int, Json] = {}
        self.messages: dict[int, dict[int, Json]] = {}
        self.files: dict[str, Json] = {}
        self.callbacks: dict[str, Json] = {}
        self.calls, self.sent = labkit.Journal(), labkit.Journal()
        self.config: Json = {
            "privacy_mode": False,
            "flood": dict(self.flood_default),
            "latency": 0.0,
            "local_files": "",
        }
        self.flood = FloodControl()
        self.faults.clear()
        self.faults.fired.clear()
        self._next_id: dict[int, int] = {}
        self._media_ids = itertools.count(1)
        self._callback_ids = itertools.count(4242000001)

    # Bots

    def bot_for(self, token: str) -> Bot:
        """Return the bot of a token. The first bot gets all updates that were injected earlier."""
        if not re.fullmatch(r"\d+:[A-Za-z0-9_-]+", token):
            raise ApiError(404, "Not Found")
        if self.only_token and token != self.only_token:
            raise ApiError(401, "Unauthorized")
        if token not in self.bots:
            bot = Bot(None) if self.bots else self.spare
            bot.token = token
            self.bots[token] = bot
        return self.bots[token]

    def target(self, data: Mapping[str, Any]) -> Bot:
        """Return the bot that a control request names, or else the first bot."""
        return self.bot_for(data["token"]) if data.get("token") else next(iter(self.bots.values()), self.spare)

    def me(self, bot: Bot) -> Json:
        return {
            "id": bot.id,
            "is_bot": True,
            "first_name": "Lab Gateway",
            "username": self.username,
            "can_join_groups": True,
            "can_read_all_group_messages": not self.config["privacy_mode"],
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
        }

    # Chats and messages

    def chat(self, chat_id: object) -> Json:
        """Return a chat that has been created before."""
        try:
            return self.chats[int(str(chat_id))]
        except (ValueError, KeyError):
            raise bad("chat not found") from None

    def make_chat(self, data: Mapping[str, Any]) -> Json:
        """Create or change a chat. See `POST /_ctl/chat`."""
        chat_id = int(data["chat_id"])
        kind = data.get("chat_type") or ("private" if chat_id > 0 else "supergroup")
        fresh: Json = {"info": {"id": chat_id, "type": kind}, "topics": {}, **dict.fromkeys(_CHAT_FIELDS)}
        chat = self.chats.setdefault(chat_id, fresh)
        info = chat["info"]
        if kind == "private":
            info.setdefault("first_name", data.get("first_name", f"User{chat_id}"))
            if data.get("username"):
                info["username"] = data["username"]
        else:
            info.setdefault("title", data.get("title", f"Group {chat_id}"))
        is_topic = data.get("thread_id") and kind == "supergroup" and data.get("is_forum") is not False
        if data.get("is_forum") or is_topic:
            info["is_forum"] = True
        if data.get("thread_id"):
            name = data.get("topic_name", f"topic {data['thread_id']}")
            chat["topics"].setdefault(int(data["thread_id"]), name)
        for key in _CHAT_FIELDS:
            if key in data:
                chat[key] = data[key]
        return chat

    def check_can_send(self, chat: Json) -> None:
        if chat["migrated_to"]:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise ApiError(400, text, migrate_to_chat_id=chat["migrated_to"])
        if chat["blocked"]:
            reason = chat["blocked"] if isinstance(chat["blocked"], str) else "blocked"
            text = _REFUSALS.get(reason, reason)
            raise bad(text) if reason == "restricted" else ApiError(403, "Forbidden: " + text)

    def take_id(self, chat_id: int) -> int:
        """Return the next message id of a chat."""
        self._next_id[chat_id] = self._next_id.get(chat_id, 0) + 1
        return self._next_id[chat_id]

    def store(self, message: Json) -> None:
        self.messages.setdefault(message["chat"]["id"], {})[message["message_id"]] = message

    def find(self, chat_id: int, message_id: object) -> Json | None:
        """Return a message that has not been deleted."""
        message = self.messages.get(chat_id, {}).get(int(str(message_id or 0)))
        return None if message is None or message.get("_deleted") else message

    async def record(self, method: str, params: Json, message: Json | None, **extra: Any) -> None:
        """Add a row to the `sent` journal, which contains what people can see."""
        seen = message or {}
        await self.sent.add(
            method=method,
            chat_id=seen.get("chat", {}).get("id", params.get("chat_id")),
            thread_id=seen.get("message_thread_id", params.get("message_thread_id")),
            message_id=seen.get("message_id", params.get("message_id")),
            text=seen.get("text", seen.get("caption", params.get("text"))),
            params={key: value for key, value in params.items() if not isinstance(value, Upload)},
            **extra,
        )

    # Files

    def add_file(
        self, kind: str, name: str, content: bytes, mime: str, fake_size: int | None = None, seconds: int = 1
    ) -> Json:
        number = next(self._media_ids)
        file_id = f"LAB{kind[:3].upper()}{number:08d}"
        self.files[file_id] = {
            "content": content,
            "path": f"{kind}s/file_{number}{os.path.splitext(name)[1]}",
            "name": name,
            "mime": mime,
            "size": len(content) if fake_size is None else fake_size,
            "unique": f"UQ{number:08d}",
            "kind": kind,
            "seconds": seconds,
        }
        return self.file_ref(file_id)

    def file_ref(self, file_id: str) -> Json:
        file = self.files[file_id]
        return {"file_id": file_id, "file_unique_id": file["unique"], "file_size": file["size"]}

    def media_field(self, kind: str, file_id: str) -> Json | list[Json]:
        """Return the value of the message field for a kind of media."""
        file, ref = self.files[file_id], self.file_ref(file_id)
        match kind:
            case "photo":
                return [{**ref, "width": 90, "height": 90}, {**ref, "width": 640, "height": 640}]
            case "document":
                return {**ref, "file_name": file["name"], "mime_type": file["mime"]}
            case "voice" | "audio":
                return {**ref, "duration": file["seconds"], "mime_type": file["mime"]}
            case "sticker":
                shape = {"type": "regular", "width": 512, "height": 512, "is_animated": False, "is_video": False}
                return {**ref, **shape}
            case "video_note":
                return {**ref, "length": 240, "duration": 1}
        shape = {"width": 640, "height": 480, "duration": 1}
        return {**ref, **shape, "file_name": file["name"], "mime_type": file["mime"]}

    # Actions of people

    def inject(self, data: Json) -> Json:
        """Send a message from a person. See `POST /_ctl/message`."""
        bot = self.target(data)
        data.setdefault("chat_id", data.get("user_id", DEFAULT_PERSON))
        info = self.make_chat(data)["info"]
        message: Json = {
            "message_id": self.take_id(info["id"]),
            "from": _user(data),
            "chat": dict(info),
            "date": int(data.get("date") or time.time()),
        }
        if data.get("thread_id"):
            message["message_thread_id"] = int(data["thread_id"])
            if info.get("is_forum"):
                message["is_topic_message"] = True
        if data.get("reply_to") and (answered := self.messages.get(info["id"], {}).get(int(data["reply_to"]))):
            message["reply_to_message"] = public(answered)
        message.update(self._content(data))
        message.update({key: data[key] for key in _SERVICE_FIELDS if key in data})
        self.store(message)
        update = None
        if self._is_visible_to(bot, message):
            update = bot.push("channel_post" if info["type"] == "channel" else "message", public(message))
        return {"message": public(message), "update_id": update and update["update_id"]}

    def inject_edit(self, data: Json) -> Json:
        """Edit a person's message. See `POST /_ctl/edit`."""
        message = self.messages[int(data["chat_id"])][int(data["message_id"])]
        message["text"] = data["text"]
        message["entities"] = tg_markup.detect(data["text"])
        message["edit_date"] = int(time.time())
        update = self.target(data).push("edited_message", public(message))
        return {"message": public(message), "update_id": update and update["update_id"]}

    def inject_reaction(self, data: Json) -> Json:
        """Change a person's reactions. Bots that are not admins of a group are not told. See `POST /_ctl/reaction`."""
        chat, person = self.chat(data["chat_id"]), _user(data)
        known = self.messages[chat["info"]["id"]][int(data["message_id"])].setdefault("_reactions", {})
        old, new = known.get(person["id"], []), data["emoji"]
        known[person["id"]] = new
        both = [[{"type": "emoji", "emoji": emoji} for emoji in one] for one in (old, new)]
        changed = {"chat": dict(chat["info"]), "message_id": int(data["message_id"]), "user": person}
        changed |= {"date": int(time.time()), "old_reaction": both[0], "new_reaction": both[1]}
        is_told = chat["info"]["type"] == "private" or chat["is_admin"]
        return {"update": self.target(data).push("message_reaction", changed) if is_told else None}

    def inject_callback(self, data: Json) -> Json:
        """Press a button as a person. See `POST /_ctl/callback`."""
        chat_id = int(data["chat_id"])
        messages = self.messages[chat_id]
        with_buttons = [key for key, row in messages.items() if row.get("reply_markup") and not row.get("_deleted")]
        message = messages[int(data.get("message_id") or max(with_buttons, default=0))]
        value = data.get("data") or _button(message, data.get("button", 0))["callback_data"]
        query_id = str(next(self._callback_ids))
        ttl = float(data.get("ttl", PRESS_SECONDS))
        self.callbacks[query_id] = {"t": time.monotonic(), "ttl": ttl, "answered": False}
        query = {
            "id": query_id,
            "from": _user({**data, "chat_id": chat_id}),
            "message": public(message),
            "chat_instance": str(chat_id),
            "data": value,
        }
        update = self.target(data).push("callback_query", query)
        return {"callback_query_id": query_id, "update_id": update and update["update_id"]}

    def _content(self, data: Json) -> Json:
        """Return the message fields for text, or for media with its caption."""
        text, kind = data.get("text"), data.get("media")
        if not kind:
            if text is None:
                return {}
            entities = data.get("entities") or tg_markup.detect(text)
            return {"text": text, "entities": entities} if entities else {"text": text}
        encoded = data.get("file_b64")
        content = base64.b64decode(encoded) if encoded else str(data.get("file_text", "lab file")).encode()
        usual = {"photo": ("photo.jpg", "image/jpeg"), "voice": ("voice.ogg", "audio/ogg")}
        name, mime = usual.get(kind, ("file.txt", "text/plain"))
        name, mime = data.get("file_name", name), data.get("mime", mime)
        ref = self.add_file(kind, name, content, mime, data.get("file_size"), int(data.get("duration", 1)))
        made: Json = {kind: self.media_field(kind, ref["file_id"])}
        if caption := data.get("caption") or text:
            made.update(caption=caption, caption_entities=tg_markup.detect(caption))
        return made

    def _is_visible_to(self, bot: Bot, message: Json) -> bool:
        """Return True if the bot sees the message. In privacy mode, bots in groups see only messages for them."""
        if not self.config["privacy_mode"] or message["chat"]["type"] not in ("group", "supergroup"):
            return True
        text = message.get("text") or message.get("caption") or ""
        answers_us = message.get("reply_to_message", {}).get("from", {}).get("id") == bot.id
        return text.startswith("/") or f"@{self.username}" in text or answers_us


def _user(data: Mapping[str, Any]) -> Json:
    """Return the person in a control request. In a private chat, the chat id is also the person's id."""
    chat_id = int(data.get("chat_id", 0))
    user_id = int(data.get("user_id") or (chat_id if chat_id > 0 else DEFAULT_PERSON))
    user = {
        "id": user_id,
        "is_bot": bool(data.get("is_bot", False)),
        "first_name": data.get("first_name", f"User{user_id}"),
        "language_code": data.get("language_code", "en"),
    }
    if data.get("username"):
        user["username"] = data["username"]
    return user


def _button(message: Json, label: int | str) -> Json:
    """Return a button of a message by its position or its text."""
    buttons: list[Json] = [button for row in message["reply_markup"]["inline_keyboard"] for button in row]
    return buttons[label] if isinstance(label, int) else next(each for each in buttons if each["text"] == label)
