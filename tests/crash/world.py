"""Services around a daemon that is killed. They count its requests, kill it at one of them, and restart it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from tests.crash.daemon import run_daemon
from tests.crash.kills import Kill
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import TOKEN, environ_of, remove_token_locks
from tests.fakes import fake_discord, fake_llm, fake_telegram, labkit
from tests.fakes.discord_state import ALICE
from tests.processes import ForkedProcess

WAIT_SECONDS = 60.0
"""Time limit for each step. It is generous, so that no test fails on a slow machine."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Stuck(AssertionError):
    """A step of the scenario did not happen."""


class World:
    """Fake services and a daemon. The n-th kill ends the daemon's n-th process, which is then restarted."""

    def __init__(
        self, folder: Path, kills: Sequence[Kill], protocol: ModelProtocol, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.protocol = protocol
        self._changes = dict(environ or {})
        self.home = folder / "home"
        self.effects = folder / "effects"
        self.kills = kills
        self.kill_count = 0
        self.is_kept_waiting = False
        """True while the request before a planned kill has no response. A poll at the end never gets one."""
        self.requests: list[str] = []
        """Names of the current process's requests so far."""
        self.acknowledged = 0
        """The daemon has acknowledged the Telegram updates below this id, and is responsible for them."""
        self.exit_code: int | None = None
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()
        self._daemon: ForkedProcess | None = None
        self._is_up = False
        self._is_frozen_later = False
        self._holds: list[asyncio.StreamWriter] = []
        self._are_holds_released = False
        self.hold_count = 0
        self.discord_channel = ""
        """Id of the Discord channel that the scenario uses."""
        self.model_texts: list[str] = []
        """Bodies of all model requests."""

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self._llm_app = fake_llm.make_app()
        self.llm = labkit.Control(await self._serve("llm", self._llm_app), session)
        self.telegram = labkit.Control(await self._serve("telegram", fake_telegram.make_app(token=TOKEN)), session)
        if self._changes.pop("CRASH_DISCORD", None) is not None:
            self.discord = labkit.Control(await self._serve("discord", fake_discord.make_app()), session)
            self._changes |= {
                "HERMES_ACCESS__ALLOW": f"telegram:42,discord:{ALICE}",
                "HERMES_DISCORD__TOKEN": "lab-discord-token",
                "HERMES_DISCORD__API_URL": self.discord.url,
                "HERMES_DISCORD__GATEWAY_URL": self.discord.url.replace("http", "ws", 1) + "/gateway",
            }
        holds = await asyncio.start_server(self._on_hold, "127.0.0.1", 0)
        self._stack.push_async_callback(self._close_holds, holds)
        self._environ = self._make_environ(holds.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._daemon is not None and self.exit_code is None:
            self._daemon.send_signal(signal.SIGKILL)
        keeper = getattr(self, "_keeper", None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})
        remove_token_locks(self._environ)
        await self.telegram.post("reset")  # ends the polls of killed processes; otherwise closing would wait for them
        await self._stack.aclose()

    def _make_environ(self, hold_port: int) -> dict[str, str]:
        return {
            **environ_of(self.folder, self.llm.url, self.protocol),
            "HERMES_ACCESS__ALLOW": "telegram:42",
            "HERMES_TELEGRAM__TOKEN": TOKEN,
            "HERMES_TELEGRAM__BASE_URL": self.telegram.url,
            "HERMES_NOTICES__REACTIONS": "off",  # so that acknowledgements are texts on the screen
            "CRASH_EFFECTS": str(self.effects),
            "CRASH_HOLD_PORT": str(hold_port),
            **self._changes,
        }

    async def _serve(self, service: str, app: web.Application) -> str:
        @web.middleware
        async def observed(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith(("/_ctl/", "/gateway")):  # the gateway connection lasts as long as the process
                return await handler(request)
            try:
                return await self._observe(service, request, handler)
            finally:
                self._changed.set()

        app.middlewares.append(observed)
        return (await self._stack.enter_async_context(labkit.Server(app))).url

    # ---- the daemon's lives ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon. It is restarted automatically after each kill."""
        self.exit_code = None
        self._keeper = asyncio.create_task(self._keep_alive(), name="keeper")

    async def _keep_alive(self) -> None:
        while self.exit_code is None:
            self._is_up, self.requests = False, []
            commits = str(self._commits_file(self.kill_count))
            environ = {**self._environ, "CRASH_COMMITS": commits, "CRASH_KILL": str(self._next_kill or "")}
            self._daemon = ForkedProcess(run_daemon, environ, self.folder / "gateway.log")
            code = await self._daemon.wait()
            if code == -signal.SIGKILL and self._next_kill is not None:
                self.kill_count += 1
            else:
                self.exit_code = code
            self._changed.set()

    @property
    def _next_kill(self) -> Kill | None:
        """Kill point of the current process, or None if it is not to be killed."""
        return self.kills[self.kill_count] if self.kill_count < len(self.kills) else None

    async def terminate(self) -> int:
        """Ask the daemon to stop once it is up. Return the number of kills until then."""

        async def is_up() -> bool:
            return self._is_up

        await self.until("the daemon polls", is_up)
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
        return self.kill_count

    async def end(self) -> None:
        """Ask the daemon to stop until it ends by itself, even if it is killed meanwhile.

        Raises `Stuck` if a step does not happen.
        """
        while not await self.is_ended_by(await self.terminate()):
            continue  # it was restarted after a kill, and nothing tells it to stop

    async def is_ended_by(self, kill_count: int) -> bool:
        """Wait until the daemon ends. Return False if another kill ended it.

        Raises `Stuck` if a step does not happen.
        """

        async def is_over() -> bool:
            return self.exit_code == 0 or self.kill_count != kill_count

        await self.until("the daemon has drained and ended", is_over)
        return self.kill_count == kill_count

    def commits(self, life: int = 0) -> list[str]:
        """Return the commits of one process."""
        path = self._commits_file(life)
        return path.read_text().split() if path.exists() else []

    def _commits_file(self, life: int) -> Path:
        return self.folder / f"commits-{life}"

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _observe(self, service: str, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request, and kill the daemon before or after it if it is the kill point."""
        self.requests.append(f"{service} {request.path.rpartition('/')[2]}")
        kill = self._next_kill
        if service == "llm":
            self.model_texts.append((await request.read()).decode())
        elif request.path.endswith("/getUpdates"):
            self._is_up = True
            self.acknowledged = max(self.acknowledged, int(request.query.get("offset", 0)))
        if kill is None or (kill.place, kill.number) != ("request", len(self.requests)):
            return await handler(request)
        if kill.side == "after":
            self.is_kept_waiting = True
            await self._serve_unheard(service, request, handler)
            self.is_kept_waiting = False
        self._kill_now()
        raise labkit.Hangups

    async def _serve_unheard(self, service: str, request: web.Request, handler: Handler) -> None:
        """Let a request take effect without letting the daemon see any of the response."""
        if service == "llm":
            # Streams are sent while they are created, so stop the daemon first, or when a paused stream resumes.
            if "goodbye" in self.model_texts[-1]:
                self._is_frozen_later = True
            else:
                self._freeze()
        await handler(request)

    def _freeze(self) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGSTOP)

    def _kill_now(self) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGKILL)

    async def resume_stream(self) -> None:
        """Let the model continue a paused stream."""
        if self._is_frozen_later:
            self._is_frozen_later = False
            self._freeze()
        await self.llm.post("resume")

    # ---- the tool that waits ---------------------------------------------------------------------------------------

    async def _on_hold(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hold_count += 1
        self._holds.append(writer)
        if self._are_holds_released:
            writer.write(b"go\n")
        self._changed.set()

    def release_holds(self) -> None:
        """Let the waiting tool finish, and all later waiting tools."""
        self._are_holds_released = True
        for writer in self._holds:
            writer.write(b"go\n")

    async def _close_holds(self, server: asyncio.Server) -> None:
        server.close()
        for writer in self._holds:
            writer.close()
        await server.wait_closed()

    # ---- what people do and see -------------------------------------------------------------------------------------

    async def begin(self, script: Iterable[Mapping[str, object]], *chats: int) -> None:
        """Open the private chats or groups, give the model its rules, and start the daemon."""
        for chat_id in chats:
            await self.telegram.post("chat", {"chat_id": chat_id})
        await self.llm.post("script", [{**rule, "times": -1} for rule in script])
        self.start()

    async def say(self, chat_id: int, text: str, user_id: int = 42) -> int:
        """Send a message from a person. Return the id that acknowledges the update."""
        more = {"user_id": user_id} | ({} if chat_id > 0 else {"chat_type": "supergroup"})
        made = await self.telegram.post("message", {"chat_id": chat_id, "text": text, **more})
        return int(made["update_id"]) + 1

    async def visible(self, chat_id: int) -> list[str]:
        """Return the current texts of the bot's messages in a chat."""
        chat = await self.telegram.get(f"chat/{chat_id}")
        return [row.get("text", row.get("caption", "")) for row in chat["messages"] if row["from"]["is_bot"]]

    async def until_seen(self, chat_id: int, words: str, name: str = "") -> None:
        """Wait until a message of the bot in a chat contains `words`. Raises `Stuck` if a step does not happen."""

        async def is_seen() -> bool:
            return any(words in text for text in await self.visible(chat_id))

        await self.until(f"{name or repr(words[:40])} is on screen", is_seen)

    def effects_of(self, key: str) -> int:
        """Return how often a tool that writes has run with this key."""
        return (self.effects.read_text().split() if self.effects.exists() else []).count(key)

    async def is_stream_paused(self) -> bool:
        """Return True if the model has paused in the middle of a response that a client is reading."""
        rows = await self.llm.get("requests")
        return any(row.get("paused") and row["outcome"] == "open" for row in rows)

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `is_so` returns True after a request, a tool call or the end of the process.

        Raises `Stuck` if it takes too long, or if the daemon ends first.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    self._changed.clear()
                    if await is_so():
                        return
                    if self.exit_code is not None:
                        raise Stuck(f"the daemon ended with {self.exit_code} before: {what}")
                    await self._changed.wait()
        except TimeoutError:
            raise Stuck(f"not within {WAIT_SECONDS:g} s: {what}") from None
