"""Environment of an end-to-end test: fake services on the loopback interface, and the gateway as a real process."""

import asyncio
import itertools
import os
import re
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gateway.config import load_config
from gateway.daemon.process import lock_folder, token_locks
from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.store.sql import Connection
from tests.databases import IS_POSTGRES, ensure_database, fresh_address
from tests.e2e.protocols import ANTHROPIC, ModelProtocol
from tests.fakes import fake_discord, fake_llm, fake_telegram
from tests.fakes.labkit import Control, Server
from tests.processes import ForkedProcess, run_command, run_gateway

ROOT = Path(__file__).parents[2]
TOKEN = "123456:LABTOKEN"
GROUP = -100200
"""Chat id of a group on Telegram."""
START_SECONDS = 30.0
STOP_SECONDS = 40.0
COMMAND_SECONDS = 30.0


def environ_of(folder: Path, model_url: str, protocol: ModelProtocol) -> dict[str, str]:
    """Return the environment of a gateway in `folder`, without settings for platforms and people.

    Titles and memory flushes are off. Their model calls come at any time, and most tests count calls.
    """
    return {
        **{name: os.environ[name] for name in ("PATH", "HERMES_EVENT_LOOP") if name in os.environ},
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HERMES_HOME": str(folder / "home"),
        "HERMES_MODEL__NAME": "lab-128k",
        **protocol.environ(model_url),
        "HERMES_MODEL__API_KEY": "test",
        "HERMES_MODEL__CONTEXT_LENGTH": "128000",
        "HERMES_AUXILIARY__TITLE": "off",
        "HERMES_MEMORY__FLUSH": "false",
        "HERMES_LOCAL__ENABLED": "false",
        "HERMES_LOGGING__FORMAT": "json",
        "HERMES_LOGGING__LEVEL": "debug",
        "HERMES_LOGGING__FILE": "false",
    }


def remove_token_locks(environ: Mapping[str, str]) -> None:
    """Remove the token locks, which all processes of this machine share. Every test has separate bots."""
    loaded = load_config({**environ, "HERMES_HOME": "/nonexistent"})  # ignores any configuration that the test has left
    for _, path in token_locks(loaded, lock_folder(environ)):
        path.unlink(missing_ok=True)


def text_of(output: Path) -> str:
    return output.read_text(errors="replace")


Program = Callable[[], object] | Sequence[str]
"""Main function of a forked process, or the arguments for a new Python process."""
STARTED_ANEW: Program = ("-m", "gateway", "run")


class Gateway:
    """The daemon as a separate process."""

    def __init__(self, environ: Mapping[str, str], log: Path, program: Program) -> None:
        self.environ = dict(environ)
        self._log = log
        self.program = program
        """Program that the next start runs."""
        self.process: asyncio.subprocess.Process | ForkedProcess | None = None
        self.started_from = 0
        """Offset in bytes at which the output of the current process begins."""

    async def start(self, **changes: str) -> None:
        """Start the daemon, and wait until the log says that it has started."""
        await self.spawn(**changes)
        await self.wait_for_log("daemon.started", since=self.started_from)

    async def spawn(self, **changes: str) -> None:
        """Start the daemon without waiting."""
        self.environ.update(changes)
        self.started_from = len(self.log_bytes())
        if callable(self.program):
            await asyncio.to_thread(self._prepare_database)
            self.process = ForkedProcess(self.program, self.environ, self._log)
            return
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self.program), env=self.environ, cwd=ROOT, stdout=log, stderr=log
            )

    def _prepare_database(self) -> None:
        """Create a migrated database before the first process starts in a new home, because migrating takes longer."""
        home = Path(self.environ.get("HERMES_HOME", "/"))
        if self.process is None and "HERMES_STORE__URL" not in self.environ and not home.exists():
            ensure_database(home / "state.db")

    async def wait_for_log(self, words: str, *, since: int = 0, seconds: float = START_SECONDS) -> None:
        """Wait until the daemon's output contains `words` after the offset `since`."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            while words.encode() not in self.log_bytes()[since:]:
                assert self.process.returncode is None, f"the gateway ended:\n{self.log_text()}"
                await asyncio.sleep(0.02)  # the file belongs to another process, so there is no event to wait for

    async def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.wait()

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def wait(self) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), STOP_SECONDS)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def log_bytes(self) -> bytes:
        return self._log.read_bytes() if self._log.exists() else b""

    def log_text(self) -> str:
        return text_of(self._log) if self._log.exists() else ""

    async def printed_url(self) -> str:
        """Return the web chat's address that the current process printed. Earlier processes printed other addresses."""
        await self.wait_for_log("Open http", since=self.started_from)
        [url] = re.findall(rb"Open (http\S+)", self.log_bytes()[self.started_from :])
        return bytes(url).decode()


