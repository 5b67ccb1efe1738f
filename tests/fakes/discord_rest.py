"""The fake Discord's REST routes: users, servers, channels, messages and application commands."""

import json
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import BodyPartReader, web

from tests.fakes.discord_gateway import Gateway
from tests.fakes.discord_interactions import Interactions
from tests.fakes.discord_state import (
    ALICE,
    THREADS,
    Discord,
    RestError,
    check_content,
    form_error,
    iso,
    member,
    not_found,
    scope,
)
from tests.fakes.labkit import Json

Answer = tuple[int, Any]
"""Status and JSON body. The body is None if the response is empty."""

MAX_COMMANDS = 100
PAGE = 100


async def read_form(discord: Discord, request: web.Request) -> Any:  # Any: JSON
    """Return the body of a request. Uploaded files are already stored as attachments."""
    if request.content_type != "multipart/form-data":
        raw = await request.read()
        try:
            return json.loads(raw) if raw else {}
        except ValueError:
            raise RestError(50109) from None
    data: Json = {}
    blobs: dict[int, tuple[str, str, bytes]] = {}
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        content = bytes(await part.read(decode=False))
        if part.name == "payload_json":
            data = json.loads(content)
        elif found := re.match(r"files\[(\d+)\]", part.name or ""):
            mime = part.headers.get("Content-Type", "application/octet-stream")
            blobs[int(found[1])] = (part.filename or "file", mime, content)
    inner = data.get("data", data)
    listed = {str(row.get("id")): row for row in inner.get("attachments") or []}
    inner["attachments"] = [discord.attach(blob, listed.get(str(n), {})) for n, blob in sorted(blobs.items())]
    return data


