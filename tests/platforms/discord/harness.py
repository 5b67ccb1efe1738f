"""The fake Discord with a person at the other end, for the contract suite and the Discord tests."""

import base64
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from pydantic import SecretStr

from hermes_state.values import ChatKey, Clock, SystemClock
from platforms.base import MenuCommand
from platforms.discord import DiscordAdapter, DiscordSettings
from tests.databases import open_store
from tests.fakes import fake_discord, labkit
from tests.platforms.contract import AdapterHarness, Trouble

TOKEN = "lab.discord.token"
BOT = "900000000000000001"
ALICE = "100000000000000001"
BOB = "100000000000000002"
GENERAL = "300000000000000001"

_FAULTS: dict[Trouble, dict[str, Any]] = {
    "refused": {"kind": "status", "status": 503},
    "answer_lost": {"kind": "reset_after"},
    "flood": {"kind": "429", "retry_after": 30},
    "blocked": {"kind": "status", "status": 403, "code": 50007},
    "rejected": {"kind": "status", "status": 400, "code": 50035},
}


def chat(channel_ref: str, account: str = "discord") -> ChatKey:
    return ChatKey(platform="discord", account=account, chat_ref=channel_ref)


class DiscordHarness(AdapterHarness):
    """A fake Discord, a database, and an adapter between them."""

    person_id = ALICE

    def __init__(self, path: Path, *, menu: Sequence[MenuCommand] = (), token: str = "", **changes: Any) -> None:
        self._path = path
        self._menu = menu
        self._changes = changes
        self.app = fake_discord.make_app(token=token, heartbeat_ms=1000)
        self.server = labkit.Server(self.app)

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.control = aiohttp.ClientSession(base_url=self.server.url)
        self.store = await open_store(self._path / "state.db")
        self.adapter = self.another_adapter()
        self.discord = self.app[fake_discord.DISCORD]
        self.direct_chat = chat(self.discord.dm_with(ALICE)["id"], self.adapter.name)
        await self.post("config", {"rate_limits": False})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.store.close()
        await self.control.close()
        await self.server.stop()

    def another_adapter(
        self, *, menu: Sequence[MenuCommand] | None = None, clock: Clock | None = None, **changes: Any
    ) -> DiscordAdapter:
        defaults: dict[str, Any] = {
            "token": SecretStr(TOKEN),
            "api_url": self.server.url,
            "gateway_url": f"{self.server.url.replace('http', 'ws', 1)}/gateway",
            "request_seconds": 15.0,
        }
        settings = DiscordSettings(**{**defaults, **self._changes, **changes})
        menu = self._menu if menu is None else menu
        return DiscordAdapter(settings, store=self.store, menu=menu, clock=clock or SystemClock())

    # The fake's control API

    async def post(self, path: str, data: object = None) -> Any:  # Any: JSON
        async with self.control.post(f"/_ctl/{path}", json=data if data is not None else {}) as response:
            return await response.json()

    async def get(self, path: str, **query: object) -> Any:  # Any: JSON
        params = {key: str(value) for key, value in query.items()}
        async with self.control.get(f"/_ctl/{path}", params=params) as response:
            return await response.json()

    async def message(self, content: str, **data: Any) -> str:
        """Write as a person, by default in the direct chat, and return the (last) message's id."""
        place = data if {"channel", "channel_id"} & data.keys() else {"dm_user_id": ALICE, **data}
        injected = await self.post("message", {"content": content, **place})
        last = injected[-1] if isinstance(injected, list) else injected
        return str(last["message"]["id"])

    async def fault(self, **rule: Any) -> None:
        await self.post("faults", rule)

    async def sent(self, action: str = ".*", **query: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.get("sent", action=action, **query)
        return rows

    async def calls(self, match: str, **query: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.get("calls", match=match, **query)
        return rows

    # The person

    async def write(self, text: str) -> str:
        return await self.message(text)

    async def visible(self, chat: ChatKey) -> list[str]:
        rows = await self.get("messages", channel_id=chat.chat_ref)
        return [row["content"] for row in rows if row["author"]["id"] == BOT]

    def group_chat(self) -> ChatKey:
        return chat(GENERAL, self.adapter.name)

    async def write_in_group(self, text: str, *, is_mention: bool) -> str:
        return await self.message(text, channel="general", user_id=ALICE, mention=is_mention)

    async def edit(self, message_ref: str, text: str) -> None:
        change = {"channel_id": self.direct_chat.chat_ref, "message_id": message_ref, "content": text}
        await self.post("edit", change)

    async def delete(self, message_ref: str) -> None:
        await self.post("delete", {"channel_id": self.direct_chat.chat_ref, "message_id": message_ref})

    async def reply(self, message_ref: str, text: str) -> str:
        return await self.message(text, reply_to=message_ref)

    async def press(self, label: str) -> None:
        rows = await self.get("messages", channel_id=self.direct_chat.chat_ref)
        message = [row for row in rows if row["components"]][-1]
        buttons = [button for line in message["components"] for button in line["components"]]
        [custom_id] = [button["custom_id"] for button in buttons if button["label"] == label]
        pressed = {"dm_user_id": ALICE, "custom_id": custom_id, "message_id": message["id"]}
        await self.post("interaction", pressed)

    async def write_with_file(self, name: str, content: bytes) -> str:
        file = {"filename": name, "b64": base64.b64encode(content).decode()}
        return await self.message("", files=[file])

    async def break_next_send(self, trouble: Trouble) -> None:
        await self.fault(match=f"POST /channels/{self.direct_chat.chat_ref}/messages", **_FAULTS[trouble])