class World:
    """Fake Telegram, Discord and model, and a gateway between them."""

    def __init__(self, folder: Path, protocol: ModelProtocol) -> None:
        self.protocol = protocol
        self.home = folder / "home"
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._stack = AsyncExitStack()
        self._commands = itertools.count(1)
        self.environ: dict[str, str] = {}
        self.address: str | None = None
        """Address of the database, or None if the database is a file in the gateway's home."""

    async def open(self, *, telegram: bool = True, discord: bool = False, program: Program = run_gateway) -> None:
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.http = session
        self.llm_app = fake_llm.make_app()
        self.llm = Control(await self._serve(self.llm_app), session)
        environ = {
            **environ_of(self._folder, self.llm.url, self.protocol),
            "HERMES_ACCESS__ALLOW": "telegram:42,telegram:43,discord:100000000000000001",
            "HERMES_ACCESS__ADMINS": "telegram:1",
        }
        if telegram:
            self.tg = Control(await self._serve(fake_telegram.make_app(token=TOKEN)), session)
            environ |= {"HERMES_TELEGRAM__TOKEN": TOKEN, "HERMES_TELEGRAM__BASE_URL": self.tg.url}
        if discord:
            self.dc = Control(await self._serve(fake_discord.make_app()), session)
            gateway_url = self.dc.url.replace("http", "ws", 1) + "/gateway"
            environ |= {
                "HERMES_DISCORD__TOKEN": "lab-discord-token",
                "HERMES_DISCORD__API_URL": self.dc.url,
                "HERMES_DISCORD__GATEWAY_URL": gateway_url,
            }
        if IS_POSTGRES and self.address is None:
            self.address = self._stack.enter_context(fresh_address())
        if self.address is not None:
            environ["HERMES_STORE__URL"] = self.address
        self.environ = environ
        self.gateway = Gateway(environ, self._folder / "gateway.log", program)

    async def _serve(self, app: web.Application) -> str:
        return (await self._stack.enter_async_context(Server(app))).url

    async def close(self) -> None:
        try:
            if self.gateway.process is not None:
                await self.gateway.kill()
            remove_token_locks(self.environ)
        finally:
            await self._stack.aclose()

    # ---- Telegram ----------------------------------------------------------------------------------------------

    async def say(self, text: str, *, chat_id: int = 42, **more: object) -> Any:
        """Send a message from a person to the bot on Telegram."""
        body = {"chat_id": chat_id, "user_id": chat_id if chat_id > 0 else 42, "text": text, **more}
        return await self.tg.post("message", body)

    async def say_in_group(self, text: str, *, user_id: int = 42, **more: object) -> Any:
        """Send a message from a person to a group on Telegram."""
        return await self.say(text, chat_id=GROUP, chat_type="supergroup", user_id=user_id, **more)

    async def ask(self, text: str, match: str, *, chat_id: int = 42, **more: object) -> None:
        """Send a message on Telegram, and wait until the chat has a message of the bot that matches."""
        await self.say(text, chat_id=chat_id, **more)
        assert await self.replies(1, chat_id=chat_id, match=match, wait=20), f"{text!r}: nothing like {match!r}"

    async def ask_in_group(self, text: str, match: str, *, user_id: int = 42, **more: object) -> None:
        """Send a message to the group on Telegram, and wait until it has a message of the bot that matches."""
        await self.say_in_group(text, user_id=user_id, **more)
        assert await self.replies(1, chat_id=GROUP, match=match, wait=20), f"{text!r}: nothing like {match!r}"

    async def press(self, label: str, *, chat_id: int = 42) -> None:
        """Press a button of the newest message that has it, on Telegram."""
        await self.tg.post("callback", {"chat_id": chat_id, "user_id": chat_id, "button": label})

    async def replies(
        self, count: int, *, chat_id: int = 42, wait: float = 15, since: int = 0, match: str = ""
    ) -> list[str]:
        """Wait for `count` messages of the bot in a chat, and return their texts."""
        query = {"method": "sendMessage", "chat_id": chat_id, "wait": wait, "count": count, "since": since}
        rows = await self.tg.get("sent", **query, **({"match": match} if match else {}))
        return [row["text"] for row in rows]

    async def converse(self, *texts: str) -> None:
        """Send messages one after the other, each after the previous one has exactly one answer."""
        for text in texts:
            count = len(await self.replies(0, wait=0))
            await self.say(text)
            assert len(await self.replies(count + 1)) == count + 1, text

    async def turn_runs(self, count: int = 1) -> None:
        """Wait until a running turn has shown `count` typing indicators in total."""
        rows = await self.tg.get("calls", method="sendChatAction", wait=10, count=count)
        assert len(rows) >= count

    async def visible(self, chat_id: int = 42) -> list[str]:
        """Return the texts that a Telegram chat shows from the bot now, after edits and deletions."""
        chat = await self.tg.get(f"chat/{chat_id}")
        return [row.get("text", "") for row in chat["messages"] if row["from"]["is_bot"]]

    async def script(self, **rule: object) -> None:
        """Add a rule to the fake model's script."""
        await self.llm.post("script", [rule])

    async def script_call(self, match: str, tool: str, /, **arguments: object) -> None:
        """Let the fake model call a tool once, in its first answer to a message that matches."""
        await self.script_calls(match, {"name": tool, "arguments": arguments})

    async def script_calls(self, match: str, *calls: Mapping[str, object]) -> None:
        """Let the fake model call several tools in parallel, as `script_call` does with one."""
        await self.script(match=match, last_role="user", tool_calls=calls, times=1)

    async def hold(self, **rule: object) -> None:
        """Add a rule to the script. Its answer does not begin before `release`."""
        await self.script(pause_after=0, **rule)

    async def release(self) -> None:
        """Release all held answers, including later ones."""
        await self.llm.post("resume")

    async def stored(self, count: int) -> None:
        """Wait until the gateway has stored this number of messages in total."""
        await self.until(lambda: self.query("SELECT count(*) FROM inbox WHERE kind = 'message'")[0][0] >= count)

    async def until_rows(self, sql: str, *rows: tuple[object, ...]) -> None:
        """Wait until a query returns exactly these rows."""
        await self.until(lambda: self.query(sql) == [*rows])

    @staticmethod
    async def until(claim: Callable[[], object]) -> None:
        """Wait until something about another process's files is true."""
        async with asyncio.timeout(START_SECONDS):
            while not claim():  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # another process has no event to wait for

    async def reload(self) -> None:
        """Have the gateway load its configuration again."""
        since = len(self.gateway.log_bytes())
        self.gateway.signal(signal.SIGHUP)
        await self.gateway.wait_for_log("config.reloaded", since=since)

    def configure(self, yaml: str) -> None:
        """Write `config.yaml`."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "config.yaml").write_text(yaml, encoding="utf-8")

    async def asked(self, count: int, *, wait: float = 15, since: int = 0, **filters: object) -> list[dict[str, Any]]:
        """Wait for `count` requests to the model, and return them with their bodies.

        `protocols.prompt_of` reads a body of any protocol.
        """
        found: list[dict[str, Any]] = await self.llm.get(
            "requests", full=1, wait=wait, count=count, since=since, **filters
        )
        return found

    async def outcomes(self) -> set[str]:
        """Return the outcomes of the model's requests.

        With Anthropic, every request must name an output limit. For calls without their own limit, such as summaries,
        this limit can exceed what a long prompt leaves. The gateway then lowers it as the provider says, which is not a
        failure.
        """
        rows = await self.llm.get("requests")
        tolerated = {"output_cap"} if self.protocol is ANTHROPIC else set()
        return {row["outcome"] for row in rows if row["tool_tokens"] or row["outcome"] not in tolerated}

    async def violations(self) -> list[dict[str, Any]]:
        """Return what was illegal or untidy in the requests to the model."""
        found: list[dict[str, Any]] = await self.llm.get("violations")
        return found

    async def command_line(self, *words: str, node: Gateway | None = None) -> tuple[int, str]:
        """Run `hermes-gateway` with the environment of `node` or the only gateway. Return the exit code and the
        output."""
        output = self._folder / f"command-{next(self._commands)}.txt"
        process = ForkedProcess(partial(run_command, *words), (node or self.gateway).environ, output)
        return await asyncio.wait_for(process.wait(), COMMAND_SECONDS), text_of(output)

    def web_chat(self) -> dict[str, str]:
        """Return the settings that enable the web chat on a free port."""
        return {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(self.free_port())}

    @staticmethod
    def free_port() -> int:
        """Return a loopback port that is currently free."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    # ---- the database, read only ---------------------------------------------------------------------------------

    @property
    def database(self) -> Path | str:
        """The database file, or its address."""
        return self.address or self.home / "state.db"

    def query(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Query the database, even while the gateway is running."""
        with self.connected() as db:
            return db.execute(sql, args).fetchall()

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yield a read-only connection."""
        if self.address is not None:
            with closing(PostgresConnection.open(self.address)) as opened:
                opened.execute("SET default_transaction_read_only = on")
                yield opened
            return
        with closing(sqlite3.connect(f"file:{self.home / 'state.db'}?mode=ro", uri=True)) as file:
            register_functions(file)
            yield file


@asynccontextmanager
async def world_in(folder: Path, protocol: ModelProtocol, **options: Any) -> AsyncIterator[World]:
    """Yield a world that is always closed at the end."""
    world = World(folder, protocol)
    await world.open(**options)
    try:
        yield world
    finally:
        await world.close()
