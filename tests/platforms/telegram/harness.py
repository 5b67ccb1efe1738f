"""The fake Bot API with a person at the other end, for the contract suite and the Telegram tests."""

import base64
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from pydantic import SecretStr

from hermes_state.aio import Backoff
from hermes_state.values import ChatKey, SystemClock
from platforms.base import MenuCommand
from platforms.telegram import TelegramAdapter, TelegramSettings, WebhookSettings
from tests.databases import open_store
from tests.fakes import fake_telegram, labkit
from tests.platforms.contract import AdapterHarness, Trouble

TOKEN = "123456:LABTOKEN"
BOT_NAME = "lab_gateway_bot"
PERSON = 42
GROUP = -1001

_FAULTS: dict[Trouble, dict[str, Any]] = {
    "refused": {"kind": "status", "status": 409},
    "answer_lost": {"kind": "reset_after"},
    "flood": {"kind": "429", "retry_after": 7},
    "blocked": {"kind": "status", "status": 403},
    "rejected": {"kind": "status", "status": 400, "description": "Bad Request: can't parse entities"},
}


def quick_settings(**changes: Any) -> TelegramSettings:
    """Return settings with timeouts of tenths of a second."""
    defaults: dict[str, Any] = {
        "token": SecretStr(TOKEN),
        "poll_seconds": 0.5,
        "poll_grace_seconds": 0.5,
        "stall_seconds": 1.5,
        "webhook_check_seconds": 0.2,
        "backoff": Backoff(0.05, 0.2),
        "conflict_seconds": 0.2,
        "connect_seconds": 2,
        "request_seconds": 2,
    }
    return TelegramSettings(**{**defaults, **changes})


def free_port() -> int:
    """Return a port for a webhook server, whose number must be known before it starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TelegramHarness(AdapterHarness):
    """A fake Bot API server, a database, and an adapter between them."""

    def __init__(
        self,
        path: Path,
        *,
        menu: Sequence[MenuCommand] = (),
        webhook: WebhookSettings | None = None,
        token: str = "",
        account: str = "telegram",
        **changes: Any,
    ) -> None:
        self._path = path
        self._account = account
        self._menu = menu
        self._changes = {**changes, "webhook": webhook or WebhookSettings(), "account": account}
        self.app = fake_telegram.make_app(token=token, username=BOT_NAME)
        self.server = labkit.Server(self.app)
        self.direct_chat = ChatKey(platform="telegram", account=account, chat_ref=str(PERSON))
        self.person_id = str(PERSON)

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.control = aiohttp.ClientSession(base_url=self.server.url)
        self.store = await open_store(self._path / "state.db")
        self.adapter = self.another_adapter()
        await self.post("chat", {"chat_id": PERSON, "first_name": "Ada"})
        await self.post("chat", {"chat_id": GROUP, "title": "Friends"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.store.close()
        await self.control.close()
        await self.server.stop()

    def another_adapter(self, **changes: Any) -> TelegramAdapter:
        settings = quick_settings(**{"base_url": self.server.url, **self._changes, **changes})
        return TelegramAdapter(settings, store=self.store, menu=self._menu, clock=SystemClock())

    # The fake's control API

    async def post(self, path: str, data: object = None) -> Any:  # Any: JSON
        async with self.control.post(f"/_ctl/{path}", json=data if data is not None else {}) as response:
            return await response.json()

    async def get(self, path: str, **query: object) -> Any:  # Any: JSON
        async with self.control.get(
            f"/_ctl/{path}", params={key: str(value) for key, value in query.items()}
        ) as response:
            return await response.json()

    async def message(self, **data: Any) -> dict[str, Any]:
        """Write as a person, and return the message as the Bot API shows it."""
        injected = await self.post("message", {"chat_id": PERSON, **data})
        message: dict[str, Any] = injected["message"]
        return message

    async def fault(self, **rule: Any) -> None:
        await self.post("faults", rule)

    async def sent(self, method: str = ".*", **query: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.get("sent", method=method, **query)
        return rows

    async def calls(self, method: str, **query: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.get("calls", method=method, **query)
        return rows

    # The person

    async def write(self, text: str) -> str:
        return str((await self.message(text=text))["message_id"])

    async def visible(self, chat: ChatKey) -> list[str]:
        rows = (await self.get(f"chat/{chat.chat_ref}"))["messages"]
        return [row["text"] for row in rows if row["from"]["is_bot"] and "text" in row]

    def group_chat(self) -> ChatKey:
        return ChatKey(platform="telegram", account=self._account, chat_ref=str(GROUP))

    async def write_in_group(self, text: str, *, is_mention: bool) -> str:
        spoken = f"@{BOT_NAME} {text}" if is_mention else text
        return str((await self.message(chat_id=GROUP, user_id=PERSON, text=spoken))["message_id"])

    async def edit(self, message_ref: str, text: str) -> None:
        await self.post("edit", {"chat_id": PERSON, "message_id": int(message_ref), "text": text})

    async def reply(self, message_ref: str, text: str) -> str:
        return str((await self.message(text=text, reply_to=int(message_ref)))["message_id"])

    async def press(self, label: str) -> None:
        await self.post("callback", {"chat_id": PERSON, "user_id": PERSON, "button": label})

    async def write_with_file(self, name: str, content: bytes) -> str:
        data = {"media": "document", "file_name": name, "file_b64": base64.b64encode(content).decode()}
        return str((await self.message(**data))["message_id"])

    async def break_next_send(self, trouble: Trouble) -> None:
        await self.fault(match="sendMessage$", **_FAULTS[trouble])
