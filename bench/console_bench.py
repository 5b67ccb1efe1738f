"""Measure the web console: pages in a real browser, queries in a large database, and the cost of an idle gateway."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
from yarl import URL

from bench.console_store import LINEAGE, LONG, Size, fill
from bench.corpus import CHINESE, COMMON, PHRASE, RARE
from bench.cpu import cpu_seconds
from bench.measure import Measure, resident_mb
from bench.screenshots import ANSWER
from gateway.console.handler import PAGES
from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from tests.e2e.browser.chromium import BROWSER, DRIVER, Chromium
from tests.e2e.protocols import CHAT_COMPLETIONS
from tests.e2e.world import STARTED_ANEW, World, world_in

FULL = Size(messages=1_000_000, chats=2_000, others=500, long=2_000, sessions=1_000)
QUICK = Size(messages=100_000, chats=200, others=50, long=2_000, sessions=100)
SMALL = Size(messages=2_000, chats=50, others=10, long=20, sessions=2)
REQUESTS, OPENED = 15, 7
"""Numbers of requests, and of pages that a browser opens, of which the median counts."""
SETTLE_SECONDS = 4.0
"""Seconds to wait until pages, streams and memory have settled, because there is no event for that."""
STREAMS, ADDRESSES = 200, 4
EMPTY = "data:text/html,<p>An empty page</p>"
SEARCHES = {"a rare word": RARE, "a phrase": f'"{PHRASE}"', "a common word": COMMON, "two Chinese characters": CHINESE}
QUERIES = {
    **dict.fromkeys(("lineage", "meter"), f"chat={LINEAGE}"),
    **{"search": f"words={COMMON}", "why": "message=m1", "message": "id=m1", "transcript": "chat=telegram:1000"},
}
"""Queries of the pages that need one."""

# The browser reports when it painted the largest text, which belongs to the newest messages.
_PAINTED = """return new Promise((resolve) => new PerformanceObserver((list) => {
  const largest = list.getEntries().at(-1);
  if (arguments[0] && !largest.element?.closest(arguments[0])) return;
  resolve([performance.getEntriesByName("first-contentful-paint")[0].startTime, largest.startTime]);
}).observe({type: "largest-contentful-paint", buffered: true}));"""
_WATCH_SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => window.shifts.push(...list.getEntries().filter((one) => !one.hadRecentInput)))
  .observe({type: "layout-shift"});"""
_SHIFTED = "return window.shifts.reduce((sum, one) => sum + one.value, 0)"
_WEIGHT = """return ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
  .reduce((sum, one) => sum + one.transferSize, 0)"""


class Owner:
    """The owner, who is signed in without a browser at a gateway with only the web chat."""

    def __init__(self, world: World, link: str) -> None:
        self.world, self._link = world, URL(link)
        self.root = str(self._link.origin())
        self.headers: dict[str, str] = {}

    async def sign_in(self) -> None:
        headers = {TOKEN_HEADER: self._link.query["token"], "Origin": self.root}
        async with self.world.http.post(f"{self.root}/sign-in", headers=headers) as answer:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.headers = {KEY_HEADER: await answer.text(), "Cookie": cookie}

    @property
    def pid(self) -> int:
        assert self.world.gateway.process is not None
        return self.world.gateway.process.pid

    async def read(self, path: str) -> str:
        async with self.world.http.get(self.root + path, headers=self.headers) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}: {text}")
        return text

    async def server_time(self, name: str, path: str, bar: float, shown: str) -> Measure:
        """Measure requests for a page that must contain `shown`."""
        times = []
        for _ in range(REQUESTS):
            began = time.perf_counter()
            text = await self.read(path)
            times.append(time.perf_counter() - began)
            if shown not in text:
                raise RuntimeError(f"{path} does not show {shown}")
        return Measure(name=f"{name}, p50", ours=statistics.median(times) * 1e3, unit="ms", bar=bar)

    async def first_event(self, chat: str) -> bytes:
        """Return what a page's stream sends first: the entries that the page shows."""
        sent = b""
        async with self.world.http.get(f"{self.root}/chat/{chat}/stream", headers=self.headers) as answer:
            while sent.count(b"\n\n") < 2:  # the first one ends a greeting
                sent += await answer.content.readany()
        return sent

    async def enter(self, browser: Chromium) -> None:
        """Sign in with a browser."""
        code, link = await self.world.command_line("url")
        assert code == 0, link
        await browser.open(link.strip())
        await browser.wait_for("#page-menu a", lambda found: found != [])


async def run(quick: bool) -> list[Measure]:
    """Measure everything. `quick`: in a tenth of the messages."""
    size, has_browser = QUICK if quick else FULL, BROWSER and DRIVER
    with tempfile.TemporaryDirectory(prefix="console-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with _gateway(folder / "full", size) as owner:
            measures = await _first_paint(owner, folder / "profile", size) if has_browser else []
            measures += await _server_times(owner, size)
        async with _gateway(folder / "small", SMALL) as owner:
            measures += await _page(owner, folder / "other-profile") if has_browser else []
        async with _gateway(folder / "idle", SMALL) as owner:
            measures += [await _memory(owner), await _streams(owner, 24 if quick else 60)]
    if not has_browser:
        print("There is no Chromium with chromedriver, so the figures of pages are left out.")
    return measures


@asynccontextmanager
async def _gateway(folder: Path, size: Size) -> AsyncIterator[Owner]:
    await fill(folder / "home" / "state.db", size)
    async with world_in(folder, CHAT_COMPLETIONS, telegram=False, program=STARTED_ANEW) as world:
        port = str(world.free_port())
        await world.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=port, HERMES_LOGGING__LEVEL="info")
        owner = Owner(world, await world.gateway.printed_url())
        await owner.sign_in()
        yield owner


