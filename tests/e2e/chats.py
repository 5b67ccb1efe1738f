"""A person's chat on any platform, for tests of promises that hold on every platform."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_compression import Page, page_of
from tests.e2e.world import World, world_in

T = TypeVar("T")
PLATFORMS = ("telegram", "discord", "web")
only_web = pytest.mark.parametrize("chat", ["web"], indirect=True)
on_discord_and_web = pytest.mark.parametrize("chat", ["discord", "web"], indirect=True)


def share_of(platform: str, cases: Iterable[T]) -> list[T]:
    """Return every third case, so that the tests on all platforms together run each case once."""
    return list(islice(cases, PLATFORMS.index(platform), None, len(PLATFORMS)))


class Chat:
    """A person who writes to the gateway, and everything that the gateway shows to this person."""

    def __init__(self, world: World, platform: str, stack: AsyncExitStack) -> None:
        self.world = world
        self.person = {"telegram": "telegram:42", "discord": f"discord:{discord.ALICE}", "web": "local:owner"}[platform]
        self.platform = platform
        self._stack = stack
        self.page: Page
        """Web chat of the gateway, if it is enabled."""
        self._channel = ""
        self._pages: list[str] = []

    async def start(self, **changes: str) -> None:
        if self.platform == "discord":
            await discord.ready(self.world, **changes)
        else:
            await self.world.gateway.start(**changes)
        if self.world.gateway.environ["HERMES_LOCAL__ENABLED"] == "true":
            self.page = await self._stack.enter_async_context(page_of(self.world))

    async def ask(self, text: str, match: str) -> str:
        """Send `text`, and return the newest later message that matches."""
        if self.platform == "web":
            return await self._ask_page(text, match)
        query = {"match": match, **({"method": "sendMessage|editMessageText"} if self.platform == "telegram" else {})}
        server = self.world.tg if self.platform == "telegram" else self.world.dc
        count = len(await server.get("sent", **query))
        if self.platform == "telegram":
            await self.world.say(text)
        else:
            self._channel = (await discord.say(self.world, text))["channel_id"]
        found = await server.get("sent", **query, count=count + 1, wait=20)
        assert len(found) > count, f"nothing like {match!r}"
        return str(found[-1]["text"])

    async def _ask_page(self, text: str, match: str) -> str:
        known = {ref for ref, _ in await self._answers(match)}
        await self.page.write(text)
        return await self._until_on_page(match, known)

    async def _until_on_page(self, match: str, known: set[str]) -> str:
        """Wait for a message of the bot that matches and is not `known`, and return the newest one."""
        async with asyncio.timeout(20):
            while True:
                if new := [words for ref, words in await self._answers(match) if ref not in known]:
                    return new[-1]
                await asyncio.sleep(0.02)  # the page belongs to another process, so there is no event to wait for

    async def _answers(self, match: str) -> list[tuple[str, str]]:
        shown = await self.page.entries()
        self._pages.append(str(shown))
        whole = [entry for entry in shown if entry.kind in ("answer", "notice")]
        return [(entry.ref, entry.text) for entry in whole if re.search(match, entry.text)]

    async def send_file(self, text: str, name: str, mime: str, content: bytes) -> None:
        """Send a file with a caption."""
        encoded = base64.b64encode(content).decode()
        match self.platform:
            case "telegram":
                await self.world.say(text, media="document", file_name=name, mime=mime, file_b64=encoded)
            case "discord":
                file = {"filename": name, "content_type": mime, "b64": encoded}
                await discord.say(self.world, text, dm_user_id=discord.ALICE, files=[file])
            case _:
                await self.page.write(text, name=name, mime=mime, content=content)

    async def until(self, match: str) -> None:
        """Wait until a message of the bot matches."""
        match self.platform:
            case "telegram":
                assert await self.world.replies(1, match=match), match
            case "discord":
                assert await discord.sent(self.world, 1, match=match), match
            case _:
                await self._until_on_page(match, set())

    async def texts(self) -> list[str]:
        """Return the texts that the bot has sent on Telegram or Discord, and to which it has edited messages."""
        if self.platform == "telegram":
            rows = await self.world.tg.get("sent", method="sendMessage|editMessageText")
        else:
            rows = await self.world.dc.get("sent", action="send|edit")
        return [row["text"] for row in rows]

    async def seen(self) -> str:
        """Return everything that was ever shown in the chat: messages, edits and previews."""
        if self.platform == "web":
            await self._answers("")
            return "\n".join(self._pages)
        server, kind = (self.world.tg, "calls") if self.platform == "telegram" else (self.world.dc, "sent")
        return json.dumps(await server.get(kind), ensure_ascii=False)

    async def buttons(self) -> list[str]:
        """Return the labels of all buttons that the bot's messages show now."""
        match self.platform:
            case "telegram":
                rows = [one.get("reply_markup") for one in (await self.world.tg.get("chat/42"))["messages"]]
                keyboards = [row["inline_keyboard"] for row in rows if row]
                return [button["text"] for keyboard in keyboards for row in keyboard for button in row]
            case "discord":
                messages = await self.world.dc.get("messages", channel_id=self._channel)
                rows = [row for message in messages for row in message.get("components") or ()]
                return [button["label"] for row in rows for button in row["components"]]
        return [label for entry in await self.page.entries() for label in entry.buttons]


@asynccontextmanager
async def chat_on(platform: str, folder: Path, protocol: ModelProtocol, **options: Any) -> AsyncIterator[Chat]:
    """Yield a chat on one platform. The gateway is not started yet."""
    places = {"telegram": platform == "telegram", "discord": platform == "discord"}
    async with world_in(folder, protocol, **places, **options) as world, AsyncExitStack() as stack:
        if platform == "discord":
            await world.dc.post("config", {"rate_limits": False})
        if platform == "web":
            world.gateway.environ |= world.web_chat()
        yield Chat(world, platform, stack)
