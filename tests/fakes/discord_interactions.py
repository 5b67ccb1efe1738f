"""The fake Discord's interactions: slash commands, buttons, acknowledgements and responses."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from tests.fakes.discord_gateway import Gateway
from tests.fakes.discord_state import (
    ALL_PERMISSIONS,
    EPHEMERAL,
    LOADING,
    Discord,
    RestError,
    check_content,
    iso,
    not_found,
)
from tests.fakes.labkit import Json

ACKNOWLEDGE_SECONDS = 3
TOKEN_SECONDS = 900
MESSAGE, DEFERRED_MESSAGE, DEFERRED_UPDATE, UPDATE = 4, 5, 6, 7
"""Types of interaction callbacks."""

_EMPTY: Mapping[str, Any] = {"content": "", "flags": 0}
"""Values that replace null in an edit. The value for all other fields is []."""


class Interactions:
    """Handles responses to interactions, and edits of the bot's messages."""

    def __init__(self, discord: Discord, gateway: Gateway) -> None:
        self._discord = discord
        self._gateway = gateway

    async def edit(self, message: Json, data: Mapping[str, Any], action: str = "edit") -> None:
        """Edit a message of the bot."""
        check_content(data, is_edit=True)
        previous = message["content"]
        for key in ("content", "embeds", "components", "attachments", "flags"):
            if key in data:
                message[key] = _EMPTY.get(key, []) if data[key] is None else data[key]
        message["edited_timestamp"] = iso()
        await self._discord.record(action, message, previous=previous, components=message["components"])
        if not message["flags"] & EPHEMERAL:
            await self._gateway.dispatch("MESSAGE_UPDATE", self._discord.event_of(message))

    # Acknowledgements

    async def callback(
        self, interaction_id: str, token: str, data: Mapping[str, Any], *, with_response: bool
    ) -> tuple[int, Any]:
        row = self._discord.interactions.get(interaction_id)
        if row is None or row["token"] != token or self._is_late(row):
            place = {"channel_id": row and row["channel_id"], "message_id": None, "text": None}
            await self._discord.sent.add(action="late_ack", interaction_id=interaction_id, **place)
            raise RestError(10062)
        if row["acked"]:
            raise RestError(40060)
        kind = data["type"]
        row.update(acked=True, ack_type=kind, ack_after=time.monotonic() - row["t"])
        made = await self._acknowledge(row, kind, data.get("data") or {})
        if made is not None and kind in (MESSAGE, DEFERRED_MESSAGE) and not made["flags"] & EPHEMERAL:
            await self._gateway.dispatch("MESSAGE_CREATE", self._discord.event_of(made))
        return (200, _callback_response(row, kind, made)) if with_response else (204, None)

    def _is_late(self, row: Json) -> bool:
        return not row["acked"] and time.monotonic() - row["t"] > ACKNOWLEDGE_SECONDS

    async def _acknowledge(self, row: Json, kind: int, body: Mapping[str, Any]) -> Json | None:
        discord = self._discord
        channel = discord.channels[row["channel_id"]]
        if kind == MESSAGE:
            check_content(body)
            row["original"] = discord.new_message(channel, discord.bot, {**body, "application_id": discord.app_id})
            await discord.record("interaction_reply", row["original"], interaction_id=row["id"])
        elif kind == DEFERRED_MESSAGE:
            flags = int(body.get("flags") or 0) | LOADING
            data = {"content": "", "flags": flags, "application_id": discord.app_id, "type": 20}
            row["original"] = discord.new_message(channel, discord.bot, data)
            await discord.record("interaction_defer", row["original"], interaction_id=row["id"])
        elif kind == UPDATE and row.get("message"):
            await self.edit(row["message"], body, "interaction_update")
            row["original"] = row["message"]
        elif kind == DEFERRED_UPDATE and row.get("message"):
            row["original"] = row["message"]
            return None
        else:
            place = {"channel_id": channel["id"], "message_id": None, "text": None, "data": body}
            await discord.sent.add(action=f"interaction_type_{kind}", interaction_id=row["id"], **place)
            return None
        original: Json = row["original"]
        return original

    # Responses

    async def webhook(self, method: str, parts: list[str], data: Json) -> tuple[int, Any]:
        row = self._discord.by_token.get(parts[2])
        if row is None or time.monotonic() - row["t"] > TOKEN_SECONDS:
            raise RestError(50027)
        if not row["acked"]:
            raise RestError(10015)
        if len(parts) == 3 and method == "POST":
            return 200, await self._follow_up(row, data)
        if len(parts) == 5 and parts[3] == "messages":
            return await self._answer(method, row, parts[4], data)
        raise not_found()

    async def _follow_up(self, row: Json, data: Json) -> Json:
        discord = self._discord
        check_content(data)
        original: Json | None = row.get("original")
        if original and original["flags"] & LOADING and not original["content"]:
            original["flags"] &= ~LOADING  # the first follow-up fills the deferred message
            await self.edit(original, data, "interaction_followup")
            return original
        more = {"application_id": discord.app_id, "webhook_id": discord.app_id}
        made = discord.new_message(discord.channels[row["channel_id"]], discord.bot, {**data, **more})
        row.setdefault("followups", {})[made["id"]] = made
        await discord.record("interaction_followup", made, interaction_id=row["id"])
        if not made["flags"] & EPHEMERAL:
            await self._gateway.dispatch("MESSAGE_CREATE", discord.event_of(made))
        return made

    async def _answer(self, method: str, row: Json, name: str, data: Json) -> tuple[int, Any]:
        message = self._find(row, name)
        if method == "GET":
            return 200, message
        message["flags"] &= ~LOADING
        await self.edit(message, data, "interaction_edit")
        return 200, message

    def _find(self, row: Json, name: str) -> Json:
        original: Json | None = row.get("original")
        if original is not None and name in ("@original", original["id"]):
            return original
        kept = self._discord.messages[row["channel_id"]]
        found: Json | None = row.get("followups", {}).get(name) or kept.get(name)
        if found is None:
            raise RestError(10008)
        return found

    # Control API: a person uses a command or presses a button

    async def make(self, data: Mapping[str, Any]) -> Json:
        """Send INTERACTION_CREATE, and return the event for a replay. See `interaction` in the control API."""
        discord = self._discord
        channel = discord.place(data)
        user = discord.person(data, channel)
        guild_id = channel.get("guild_id")
        interaction_id, token = discord.flake(), f"labtoken{secrets.token_hex(16)}"
        payload: Json = {
            "id": interaction_id,
            "application_id": discord.app_id,
            "token": token,
            "version": 1,
            "channel_id": channel["id"],
            "channel": channel,
            "locale": "en-US",
            "entitlements": [],
            "app_permissions": ALL_PERMISSIONS,
            "attachment_size_limit": 10_485_760,
            "authorizing_integration_owners": {"0": guild_id or "0"},
            "context": 0 if guild_id else 1,
        }
        if guild_id:
            payload["guild_id"] = guild_id
            payload["guild"] = {"id": guild_id, "features": [], "locale": "en-US"}
            payload["guild_locale"] = "en-US"
            payload["member"] = {**discord.member(user), "permissions": ALL_PERMISSIONS}
        else:
            payload["user"] = user
        row: Json = {"id": interaction_id, "token": token, "acked": False, "channel_id": channel["id"]}
        if data.get("custom_id"):
            name = str(data["message_id"])
            row["message"] = discord.private.get(name) or discord.messages[channel["id"]][name]
            payload |= {"type": 3, "message": row["message"]}
            payload["data"] = {"custom_id": data["custom_id"], "component_type": 2}
        else:
            kind = 4 if data.get("autocomplete") else 2
            payload |= {"type": kind, "data": self._pick(data, guild_id or "")}
        row |= {"type": payload["type"], "t": time.monotonic()}
        discord.interactions[interaction_id] = discord.by_token[token] = row
        await self._gateway.dispatch("INTERACTION_CREATE", payload)
        return {"interaction_id": interaction_id, "channel_id": channel["id"], "event": payload}

    def _pick(self, data: Mapping[str, Any], guild_id: str) -> Json:
        """Return the `data` of a slash command. Subcommands are additional words in the name."""
        first, *rest = data["name"].split()
        registered = [row for place in (guild_id, "") for row in self._discord.commands.get(place, [])]
        command = next((row for row in registered if row["name"] == first), None)
        if command is None:
            if not data.get("force"):
                names = [row["name"] for row in registered]
                raise RestError(0, 404, f"command {first!r} is not registered; registered: {names}")
            command = {"id": self._discord.flake(), "name": first, "type": 1, "options": []}
        level, path = command.get("options") or [], []
        for word in rest:
            path.append(next(option for option in level if option["name"] == word))
            level = path[-1].get("options") or []
        options = _options(data.get("options") or {}, level)
        for node in reversed(path):
            options = [{"name": node["name"], "type": node["type"], "options": options}]
        made = {"id": command["id"], "name": command["name"], "type": command.get("type", 1), "options": options}
        return {**made, "guild_id": command["guild_id"]} if command.get("guild_id") else made


def _options(given: Any, known: list[Json]) -> list[Json]:
    types = {option["name"]: option["type"] for option in known}
    if isinstance(given, dict):
        given = [{"name": name, "type": types.get(name, 3), "value": value} for name, value in given.items()]
    names = {option["name"] for option in given}
    missing = [option["name"] for option in known if option.get("required") and option["name"] not in names]
    if missing:
        raise RestError(0, 400, f"required options missing: {missing}")
    return list(given)


def _callback_response(row: Json, kind: int, made: Json | None) -> Json:
    interaction = {
        "id": row["id"],
        "type": row["type"],
        "activity_instance_id": None,
        "response_message_id": made["id"] if made else None,
        "response_message_loading": kind == DEFERRED_MESSAGE,
        "response_message_ephemeral": bool(made and made["flags"] & EPHEMERAL),
    }
    answer: Json = {"interaction": interaction}
    if made:
        answer["resource"] = {"type": kind, "message": made}
    return answer