async def _first_paint(owner: Owner, profile: Path, size: Size) -> list[Measure]:
    """Open an empty page and a long conversation in turns, without the browser's cache."""
    painted: dict[str, list[list[float]]] = {"": [], "#log": []}
    async with Chromium(profile) as browser:
        await owner.enter(browser)
        for _ in range(OPENED):
            for address, log in ((EMPTY, ""), (f"{owner.root}/chat/{LONG}", "#log")):
                await browser.open("about:blank")
                await browser.command("Network.clearBrowserCache")
                await browser.open(address)
                painted[log].append(await browser.run(_PAINTED, log))
    [empty, _], first_and_newest = (
        list(map(statistics.median, zip(*times, strict=True))) for times in painted.values()
    )
    names = ("first contentful paint", "newest messages painted")
    return [
        Measure(
            name=f"conversation with {size.long:,} messages: {name}, against an empty page",
            ours=ours,
            unit="ms",
            yardstick=empty,
            bar=1,
            slack=400,
        )
        for name, ours in zip(names, first_and_newest, strict=True)
    ]


async def _server_times(owner: Owner, size: Size) -> list[Measure]:
    """Measure the requests that read most, from the client's side."""
    chats, search = f"list of {size.chats:,} conversations", f"search page, {size.messages:,} messages"
    lineage = f"/console/lineage/content?chat={LINEAGE}"
    overview = f"owner's overview, {size.messages:,} messages"
    return [
        await owner.server_time(f"{chats}, the newest", "/chats?shown=main", 150, "/chat/topic-"),
        await owner.server_time(f"{chats}, all", f"/chats?shown=main&count={size.chats}", 150, '/chat/topic-0"'),
        *[
            await owner.server_time(f"{search}: {name}", f"/console/search/content?words={quote(words)}", 100, "?id=m")
            for name, words in SEARCHES.items()
        ],
        await owner.server_time(f"lineage page, {size.sessions:,} sessions", lineage, 200, "<circle"),
        await owner.server_time(overview, "/console/overview/content", 100, "Platforms"),
    ]


async def _page(owner: Owner, profile: Path) -> list[Measure]:
    """Measure the shifts of the page while an answer streams, and the bytes of a page that shows this answer."""
    await owner.world.script(match="plan", last_role="user", text=ANSWER * 4, chunk_chars=12, chunk_delay=0.03)
    async with Chromium(profile) as browser:
        await owner.enter(browser)
        await browser.open(f"{owner.root}/chat/plan")
        await browser.wait_for("#page-menu a", lambda found: found != [])
        await browser.run(_WATCH_SHIFTS)
        await browser.write("What is the plan?")
        await browser.wait_for(".preview .body", lambda found: found != [])
        await browser.wait_for(".answer .body", lambda found: found != [])
        await asyncio.sleep(SETTLE_SECONDS)
        shifted = await browser.run(_SHIFTED)
        await browser.command("Network.clearBrowserCache")
        await browser.open(f"{owner.root}/chat/plan")
        await browser.wait_for(".answer .body", lambda found: found != [])
        await asyncio.sleep(SETTLE_SECONDS)
        weight = await browser.run(_WEIGHT) + len(await owner.first_event("plan"))
    return [
        Measure(name="layout shift while an answer streams", ours=shifted, unit="shift", bar=0.05),
        Measure(name="weight of a chat's page with all that it loads", ours=weight / 1_000, unit="KB", bar=250),
    ]


async def _memory(owner: Owner) -> Measure:
    """Measure how much memory an idle gateway keeps after a person opened every page of the console."""
    await asyncio.sleep(SETTLE_SECONDS)
    before = resident_mb(pid=owner.pid)
    for name in (page.about.name for page in PAGES):
        page = f"/chats/{LONG}/delete" if name == "deletion" else f"/console/{name}/content?{QUERIES.get(name, '')}"
        await owner.read(page)
    await asyncio.sleep(SETTLE_SECONDS)
    name = "idle memory after every page of the console was opened, against before"
    return Measure(name=name, ours=resident_mb(pid=owner.pid), unit="MB", yardstick=before, bar=1, slack=5)


async def _streams(owner: Owner, seconds: float) -> Measure:
    """Measure the gateway's processor time while many pages are open and nothing happens."""
    received = [0] * STREAMS

    async def watch(session: aiohttp.ClientSession, number: int) -> None:
        address = f"{owner.root}/chat/topic-{number % 40}/stream"
        async with session.get(address, headers=owner.headers) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                received[number] += len(chunk)
        raise RuntimeError("the gateway ended a stream")

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        watchers = []
        for address in range(ADDRESSES):
            connector = aiohttp.TCPConnector(limit=0, local_addr=(f"127.0.0.{address + 1}", 0))
            session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
            await stack.enter_async_context(session)
            watchers += [group.create_task(watch(session, number)) for number in range(address, STREAMS, ADDRESSES)]
        await asyncio.sleep(SETTLE_SECONDS)
        settled, used, began = list(received), cpu_seconds(owner.pid), time.monotonic()
        await asyncio.sleep(seconds)
        share = (cpu_seconds(owner.pid) - used) / (time.monotonic() - began)
        if silent := sum(now == then for now, then in zip(received, settled, strict=True)):
            raise RuntimeError(f"{silent} of {STREAMS} streams sent nothing")
        for watcher in watchers:
            watcher.cancel()
    name = f"{STREAMS} idle event streams from {ADDRESSES} addresses"
    return Measure(name=name, ours=share * 100, unit="% of a core", bar=2)
