"""The programs that are measured end to end, gateway and floor, and the fake services. All are separate processes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from bench.cpu import cpu_seconds
from bench.measure import resident_mb
from tests.fakes.labkit import Control
from tests.fakes.proc import Proc

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "123456:LABTOKEN"
READY_SECONDS = 60.0
ANSWER_SECONDS = 120.0
ANSWER_SLICE = 100
"""Number of answers to wait for at a time, because the service checks all of them when a new one arrives."""
_SHOWS = "sendMessage|editMessageText"
DISCORD_USERS = 10**17
WORDS = "The tide comes in twice every day, and with it all fishing boats."
WORD = 5
"""Number of characters in a chunk. Thirteen chunks contain all 13 words."""
AT_ONCE = len(WORDS)


@dataclass(slots=True)
class Lab:
    """Fake services of one measurement. People write on `platform`."""

    telegram: Control
    discord: Control
    model: Control
    processes: Mapping[str, int]
    """Process id of each service."""
    platform: Literal["telegram", "discord"] = "telegram"
    seen: int = 0
    """Journal row of the last answer that was returned."""

    async def speak(self, *, chunk: int = WORD, pause: float = 0.0) -> None:
        """Make the model send 13 words from now on, `chunk` characters at a time with `pause` seconds after each."""
        await self.model.delete("script")
        await self.model.post("script", {"text": WORDS, "chunk_chars": chunk, "chunk_delay": pause, "times": -1})
        await self.model.post("config", {"log_bodies": False})

    async def say(self, chat_id: int, text: str) -> float:
        """Write to the bot. Return the time in monotonic seconds, which all processes share."""
        began = time.monotonic()
        await self.write([(chat_id, text)])
        return began

    async def write(self, messages: Iterable[tuple[int, str]]) -> None:
        """Write to the bot in these chats, in this order."""
        if self.platform == "telegram":
            await self.telegram.post("message", [{"chat_id": n, "user_id": n, "text": text} for n, text in messages])
        else:
            people = [(str(DISCORD_USERS + n), text) for n, text in messages]
            await self.discord.post("message", [{"dm_user_id": n, "user_id": n, "content": text} for n, text in people])

    async def answers(self, count: int) -> list[dict[str, Any]]:
        """Wait for the next `count` answers and return them. The `chat` of each is its chat."""
        service, kind, chat = (
            (self.telegram, {"method": "sendMessage"}, "chat_id")
            if self.platform == "telegram"
            else (self.discord, {"action": "send"}, "channel_id")
        )
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            more = min(ANSWER_SLICE, count - len(rows))
            came = await service.get("sent", count=more, since=self.seen, wait=ANSWER_SECONDS, **kind)
            if len(came) < more:
                raise RuntimeError(f"{len(rows) + len(came)} of {count} messages were answered")
            rows += [row | {"chat": row[chat]} for row in came]
            self.seen = rows[-1]["seq"]
        return rows

    async def new_answers(self, least: int = 0, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Return complete new answers on Telegram.

        Waits until there are at least `least`, or until `seconds` have passed.
        """
        query = {"method": _SHOWS, "match": f"^{WORDS}$", "count": least, "wait": seconds, "since": self.seen}
        rows: list[dict[str, Any]] = await self.telegram.get("sent", **query)
        if rows:
            self.seen = rows[-1]["seq"]
        return rows


@asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    """Run the three fake services."""
    services = {
        "telegram": Proc("fake_telegram.py", "--token", TOKEN),
        "discord": Proc("fake_discord.py"),
        "model": Proc("fake_llm.py"),
    }
    async with AsyncExitStack() as stack:
        controls = {name: await stack.enter_async_context(service) for name, service in services.items()}
        yield Lab(**controls, processes={name: service.pid for name, service in services.items()})


