"""The fake Discord's REST routes: users, servers, channels, messages and application commands."""

import json
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import BodyPartReader, web

from tests.fakes.discord_gateway import Gateway
from tests.fakes.discord_interactions import Interactions
from tests.fakes.discord_state import ALICE, THREADS, Discord, RestError, check_content, iso, not_found, scope
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
        if (fixed := self._fixed(path)) is not None:
            return fixed
        if re.fullmatch(r"/applications/\d+/commands", path):
            return await self._commands(method, await read_form(self._discord, request))
        if (method, path) == ("POST", "/users/@me/channels"):
            return 200, self._discord.dm_with(str((await read_form(self._discord, request))["recipient_id"]))
        if found := re.fullmatch(r"/channels/(\d+)(/.*)?", path):
            data = await read_form(self._discord, request)
            return await self._channel(method, found[1], found[2] or "", request.query, data)
        if found := re.fullmatch(r"/guilds/(\d+)/members/(\d+)", path):
            if found[2] not in self._discord.users or self._discord.roles.get(found[2], []) is None:
                raise RestError(10007)
            return 200, self._discord.member(self._discord.users[found[2]])
        if found := re.fullmatch(r"/interactions/(\d+)/([^/]+)/callback", path):
            with_response = request.query.get("with_response") in ("1", "true")
            data = await read_form(self._discord, request)
            return await self.interactions.callback(found[1], found[2], data, with_response=with_response)
        if parts[0] == "webhooks" and len(parts) >= 3:
            return await self.interactions.webhook(method, parts, await read_form(self._discord, request))
        raise not_found()

    def _fixed(self, path: str) -> Answer | None:
        discord = self._discord
        gateway_url = discord.base.replace("http", "ws", 1) + "/gateway"
        match path:
            case "/gateway":
                return 200, {"url": gateway_url}
            case "/gateway/bot":
                start = {"total": 1000, "remaining": 999, "reset_after": 14_400_000, "max_concurrency": 1}
                return 200, {"url": gateway_url, "shards": 1, "session_start_limit": start}
            case "/users/@me":
                return 200, {**discord.bot, "verified": True, "mfa_enabled": False, "locale": "en-US", "email": None}
            case "/oauth2/applications/@me" | "/applications/@me":
                return 200, self._application()
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

    # Channels and messages

    async def _channel(self, method: str, channel_id: str, rest: str, query: Mapping[str, str], data: Any) -> Answer:
        channel = self._discord.channel(channel_id)
        if rest == "":
            return 200, channel
        if rest == "/typing" and method == "POST":
            await self._discord.sent.add(action="typing", channel_id=channel_id, message_id=None, text=None)
            return 204, None
        if rest == "/messages":
            if method == "GET":
                return 200, self._history(channel_id, query)
            return 200, await self._send(channel, data)
        if (found := re.fullmatch(r"/messages/(\d+)/reactions/([^/]+)/@me", rest)) and method in ("PUT", "DELETE"):
            if channel.get("deny_reactions"):
                raise RestError(50013)
            if found[2].isascii():
                raise RestError(10014)
            message = self._discord.message(channel_id, found[1])
            done = {"action": "react" if method == "PUT" else "unreact", "emoji": found[2], "text": None}
            await self._discord.sent.add(**done, channel_id=channel_id, message_id=found[1])
            await self._gateway.dispatch(*self._discord.reaction_of(message, self._discord.bot, found[2], method))
            return 204, None
        if found := re.fullmatch(r"/messages/(\d+)", rest):
            return await self._message(method, channel, found[1], data)
        raise not_found()

    def _history(self, channel_id: str, query: Mapping[str, str]) -> list[Json]:
        """Return messages newest first, as Discord does for every query."""
        limit = min(PAGE, int(query.get("limit", 50)))
        rows = sorted(self._discord.messages[channel_id].values(), key=lambda row: int(row["id"]))
        if after := query.get("after"):
            rows = [row for row in rows if int(row["id"]) > int(after)][:limit]
        elif before := query.get("before"):
            rows = [row for row in rows if int(row["id"]) < int(before)][-limit:]
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
            components=made["components"],
            allowed_mentions=data.get("allowed_mentions"),
        )
        await self._gateway.dispatch("MESSAGE_CREATE", discord.event_of(made))
        return made

    def _check_may_send(self, channel: Json) -> None:
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

    # Application commands

    async def _commands(self, method: str, data: Any) -> Answer:
        rows = self._discord.commands.setdefault("", [])
        if method == "GET":
            return 200, rows
        if method != "PUT":
            raise not_found()
        self._discord.commands[""] = made = self._new_commands(rows, data)
        await self._discord.record("commands", None, guild_id=None, method=method, names=[row["name"] for row in made])
        return 200, made

    def _new_commands(self, rows: list[Json], incoming: list[Json]) -> list[Json]:
        if sum(row.get("type", 1) == 1 for row in incoming) > MAX_COMMANDS:
            raise RestError(30032)
        made = []
        for number, row in enumerate(incoming):
            if errors := _command_errors(row):
                raise RestError(50035, errors={str(number): errors})
            old = next((one for one in rows if (one["name"], one["type"]) == (row["name"], row.get("type", 1))), None)
            own = {"id": old["id"] if old else self._discord.flake(), "application_id": self._discord.app_id}
            usual = {"version": self._discord.flake(), "type": 1, "default_member_permissions": None, "nsfw": False}
            made.append({**own, **usual, "description": "", **row})
        if len({(row["name"], row["type"]) for row in made}) != len(made):
            text = "Application command names must be unique"
            errors = {"_errors": [{"code": "APPLICATION_COMMANDS_DUPLICATE_NAME", "message": text}]}
            raise RestError(50035, errors=errors)
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
