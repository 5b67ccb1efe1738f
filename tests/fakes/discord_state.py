"""State of the fake Discord: people, servers, channels, messages and files. Contains no protocol code."""

import base64
import itertools
import re
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.fakes import labkit
from tests.fakes.labkit import Json

if TYPE_CHECKING:
    from tests.fakes.discord_gateway import Conn, Session

EPOCH_MS = 1_420_070_400_000
APPLICATION = "900000000000000001"
GUILD = "200000000000000001"
ALICE = "100000000000000001"
BOB = "100000000000000002"
ROLES = ("400000000000000001", "400000000000000002")
"""Roles of each server besides @everyone, the lower role first."""
THREADS = (10, 11, 12)
EPHEMERAL, LOADING = 1 << 6, 1 << 7
ALL_PERMISSIONS = str((1 << 53) - 1)
MAX_CONTENT = 2000
MAX_NONCE = 25
MAX_FILE_BYTES = 10 * 1024 * 1024

_KNOWN = {
    0: (401, "401: Unauthorized"),
    10003: (404, "Unknown Channel"),
    10004: (404, "Unknown Guild"),
    10007: (404, "Unknown Member"),
    10008: (404, "Unknown Message"),
    10014: (400, "Unknown Emoji"),
    10015: (404, "Unknown Webhook"),
    10062: (404, "Unknown interaction"),
    30032: (400, "Maximum number of application commands reached (100)."),
    40005: (413, "Request entity too large"),
    40060: (400, "Interaction has already been acknowledged."),
    50001: (403, "Missing Access"),
    50005: (403, "Cannot edit a message authored by another user"),
    50006: (400, "Cannot send an empty message"),
    50007: (403, "Cannot send messages to this user"),
    50013: (403, "Missing Permissions"),
    50027: (401, "Invalid Webhook Token"),
    50035: (400, "Invalid Form Body"),
    50083: (400, "Thread is archived"),
    50109: (400, "The request body contains invalid JSON."),
}


_NOTHING = (
    *("icon", "splash", "discovery_splash", "afk_channel_id", "application_id", "system_channel_id"),
    *("rules_channel_id", "vanity_url_code", "description", "banner"),
)
_EMPTY = (
    *("emojis", "features", "stickers", "voice_states", "stage_instances", "guild_scheduled_events"),
    *("soundboard_sounds", "presences"),
)
_ZERO = (
    *("verification_level", "default_message_notifications", "explicit_content_filter", "mfa_level"),
    *("system_channel_flags", "premium_tier", "nsfw_level"),
)
_GUILD_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(_NOTHING),
    **{key: [] for key in _EMPTY},
    **dict.fromkeys(_ZERO, 0),
}
"""Fields of a server that clients expect and tests do not use."""


class RestError(Exception):
    """Error response in Discord's format."""

    def __init__(
        self, code: int, status: int | None = None, message: str | None = None, errors: Json | None = None
    ) -> None:
        known = _KNOWN.get(code, (400, "Error"))
        self.status, self.code = status or known[0], code
        self.body: Json = {"message": message or known[1], "code": code}
        if errors:
            self.body["errors"] = errors
        super().__init__(self.body["message"])


def not_found() -> RestError:
    return RestError(0, 404, "404: Not Found")


def form_error(**fields: tuple[str, str]) -> RestError:
    """Return error 50035 for invalid fields, each with a code and a text."""
    errors = {name: {"_errors": [{"code": code, "message": text}]} for name, (code, text) in fields.items()}
    return RestError(50035, errors=errors)


def iso(moment: float | None = None) -> str:
    return datetime.fromtimestamp(time.time() if moment is None else moment, UTC).isoformat()


def scope(channel: Json) -> Json:
    """Return the `guild_id` field for an event in this channel, or no fields for a direct chat."""
    return {"guild_id": channel["guild_id"]} if channel.get("guild_id") else {}


class Discord:
    """All state of the fake Discord, in memory. `base` is the address that the last client used for the server."""

    def __init__(self, token: str = "", heartbeat_ms: int = 41_250) -> None:
        self.only_token, self.heartbeat_default = token, heartbeat_ms
        self.base = ""
        self.conns: list[Conn] = []
        self.faults = labkit.Faults()
        self.connection_numbers = itertools.count(1)
        self._last_flake = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything except the connections."""
        self.sessions: dict[str, Session] = {}
        self.sent, self.calls, self.gateway_log = labkit.Journal(), labkit.Journal(), labkit.Journal()
        self.config: Json = {
            "heartbeat_ms": self.heartbeat_default,
            "rate_limits": True,
            "global_per_sec": 50,
            "disallowed_intents": 0,
            "latency": 0.0,
            "enforce_heartbeat": True,
            "nonce_seconds": 180.0,
            "write_answers": {},
        }
        self.faults.clear()
        self.faults.fired.clear()
        self.buckets: dict[str, dict[str, float]] = {}
        self.global_window: deque[float] = deque()
        self.users: dict[str, Json] = {}
        self.roles: dict[str, list[str] | None] = {}  # ids of roles by user id; None: not a member of any server
        self.channels: dict[str, Json] = {}
        self.guilds: dict[str, Json] = {}
        self.messages: dict[str, dict[str, Json]] = {}
        self.private: dict[str, Json] = {}  # ephemeral messages, which only their interactions can edit
        """Messages by channel id, then by message id. Ephemeral messages are not included."""
        self.commands: dict[str, list[Json]] = {}
        """Application commands by guild id. The key of global commands is ""."""
        self.interactions: dict[str, Json] = {}
        self.by_token: dict[str, Json] = {}
        self.files: dict[str, tuple[str, str, bytes]] = {}
        """Name, type and content by file id."""
        self._nonces: dict[tuple[str, str], tuple[float, str]] = {}
        self.app_id = APPLICATION
        self.bot = self.make_user(APPLICATION, "labgateway", is_bot=True)
        self.make_user(ALICE, "alice")
        self.make_user(BOB, "bob")
        self.guilds[GUILD] = {"id": GUILD, "name": "Lab Guild", "owner_id": ALICE}
        self.make_channel({"id": "300000000000000001", "name": "general", "type": 0, "guild_id": GUILD})
        self.make_channel({"id": "300000000000000002", "name": "bots", "type": 0, "guild_id": GUILD})

    # Creation of objects

    def flake(self) -> str:
        """Return a new id with the milliseconds since Discord's epoch in the upper bits. Ids always increase."""
        value = (time.time_ns() // 1_000_000 - EPOCH_MS) << 22
        self._last_flake = max(value, self._last_flake + 1)
        return str(self._last_flake)

    def make_user(self, user_id: str, name: str | None = None, *, is_bot: bool = False) -> Json:
        """Return the user with this id, who is created if necessary."""
        if user_id not in self.users:
            self.users[user_id] = {
                "id": user_id,
                "username": name or f"user{user_id[-4:]}",
                "discriminator": "0",
                "global_name": name,
                "avatar": None,
                "bot": is_bot,
                "public_flags": 0,
                "flags": 0,
            }
        return self.users[user_id]

    def member(self, user: Json, *, with_user: bool = True) -> Json:
        """Return a user as a member of a server."""
        made: Json = {
            "roles": self.roles.get(user["id"]) or [],
            "joined_at": "2024-01-01T00:00:00+00:00",
            "deaf": False,
            "mute": False,
            "flags": 0,
            "nick": None,
            "avatar": None,
            "premium_since": None,
            "pending": False,
            "communication_disabled_until": None,
        }
        return {**made, "user": user} if with_user else made

    def make_channel(self, data: Mapping[str, Any]) -> Json:
        channel_id = str(data.get("id") or self.flake())
        self.channels[channel_id] = {
            "id": channel_id,
            "type": data.get("type", 0),
            "name": data.get("name", "channel"),
            "position": len(self.channels),
            "guild_id": str(data["guild_id"]),
            "permission_overwrites": [],
            "nsfw": False,
            "topic": data.get("topic"),
            "parent_id": data.get("parent_id"),
            "rate_limit_per_user": 0,
            "last_message_id": None,
        }
        self.messages.setdefault(channel_id, {})
        return self.channels[channel_id]

    def make_thread(self, parent: Json, name: str, owner: str, thread_id: str | None = None, kind: int = 11) -> Json:
        thread_id = thread_id or self.flake()
        self.channels[thread_id] = {
            "id": thread_id,
            "type": kind,
            "name": name,
            "guild_id": parent["guild_id"],
            "parent_id": parent["id"],
            "owner_id": owner,
            "message_count": 0,
            "member_count": 1,
            "total_message_sent": 0,
            "flags": 0,
            "rate_limit_per_user": 0,
            "last_message_id": None,
            "thread_metadata": {
                "archived": False,
                "auto_archive_duration": 1440,
                "archive_timestamp": iso(),
                "locked": False,
                "create_timestamp": iso(),
            },
            "member": {"id": thread_id, "user_id": self.bot["id"], "join_timestamp": iso(), "flags": 0},
        }
        self.messages.setdefault(thread_id, {})
        return self.channels[thread_id]

    def dm_with(self, user_id: str) -> Json:
        """Return the bot's direct chat with this user, which is created if necessary."""
        user = self.make_user(user_id)
        for channel in self.channels.values():
            if channel["type"] == 1 and channel["recipients"][0]["id"] == user["id"]:
                return channel
        channel_id = self.flake()
        self.channels[channel_id] = {
            "id": channel_id,
            "type": 1,
            "last_message_id": None,
            "flags": 0,
            "recipients": [user],
        }
        self.messages[channel_id] = {}
        return self.channels[channel_id]

    def attach(self, blob: tuple[str, str, bytes], extra: Mapping[str, Any]) -> Json:
        """Store a file, and return it as an attachment object."""
        name, mime, content = blob
        if len(content) > MAX_FILE_BYTES:
            raise RestError(40005)
        file_id = self.flake()
        self.files[file_id] = (name, mime, content)
        url = f"{self.base}/_cdn/{file_id}/{name}"
        made = {
            "id": file_id,
            "filename": extra.get("filename", name),
            "size": len(content),
            "url": url,
            "proxy_url": url,
            "content_type": mime,
        }
        return {**made, "description": extra["description"]} if extra.get("description") else made

    def files_of(self, data: Mapping[str, Any]) -> list[Json]:
        """Return the attachments in a control request, whose content is text or base64."""
        made = []
        for file in data.get("files") or []:
            raw = base64.b64decode(file["b64"]) if file.get("b64") else str(file.get("text", "")).encode()
            blob = (file.get("filename", "file.txt"), file.get("content_type", "text/plain"), raw)
            made.append(self.attach(blob, {}))
        return made

    def new_message(self, channel: Json, author: Json, data: Mapping[str, Any]) -> Json:
        """Create a message in the channel's history, unless it is ephemeral."""
        content = data.get("content") or ""
        named = dict.fromkeys(re.findall(r"<@!?(\d+)>", content))
        message: Json = {
            "id": self.flake(),
            "channel_id": channel["id"],
            "author": author,
            "content": content,
            "timestamp": iso(),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [self.users[user_id] for user_id in named if user_id in self.users],
            "mention_roles": [],
            "attachments": data.get("attachments") or [],
            "embeds": data.get("embeds") or [],
            "pinned": False,
            "type": data.get("type", 0),
            "flags": int(data.get("flags") or 0),
            "components": data.get("components") or [],
        }
        keys = ("nonce", "webhook_id", "interaction_metadata", "application_id", "poll", "message_snapshots")
        message.update({key: data[key] for key in keys if data.get(key) is not None})
        if reference := data.get("message_reference"):
            self._refer(message, channel, reference)
        if message["flags"] & EPHEMERAL:
            self.private[message["id"]] = message
        else:
            self._keep(message, channel)
        return message

    def _refer(self, message: Json, channel: Json, reference: Mapping[str, Any]) -> None:
        place = str(reference.get("channel_id") or channel["id"])
        target = self.messages.get(place, {}).get(str(reference["message_id"]))
        if target is None:
            if reference.get("fail_if_not_exists", True):
                raise form_error(message_reference=("MESSAGE_REFERENCE_UNKNOWN_MESSAGE", "Unknown message"))
            return
        message["type"] = 19
        message["message_reference"] = {
            "type": 0,
            "channel_id": target["channel_id"],
            "message_id": target["id"],
            **scope(channel),
        }
        message["referenced_message"] = {key: value for key, value in target.items() if key != "referenced_message"}
        if target["author"] not in message["mentions"]:  # a reply mentions the author of the original message
            message["mentions"].append(target["author"])

    def _keep(self, message: Json, channel: Json) -> None:
        self.messages[channel["id"]][message["id"]] = message
        channel["last_message_id"] = message["id"]
        if channel["type"] in THREADS:
            channel["message_count"] += 1
            channel["total_message_sent"] += 1

    # Nonces

    def sent_before(self, channel_id: str, nonce: str) -> Json | None:
        """Return the message with this nonce if it still exists and was sent less than `nonce_seconds` ago."""
        at, message_id = self._nonces.get((channel_id, nonce), (0.0, ""))
        if time.monotonic() - at >= self.config["nonce_seconds"]:
            return None
        return self.messages[channel_id].get(message_id)

    def remember_nonce(self, channel_id: str, nonce: str, message_id: str) -> None:
        self._nonces[(channel_id, nonce)] = (time.monotonic(), message_id)

    # Lookups

    def channel(self, channel_id: str) -> Json:
        if channel_id not in self.channels:
            raise RestError(10003)
        return self.channels[channel_id]

    def message(self, channel_id: str, message_id: str) -> Json:
        self.channel(channel_id)
        if message_id not in self.messages[channel_id]:
            raise RestError(10008)
        return self.messages[channel_id][message_id]

    def place(self, data: Mapping[str, Any]) -> Json:
        """Return the channel of a control request, given as `channel_id`, `dm_user_id` or the name `channel`."""
        if data.get("channel_id"):
            return self.channel(str(data["channel_id"]))
        if data.get("dm_user_id"):
            return self.dm_with(str(data["dm_user_id"]))
        name = data.get("channel", "general")
        return next(channel for channel in self.channels.values() if channel.get("name") == name)

    def person(self, data: Mapping[str, Any], channel: Json) -> Json:
        """Return the person who acts in a control request. Defaults to the other person in a direct chat, or to
        Alice."""
        default = channel["recipients"][0]["id"] if channel["type"] == 1 else ALICE
        user_id = str(data.get("user_id") or default)
        return self.make_user(user_id, data.get("username"), is_bot=bool(data.get("is_bot")))

    def token_ok(self, token: str) -> bool:
        token = token.removeprefix("Bot ")
        return bool(token) and (not self.only_token or token == self.only_token)

    # Payloads of gateway events

    def event_of(self, message: Json) -> Json:
        """Return a message in the form of MESSAGE_CREATE and MESSAGE_UPDATE events."""
        channel = self.channels[message["channel_id"]]
        event = {**message, "channel_type": channel["type"], **scope(channel)}
        if channel.get("guild_id") and not message.get("webhook_id"):
            event["member"] = self.member(message["author"], with_user=False)
        return event

    def reaction_of(self, message: Json, user: Json, emoji: str, method: str) -> tuple[str, Json]:
        """Return the event for a reaction that was added (`PUT`) or removed (`DELETE`), with its name."""
        channel = self.channels[message["channel_id"]]
        event: Json = {
            "user_id": user["id"],
            "channel_id": channel["id"],
            "message_id": message["id"],
            **scope(channel),
        }
        event |= {"emoji": {"id": None, "name": emoji}, "burst": False, "type": 0}
        if method == "DELETE":
            return "MESSAGE_REACTION_REMOVE", event
        if channel.get("guild_id"):
            event["member"] = self.member(user)
        return "MESSAGE_REACTION_ADD", {**event, "message_author_id": message["author"]["id"], "burst_colors": []}

    def guild_payload(self, guild_id: str) -> Json:
        """Return a server in the form of GUILD_CREATE events."""
        everyone = {
            "id": guild_id,
            "name": "@everyone",
            "permissions": ALL_PERMISSIONS,
            "position": 0,
            "color": 0,
            "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
            "hoist": False,
            "managed": False,
            "mentionable": False,
            "flags": 0,
        }
        mine = [channel for channel in self.channels.values() if channel.get("guild_id") == guild_id]
        threads = [channel for channel in mine if channel["type"] in THREADS]
        return {
            **_GUILD_FIELDS,
            **self.guilds[guild_id],
            "afk_timeout": 300,
            "roles": [everyone, *({**everyone, "id": one, "position": n} for n, one in enumerate(ROLES, 1))],
            "max_members": 500_000,
            "preferred_locale": "en-US",
            "premium_progress_bar_enabled": False,
            "joined_at": iso(),
            "large": False,
            "unavailable": False,
            "member_count": len(self.users),
            "members": [self.member(user) for user in self.users.values()],
            "channels": [channel for channel in mine if channel["type"] not in THREADS],
            "threads": [thread for thread in threads if not thread["thread_metadata"]["archived"]],
        }

    # Actions of the bot

    async def record(self, action: str, message: Json | None, **extra: Any) -> None:
        """Record an action of the bot that people can see."""
        await self.sent.add(
            action=action,
            channel_id=message and message["channel_id"],
            message_id=message and message["id"],
            text=message and message["content"],
            ephemeral=bool(message and message.get("flags", 0) & EPHEMERAL),
            attachments=[row["filename"] for row in (message or {}).get("attachments", ())],
            **extra,
        )


def check_content(data: Mapping[str, Any], *, is_edit: bool = False) -> None:
    """Raise an error for content, embeds or a nonce that Discord would reject."""
    content = data.get("content")
    if content is not None and len(content) > MAX_CONTENT:
        raise form_error(content=("BASE_TYPE_MAX_LENGTH", f"Must be {MAX_CONTENT} or fewer in length."))
    if len(str(data.get("nonce") or "")) > MAX_NONCE:
        raise form_error(nonce=("NONCE_TYPE_TOO_LONG", f"Nonce can not be longer than {MAX_NONCE} characters."))
    _check_components(data.get("components") or [])
    others = ("embeds", "attachments", "sticker_ids", "components", "poll")
    if not is_edit and not (content or "").strip() and not any(data.get(key) for key in others):
        raise RestError(50006)


def _check_components(rows: list[Json]) -> None:
    if len(rows) > 5:
        raise form_error(components=("BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length."))
    for row in rows:
        buttons = row.get("components") or []
        if not 1 <= len(buttons) <= 5:
            raise form_error(components=("BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length."))
        for button in buttons:
            if len(button.get("label") or "") > 80 or len(button.get("custom_id") or "") > 100:
                raise form_error(components=("BASE_TYPE_MAX_LENGTH", "Label up to 80, custom_id up to 100."))
