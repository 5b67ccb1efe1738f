"""A browser without a screen: it signs in, writes, uploads, presses buttons, listens and reads pages."""

import asyncio
import contextlib
import io
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import jinja2
import pytest
from jinja2.bccache import Bucket
from yarl import URL

from hermes_state.errors import StoreUnavailable
from hermes_state.files.folder import AttachmentFolder
from hermes_state.values import ChatKey, Clock, SystemClock
from platforms.base import MenuCommand
from platforms.local import LocalAdapter, LocalSettings
from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from platforms.local.pages import chat_key
from tests.databases import open_store
from tests.platforms.contract import AdapterHarness, RecordingIntake, running

MENU = (
    MenuCommand(name="new", description="start a new conversation", argument="[title]"),
    MenuCommand(name="stop", description="end the running turn", argument=None),
)

NO_HEADERS: Mapping[str, str] = {}

_VOID = frozenset({"input", "br", "hr", "meta", "link", "path", "img"})


@dataclass
class Shown:
    """Entry of a page."""

    ref: str
    classes: tuple[str, ...]
    text: str = ""
    files: list[str] = field(default_factory=list)
    buttons: dict[str, str] = field(default_factory=dict)
    """Commands by label."""

    @property
    def kind(self) -> str:
        return self.classes[1]


class Screen(HTMLParser):
    """Entries of a page or a fragment, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.entries: list[Shown] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[tuple[str, str]] = []  # tag, class
        self._command: str | None = None
        self.feed(html)
        self.close()

    def of(self, *kinds: str) -> list[Shown]:
        return [entry for entry in self.entries if entry.kind in kinds]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        classes = tuple((values.get("class") or "").split())
        if "entry" in classes:
            self.entries.append(Shown(ref=(values["id"] or "").removeprefix("m-"), classes=classes))
        if tag == "button" and values.get("name") == "command" and self.entries and self._is_inside("buttons"):
            self._command = values["value"] or ""
        if tag not in _VOID:
            self._open.append((tag, " ".join(classes)))

    def handle_endtag(self, tag: str) -> None:
        self._command = None
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self.entries:
            return
        entry = self.entries[-1]
        if self._command is not None:
            entry.buttons[data] = self._command
        elif self._is_inside("files") and self._open[-1][0] == "li":
            entry.files.append(data)
        elif self._is_inside("body") or self._is_inside("tool"):
            entry.text += data

    def _is_inside(self, name: str) -> bool:
        return any(name in classes.split() for _, classes in self._open)


@dataclass(frozen=True)
class Event:
    """Server-sent event."""

    id: str
    data: str


class Listener:
    """Stream of one page."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_id = ""

    async def next(self, seconds: float = 10) -> Event:
        """Return the next event. Raises `EOFError` when the stream has ended."""
        async with asyncio.timeout(seconds):
            while True:
                block = (await self.response.content.readuntil(b"\n\n")).decode()
                lines = [line for line in block.rstrip("\n").split("\n") if line and not line.startswith(":")]
                if not block:
                    raise EOFError
                if lines:
                    data = "\n".join(line.removeprefix("data: ") for line in lines if line.startswith("data:"))
                    self.last_id = next(line[4:] for line in lines if line.startswith("id: "))
                    return Event(self.last_id, data)

    async def until(self, text: str) -> str:
        """Return the data of all events up to the one that contains `text`."""
        seen = ""
        while text not in seen:
            seen += (await self.next()).data
        return seen


