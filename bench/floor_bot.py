"""The "floor": a minimal bot that does only what every bot must do.

It has a long-polling loop, and one model call, one SQLite commit (WAL, synchronous=FULL) and one sendMessage per
message. It answers each chat's messages in order. The gateway's figures are read as multiples of this bot's figures.
"""

import argparse
import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import aiohttp

SCHEMA = "CREATE TABLE IF NOT EXISTS m (id INTEGER PRIMARY KEY, chat INTEGER, role TEXT, text TEXT, ts REAL)"


class FloorBot:
    """Bot between a Bot API server and a model."""

    def __init__(self, telegram_url: str, model_url: str, token: str, database: str, *, streams: bool) -> None:
        self._telegram = f"{telegram_url}/bot{token}/"
        self._model = model_url
        self._streams = streams
        self._db = sqlite3.connect(database, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(SCHEMA)
        self._locks: dict[int, asyncio.Lock] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=90)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            offset = 0
            print(json.dumps({"ready": "floor"}), flush=True)
            while True:
                async with session.post(
                    f"{self._telegram}getUpdates", json={"offset": offset, "timeout": 30}
                ) as answer:
                    updates: list[dict[str, Any]] = (await answer.json()).get("result") or []
                for update in updates:
                    offset = update["update_id"] + 1
                    if "text" in update.get("message", {}):
                        group.create_task(self._handle(session, update["message"]))

    async def _handle(self, session: aiohttp.ClientSession, message: dict[str, Any]) -> None:
        chat = message["chat"]["id"]
        async with self._locks.setdefault(chat, asyncio.Lock()):
            self._store(chat, "user", message["text"])
            body = {"model": "m", "stream": self._streams, "messages": [{"role": "user", "content": message["text"]}]}
            async with session.post(f"{self._model}/chat/completions", json=body) as answer:
                if self._streams:
                    text = "".join([word async for word in _words(answer.content)])
                else:
                    text = (await answer.json())["choices"][0]["message"]["content"]
            self._store(chat, "assistant", text)
            async with session.post(f"{self._telegram}sendMessage", json={"chat_id": chat, "text": text}) as sent:
                await sent.read()

    def _store(self, chat: int, role: str, text: str) -> None:
        self._db.execute("INSERT INTO m (chat, role, text, ts) VALUES (?, ?, ?, ?)", (chat, role, text, time.time()))


async def _words(lines: AsyncIterable[bytes]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                yield choice["delta"].get("content") or ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--telegram", "--model", "--token", "--database"):
        parser.add_argument(name, required=True)
    parser.add_argument("--streams", action="store_true")
    given = parser.parse_args()
    bot = FloorBot(given.telegram, given.model, given.token, given.database, streams=given.streams)
    asyncio.run(bot.run())