class Rest:
    """Serves `/api/v10`. Each route returns a status and a body, or raises `RestError`."""

    def __init__(self, discord: Discord, gateway: Gateway) -> None:
        self._discord = discord
        self._gateway = gateway
        self.interactions = Interactions(discord, gateway)

    async def serve(self, request: web.Request, path: str) -> Answer:
        method = request.method
        parts = path.strip("/").split("/")
        if (fixed := await self._fixed(method, path, request)) is not None:
            return fixed
        if found := re.fullmatch(r"/users/(\d+)", path):
            if found[1] not in self._discord.users:
                raise RestError(10013)
            return 200, self._discord.users[found[1]]
        if found := re.fullmatch(r"/applications/(\d+)(?:/guilds/(\d+))?/commands(?:/(\d+))?", path):
            data = await read_form(self._discord, request)
            return await self._commands(method, found[2] or "", found[3], data)
        if found := re.fullmatch(r"/guilds/(\d+)(/.*)?", path):
            return self._guild(found[1], found[2] or "", request.query)
        if found := re.fullmatch(r"/channels/(\d+)(/.*)?", path):
            data = await read_form(self._discord, request)
            return await self._channel(method, found[1], found[2] or "", request.query, data)
        if found := re.fullmatch(r"/interactions/(\d+)/([^/]+)/callback", path):
            with_response = request.query.get("with_response") in ("1", "true")
            data = await read_form(self._discord, request)
            return await self.interactions.callback(found[1], found[2], data, with_response=with_response)
        if parts[0] == "webhooks" and len(parts) >= 3:
            return await self.interactions.webhook(method, parts, await read_form(self._discord, request))
        raise not_found()

    async def _fixed(self, method: str, path: str, request: web.Request) -> Answer | None:
        discord = self._discord
        gateway_url = discord.base.replace("http", "ws", 1) + "/gateway"
        match path:
            case "/gateway":
                return 200, {"url": gateway_url}
            case "/gateway/bot":
                start = {"total": 1000, "remaining": 999, "reset_after": 14_400_000, "max_concurrency": 1}
                return 200, {"url": gateway_url, "shards": 1, "session_start_limit": start}
            case "/users/@me":
                if method == "PATCH":
                    data = await read_form(discord, request)
                    discord.bot.update({key: data[key] for key in ("username",) if key in data})
                return 200, {**discord.bot, "verified": True, "mfa_enabled": False, "locale": "en-US", "email": None}
            case "/oauth2/applications/@me" | "/applications/@me":
                return 200, self._application()
            case "/users/@me/guilds":
                extra: Json = {"icon": None, "owner": False, "permissions": "0", "features": []}
                return 200, [{"id": row["id"], "name": row["name"], **extra} for row in discord.guilds.values()]
            case "/users/@me/channels" if method == "POST":
                user_id = str((await read_form(discord, request))["recipient_id"])
                if user_id not in discord.users:
                    raise RestError(50033)
                return 200, discord.dm_with(user_id)
        return None

    def _application(self) -> Json:
        return {
            "id": self._discord.app_id,
            "name": "Lab Gateway",
            "icon": None,
            "description": "",
            "summary": "",
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "0" * 64,
            "flags": 1 << 18 | 1 << 19,
            "team": None,
            "owner": self._discord.users[ALICE],
            "bot": self._discord.bot,
            "redirect_uris": [],
            "tags": [],
            "hook": True,
        }

    def _guild(self, guild_id: str, rest: str, query: Mapping[str, str]) -> Answer:
        if guild_id not in self._discord.guilds:
            raise RestError(10004)
        full = self._discord.guild_payload(guild_id)
        if rest.startswith("/members/search"):
            prefix = query.get("query", "")
            return 200, [row for row in full["members"] if row["user"]["username"].startswith(prefix)]
        if found := re.fullmatch(r"/members/(\d+|@me)", rest):
            user_id = self._discord.bot["id"] if found[1] == "@me" else found[1]
            if user_id not in self._discord.users:
                raise RestError(10007)
            return 200, member(self._discord.users[user_id])
        match rest:
            case "":
                return 200, full
            case "/channels" | "/roles" | "/members":
                return 200, full[rest[1:]]
            case "/threads/active":
                return 200, {"threads": full["threads"], "members": [row["member"] for row in full["threads"]]}
        raise not_found()

    # Channels and messages

    async def _channel(self, method: str, channel_id: str, rest: str, query: Mapping[str, str], data: Any) -> Answer:
        channel = self._discord.channel(channel_id)
        if rest == "":
            return await self._change_channel(channel, data) if method == "PATCH" else (200, channel)
        if rest == "/typing" and method == "POST":
            await self._discord.sent.add(action="typing", channel_id=channel_id, message_id=None, text=None)
            return 204, None
        if rest == "/messages":
            if method == "GET":
                return 200, self._history(channel_id, query)
            return 200, await self._send(channel, data)
        if rest == "/messages/bulk-delete" and method == "POST":
            for message_id in data["messages"]:
                self._discord.messages[channel_id].pop(str(message_id), None)
            return 204, None
        if found := re.fullmatch(r"/messages/(\d+)", rest):
            return await self._message(method, channel, found[1], data)
        if found := re.fullmatch(r"/messages/(\d+)/reactions/([^/]+)(?:/(@me|\d+))?", rest):
            message = self._discord.message(channel_id, found[1])
            action = "react" if method == "PUT" else "unreact"
            await self._discord.sent.add(action=action, channel_id=channel_id, message_id=message["id"], text=found[2])
            return 204, None
        if (found := re.fullmatch(r"/messages/(\d+)/threads", rest)) or rest == "/threads":
            return await self._start_thread(channel, found[1] if found else None, data)
        if rest.startswith("/thread-members"):
            return (204, None) if method in ("PUT", "DELETE") else (200, [])
        if rest.startswith(("/pins", "/messages/pins")):
            empty: Any = {"items": [], "has_more": False} if "messages" in rest else []
            return (204, None) if method in ("PUT", "DELETE") else (200, empty)
        raise not_found()

    async def _change_channel(self, channel: Json, data: Json) -> Answer:
        channel.update({key: data[key] for key in ("name", "topic") if key in data})
        if "thread_metadata" in channel:
            keys = ("archived", "locked", "auto_archive_duration")
            channel["thread_metadata"].update({key: data[key] for key in keys if key in data})
        event = "THREAD_UPDATE" if channel["type"] in THREADS else "CHANNEL_UPDATE"
        await self._gateway.dispatch(event, channel)
        return 200, channel

    def _history(self, channel_id: str, query: Mapping[str, str]) -> list[Json]:
        """Return messages newest first, as Discord does for every query."""
        limit = min(PAGE, int(query.get("limit", 50)))
        rows = sorted(self._discord.messages[channel_id].values(), key=lambda row: int(row["id"]))
        if after := query.get("after"):
            rows = [row for row in rows if int(row["id"]) > int(after)][:limit]
        elif before := query.get("before"):
            rows = [row for row in rows if int(row["id"]) < int(before)][-limit:]
        elif around := query.get("around"):
            near = sorted(rows, key=lambda row: abs(int(row["id"]) - int(around)))[:limit]
            rows = sorted(near, key=lambda row: int(row["id"]))
        else:
            rows = rows[-limit:]
        return rows[::-1]

    async def _send(self, channel: Json, data: Json) -> Json:
        discord = self._discord
        check_content(data)
        self._check_may_send(channel)
        nonce = str(data.get("nonce") or "")
        if nonce and data.get("enforce_nonce") and (earlier := discord.sent_before(channel["id"], nonce)):
            await discord.record("nonce_duplicate", earlier, nonce=nonce)
            return earlier
        made = discord.new_message(channel, discord.bot, data)
        if nonce:
            discord.remember_nonce(channel["id"], nonce, made["id"])
        await discord.record(
            "send",
            made,
            nonce=nonce or None,
            reply_to=(made.get("message_reference") or {}).get("message_id"),
            embeds=made["embeds"],
            attachments=[row["filename"] for row in made["attachments"]],
            components=made["components"],
            allowed_mentions=data.get("allowed_mentions"),
        )
        await self._gateway.dispatch("MESSAGE_CREATE", discord.event_of(made))
        return made

    def _check_may_send(self, channel: Json) -> None:
        closed = {str(user_id) for user_id in self._discord.config["dm_closed"]}
        if channel["type"] == 1 and channel["recipients"][0]["id"] in closed:
            raise RestError(50007)
        if channel.get("deny_send"):
            raise RestError(50013)
        if channel["type"] in THREADS and channel["thread_metadata"]["archived"]:
            if channel["thread_metadata"]["locked"]:
                raise RestError(50083)
            channel["thread_metadata"]["archived"] = False

    async def _message(self, method: str, channel: Json, message_id: str, data: Json) -> Answer:
        discord = self._discord
        message = discord.message(channel["id"], message_id)
        if method == "GET":
            return 200, message
        if method == "DELETE":
            del discord.messages[channel["id"]][message_id]
            await discord.record("delete", message)
            gone = {"id": message_id, "channel_id": channel["id"], **scope(channel)}
            await self._gateway.dispatch("MESSAGE_DELETE", gone)
            return 204, None
        if message["author"]["id"] != discord.bot["id"]:
            raise RestError(50005)
        await self.interactions.edit(message, data)
        return 200, message

    async def _start_thread(self, channel: Json, message_id: str | None, data: Json) -> Answer:
        if not 1 <= len(data.get("name", "")) <= 100:
            raise form_error(name=("BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length."))
        if message_id:
            self._discord.message(channel["id"], message_id)
            if message_id in self._discord.channels:
                raise RestError(160004)
        owner, kind = self._discord.bot["id"], data.get("type", 11)
        thread = self._discord.make_thread(channel, data["name"], owner, message_id, kind)
        row = {"channel_id": channel["id"], "message_id": message_id, "text": data["name"], "thread_id": thread["id"]}
        await self._discord.sent.add(action="thread", **row)
        await self._gateway.dispatch("THREAD_CREATE", {**thread, "newly_created": True})
        return 201, thread

    # Application commands

    async def _commands(self, method: str, guild_id: str, command_id: str | None, data: Any) -> Answer:
        rows = self._discord.commands.setdefault(guild_id, [])
        found = next((row for row in rows if row["id"] == command_id), None)
        if command_id and found is None:
            raise RestError(10063)
        if method == "GET":
            return 200, found or rows
        place = guild_id or None
        if method == "DELETE":
            self._discord.commands[guild_id] = [row for row in rows if row is not found]
            await self._discord.record("commands", None, guild_id=place, method=method, names=[])
            return 204, None
        if method == "PATCH" and found is not None:
            found.update(data, version=self._discord.flake())
            await self._discord.record("commands", None, guild_id=place, method=method, names=[found["name"]])
            return 200, found
        made = self._new_commands(rows, guild_id, data)
        names = [(row["name"], row["type"]) for row in made]
        await self._discord.record("commands", None, guild_id=place, method=method, names=[name for name, _ in names])
        if method == "PUT":
            self._discord.commands[guild_id] = made
            return 200, made
        kept = [row for row in rows if (row["name"], row["type"]) not in names]
        self._discord.commands[guild_id] = kept + made
        return 201, made[0]

    def _new_commands(self, rows: list[Json], guild_id: str, data: Any) -> list[Json]:
        incoming = data if isinstance(data, list) else [data]
        if sum(row.get("type", 1) == 1 for row in incoming) > MAX_COMMANDS:
            raise RestError(30032)
        made = []
        for number, row in enumerate(incoming):
            if errors := _command_errors(row):
                raise RestError(50035, errors={str(number): errors} if isinstance(data, list) else errors)
            same = (old for old in rows if (old["name"], old["type"]) == (row["name"], row.get("type", 1)))
            old = next(same, None)
            made.append(
                {
                    "id": old["id"] if old else self._discord.flake(),
                    "application_id": self._discord.app_id,
                    "version": self._discord.flake(),
                    "type": 1,
                    "default_member_permissions": None,
                    "nsfw": False,
                    "description": "",
                    **row,
                    **({"guild_id": guild_id} if guild_id else {}),
                }
            )
        if len({(row["name"], row["type"]) for row in made}) != len(made):
            text = "Application command names must be unique"
            raise RestError(
                50035, errors={"_errors": [{"code": "APPLICATION_COMMANDS_DUPLICATE_NAME", "message": text}]}
            )
        return made


def _command_errors(row: Json) -> Json:
    if row.get("type", 1) != 1:
        return {}
    errors: Json = {}
    if not re.fullmatch(r"[-_'\w]{1,32}", row.get("name", "")) or row["name"] != row["name"].lower():
        text = "Command name is invalid"
        errors["name"] = {"_errors": [{"code": "APPLICATION_COMMAND_INVALID_NAME", "message": text}]}
    for named in [row, *(row.get("options") or [])]:
        if not 1 <= len(named.get("description", "")) <= 100:
            text = "Must be between 1 and 100 in length."
            errors["description"] = {"_errors": [{"code": "BASE_TYPE_BAD_LENGTH", "message": text}]}
    return errors


def edited_at(message: Json, content: str) -> None:
    """Edit a message as a person would."""
    message["content"], message["edited_timestamp"] = content, iso()