class CompiledTemplates(jinja2.BytecodeCache):
    """Compiled templates for all pages of a test process, because compiling takes longer than most tests."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


COMPILED = CompiledTemplates()


class LocalHarness(AdapterHarness):
    """An adapter on a free port of this machine, with its store and a person's browser."""

    def __init__(self, path: Path, *, clock: Clock | None = None, **changes: Any) -> None:
        self._path = path
        self._changes = {"port": 0, **changes}
        self.files = AttachmentFolder(path / "attachments")
        self.clock = clock or SystemClock()
        self.direct_chat = chat_key("main")
        self.person_id = "owner"
        self.ready_urls: list[str] = []
        self.key = ""
        self._signed_in_at = 0

    async def __aenter__(self) -> Self:
        self.store = await open_store(self._path / "state.db")
        self.adapter: LocalAdapter = self.another_adapter()
        self.browser = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.browser.close()
        await self.store.close()

    def another_adapter(self, menu: Sequence[MenuCommand] = MENU, **changes: Any) -> LocalAdapter:
        given = {**self._changes, **changes}
        options = {name: given.pop(name) for name in ("max_file_bytes", "port_tries") if name in given}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jinja2, "Environment", partial(jinja2.Environment, bytecode_cache=COMPILED))
            return LocalAdapter(
                LocalSettings(**given),
                store=self.store,
                files=self.files,
                menu=menu,
                clock=self.clock,
                state_dir=self._path,
                on_ready=self.ready_urls.append,
                **options,
            )

    @property
    def has_outage_memory(self) -> bool:
        return False

    @property
    def root(self) -> str:
        url = self.adapter.url
        assert url is not None, "the adapter is not running"
        return url.rstrip("/")

    async def sign_in(self) -> None:
        """Open the newest printed link, unless this browser already did."""
        if self._signed_in_at < len(self.ready_urls):
            self._signed_in_at = len(self.ready_urls)
            assert await self.use(self.ready_urls[-1]) in (200, 204)

    async def use(self, url: str) -> int:
        """Open a link with a token as its page does, and return the status."""
        token = URL(url).query["token"]
        async with self.browser.post(f"{self.root}/sign-in", headers=self.headers({TOKEN_HEADER: token})) as answer:
            if answer.status == 200:
                self.key = await answer.text()
            return answer.status

    def headers(self, more: Mapping[str, str] = NO_HEADERS) -> dict[str, str]:
        """Return the headers that the page's script sends with each request."""
        return {"HX-Request": "true", "Origin": self.root, KEY_HEADER: self.key, **more}

    async def page(self, name: str = "main", query: str = "") -> str:
        """Return a chat's page with the content that its stream sends first."""
        await self.sign_in()
        async with self.browser.get(f"{self.root}/chat/{name}{query}", headers=self.headers()) as answer:
            assert answer.status == 200, answer.status
            frame = await answer.text()
        if query:
            return frame
        async with self.listening(name) as stream:
            return frame + (await stream.next()).data

    async def listed(self, name: str = "main", **query: str) -> str:
        """Return the list of chats, for the page of a chat."""
        await self.sign_in()
        url = URL(f"{self.root}/chats").with_query(shown=name, **query)
        async with self.browser.get(url, headers=self.headers()) as answer:
            assert answer.status == 200, answer.status
            return await answer.text()

    async def screen(self, name: str = "main") -> Screen:
        return Screen(await self.page(name))

    async def post(
        self,
        fields: dict[str, str],
        *,
        name: str = "main",
        files: Sequence[tuple[str, bytes]] = (),
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, str]:
        """Submit the composer as the page does, and return status and body."""
        await self.sign_in()
        form = aiohttp.FormData(quote_fields=False)
        for key, value in fields.items():
            form.add_field(key, value, content_type="text/plain")
        for file_name, content in files:
            form.add_field("files", io.BytesIO(content), filename=file_name, content_type="application/octet-stream")
        sent = self.headers(headers)
        url = f"{self.root}/chat/{name}/messages"
        async with self.browser.post(url, data=form, headers=sent, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    @contextlib.asynccontextmanager
    async def listening(self, name: str = "main", *, last: str = "") -> AsyncIterator[Listener]:
        """Open a page's stream. `last` is the newest event that a reconnecting page has seen."""
        await self.sign_in()
        headers = self.headers({"Last-Event-ID": last} if last else {})
        async with self.browser.get(f"{self.root}/chat/{name}/stream", headers=headers) as answer:
            assert answer.status == 200, answer.status
            yield Listener(answer)

    @contextlib.asynccontextmanager
    async def opened(self, name: str = "main") -> AsyncIterator[Listener]:
        """Open a page's stream, and read its first content."""
        async with self.listening(name) as stream:
            await stream.next()
            yield stream

    async def write(self, text: str, *, name: str = "main", files: Sequence[tuple[str, bytes]] = ()) -> str:
        client_id = secrets.token_hex(16)
        for _ in range(3):  # a person sends again the text that stayed in the composer
            status, body = await self.post({"text": text, "client_id": client_id}, name=name, files=files)
            if status == 200:
                return f"c-{client_id}"
        raise StoreUnavailable(body)

    async def write_with_file(self, name: str, content: bytes) -> str:
        return await self.write("", files=[(name, content)])

    async def press(self, label: str) -> None:
        shown = [entry for entry in (await self.screen()).entries if label in entry.buttons]
        command = shown[-1].buttons[label]
        status, body = await self.post({"command": command, "client_id": secrets.token_hex(16)})
        assert status == 200, body

    async def visible(self, chat: ChatKey) -> list[str]:
        if self.adapter.url is not None:
            screen = await self.screen(chat.chat_ref)
        else:
            async with running(self.adapter, RecordingIntake()):
                screen = await self.screen(chat.chat_ref)
        return [entry.text.strip() for entry in screen.of("answer", "preview")]