class Subject:
    """A bot as a child process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        ready: str,
        *,
        python: str = sys.executable,
        folder: Path = ROOT,
    ) -> None:
        self.name = name
        self._command = (python, *command)
        self._folder = folder
        self._environ = dict(environ)
        self._ready = ready
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Subject":
        self.started_at = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environ,
            cwd=self._folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        try:
            await self._wait_until_ready(self._process.stdout)
        except BaseException:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            raise
        self._reader = asyncio.create_task(_discard(self._process.stdout), name=f"output of {self.name}")
        return self

    async def _wait_until_ready(self, output: asyncio.StreamReader) -> None:
        told: list[str] = []
        async with asyncio.timeout(READY_SECONDS):
            while line := (await output.readline()).decode(errors="replace"):
                told.append(line)
                if self._ready in line:
                    return
        raise RuntimeError(f"{self.name} ended before it was ready:\n{''.join(told)}")

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await self._process.wait()
        if self._reader is not None:
            await self._reader

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds used so far."""
        return cpu_seconds(self._process.pid)

    @property
    def switches(self) -> int:
        """Return the number of context switches of all current threads."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/status")
        lines = [line.split() for task in tasks for line in task.read_text().splitlines() if "ctxt_switches" in line]
        return sum(int(line[1]) for line in lines)

    def tell(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    @property
    def memory_mb(self) -> float:
        """Return the resident memory in MB."""
        return resident_mb(pid=self._process.pid)


async def lags_of(subject: Subject, file: Path) -> list[float]:
    """Return the event loop delays of a `watched_gateway` in seconds, since the last call."""
    subject.tell(signal.SIGUSR1)
    while (written := await asyncio.to_thread(_taken, file)) is None:  # noqa: ASYNC110  # that of another process
        await asyncio.sleep(0.01)
    lags: list[float] = json.loads(written)
    return lags


def _taken(file: Path) -> bytes | None:
    try:
        written = file.read_bytes()
    except FileNotFoundError:
        return None
    file.unlink()
    return written


def floor(here: Lab, folder: Path, *, streams: bool) -> Subject:
    """Return the minimal bot. `streams`: True if it asks the model to stream."""
    command = ["-m", "bench.floor_bot", "--telegram", here.telegram.url, "--model", f"{here.model.url}/v1"]
    command += ["--token", TOKEN, "--database", str(folder / "floor.db"), *(["--streams"] if streams else [])]
    return Subject("floor", command, {"PATH": os.environ["PATH"]}, json.dumps({"ready": "floor"}))


def gateway_environ(here: Lab, folder: Path) -> dict[str, str]:
    """Return the environment of a gateway with Telegram and its files in `folder`.

    Like the floor, it merges no messages.
    """
    return {
        **{name: os.environ[name] for name in ("PATH", "HERMES_EVENT_LOOP") if name in os.environ},
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HERMES_HOME": str(folder / "home"),
        "HERMES_TELEGRAM__TOKEN": TOKEN,
        "HERMES_TELEGRAM__BASE_URL": here.telegram.url,
        "HERMES_MODEL__NAME": "lab-8000k",
        "HERMES_MODEL__BASE_URL": f"{here.model.url}/v1",
        "HERMES_MODEL__CONTEXT_LENGTH": "8000000",
        "HERMES_AUXILIARY__TITLE": "off",  # the floor creates no titles, and only turns should be measured
        "HERMES_LOCAL__ENABLED": "false",
        "HERMES_LOGGING__FORMAT": "json",
        "HERMES_LOGGING__FILE": "false",
        "HERMES_ACCESS__ALLOW_ALL": "true",
        "HERMES_SESSIONS__MERGE_SECONDS": "0",
        "HERMES_SESSIONS__MESSAGES_PER_MINUTE": "0",  # one person writes as much as many people do
    }


def gateway(
    here: Lab,
    folder: Path,
    *,
    has_discord: bool = False,
    command: Sequence[str] = ("gateway", "run"),
    changes: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """Return the gateway as a child process.

    `command`: the Python module and its arguments. `changes`: changes to the environment.
    """
    environ = {**gateway_environ(here, folder), **changes}
    if has_discord:
        environ |= {
            "HERMES_DISCORD__TOKEN": "lab-discord-token",
            "HERMES_DISCORD__API_URL": here.discord.url,
            "HERMES_DISCORD__GATEWAY_URL": here.discord.url.replace("http", "ws", 1) + "/gateway",
        }
    return Subject("gateway", ["-m", *command], environ, "daemon.started")


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass
