"""A headless Chromium for async tests. Every call waits in a thread, so that the fake services keep running."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

T = TypeVar("T")

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver"),
]
"""Marks of a module whose tests need the browser."""

WAIT_SECONDS = 15.0
"""Maximum wait in seconds for something that takes a fraction of a second on an idle machine."""

LOOKS = [(390, 844, "light"), (390, 844, "dark"), (1280, 860, "light"), (1280, 860, "dark")]
"""Sizes and colour schemes in which every page must be readable: those of a phone and of a desktop."""

_OUTSIDE = """return [...document.querySelectorAll("#content > *, .bar, .entry, footer, #composer button")].filter(
  (part) => { const box = part.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth + 0.5; }
).map((part) => part.outerHTML.slice(0, 80))"""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def screenshots(folder: Path) -> Path:
    """Return the folder for screenshots that the environment names, or `folder`."""
    return Path(os.environ.get("HERMES_TEST_SCREENSHOTS") or folder)


class Chromium:
    """A browser with a separate profile and one window."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    async def __aenter__(self) -> Self:
        assert BROWSER is not None
        assert DRIVER is not None
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for flag in (*_FLAGS, f"--user-data-dir={self._profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(DRIVER)
        self._driver = await asyncio.to_thread(webdriver.Chrome, options=options, service=service)
        await self.look(1280, 860)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._driver.quit)

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self._driver.get, url)

    async def reload(self) -> None:
        await asyncio.to_thread(self._driver.refresh)

    async def look(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Set the size of the window in CSS pixels, and the preferred colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await asyncio.to_thread(self._driver.execute_cdp_cmd, "Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        await asyncio.to_thread(self._driver.execute_cdp_cmd, "Emulation.setEmulatedMedia", media)

    async def every_look(self) -> AsyncIterator[str]:
        """Show the page in every look, check that it fits, and yield a name for a screenshot."""
        for width, height, scheme in LOOKS:
            await self.look(width, height, scheme=scheme)
            assert await self.run("return document.documentElement.scrollWidth") == width
            assert await self.run(_OUTSIDE) == []
            yield f"{width}-{scheme}"
        await self.look(1280, 860)

    async def open_tab(self, url: str) -> None:
        """Open an address in a new tab, and show this tab."""
        await asyncio.to_thread(self._driver.switch_to.new_window, "tab")
        await self.look(1280, 860)
        await self.open(url)

    async def show_tab(self, number: int) -> None:
        """Show a tab. They are numbered from 0 in the order in which they were opened."""
        await asyncio.to_thread(lambda: self._driver.switch_to.window(self._driver.window_handles[number]))

    async def save_to(self, folder: Path) -> None:
        """Set the folder for downloads."""
        rules = {"behavior": "allow", "downloadPath": str(folder)}
        await asyncio.to_thread(self._driver.execute_cdp_cmd, "Browser.setDownloadBehavior", rules)

    async def live_in(self, zone: str) -> None:
        """Set the browser's time zone."""
        await asyncio.to_thread(self._driver.execute_cdp_cmd, "Emulation.setTimezoneOverride", {"timezoneId": zone})

    async def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        assert await asyncio.to_thread(self._driver.save_screenshot, str(path))

    async def run(self, script: str, *values: object) -> Any:  # Any: JSON
        """Run a script, and return the value of its `return`."""
        return await asyncio.to_thread(self._driver.execute_script, script, *values)

    async def command(self, name: str) -> Any:  # Any: JSON
        """Run a command of the Chrome DevTools protocol."""
        return await asyncio.to_thread(self._driver.execute_cdp_cmd, name, {})

    async def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        await asyncio.to_thread(lambda: self._driver.switch_to.active_element.send_keys(*keys))

    async def type(self, *keys: str) -> None:
        """Press keys as a keyboard does, whatever element has the focus."""
        await asyncio.to_thread(ActionChains(self._driver).send_keys(*keys).perform)

    async def tab_to(self, selector: str, *, is_back: bool = False) -> None:
        """Press the tab key, with the shift key if `is_back`, until an element that matches has the focus."""
        passed: list[str] = []
        for _ in range(100):
            if await self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            passed.append(await self.run("return document.activeElement.outerHTML.slice(0, 60)"))
            keys = ActionChains(self._driver)
            if is_back:
                keys = keys.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT)
            else:
                keys = keys.send_keys(Keys.TAB)
            await asyncio.to_thread(keys.perform)
        raise AssertionError(f"no key leads to {selector}, only to {passed}")

    async def write(self, text: str) -> None:
        """Type a message and send it."""
        box = await asyncio.to_thread(self._driver.find_element, By.ID, "text")
        await asyncio.to_thread(box.send_keys, text, Keys.ENTER)

    async def choose_file(self, path: Path) -> None:
        field = await asyncio.to_thread(self._driver.find_element, By.ID, "files")
        await asyncio.to_thread(field.send_keys, str(path))

    async def click(self, selector: str) -> None:
        element = await asyncio.to_thread(self._driver.find_element, By.CSS_SELECTOR, selector)
        await asyncio.to_thread(element.click)

    async def texts(self, selector: str) -> list[str]:
        """Return the visible text of every element that matches, in page order."""
        read = "return [...document.querySelectorAll(arguments[0])].map((element) => element.innerText.trim())"
        found: list[str] = await self.run(read, selector)
        return found

    async def wait_for(self, selector: str, claim: Callable[[list[str]], bool]) -> list[str]:
        """Wait until `claim` is true for the texts of the elements that match, and return the texts."""
        deadline = time.monotonic() + WAIT_SECONDS
        found: list[str] = []
        while time.monotonic() < deadline:
            try:
                found = await self.texts(selector)
            except StaleElementReferenceException:
                continue
            if claim(found):
                return found
            await asyncio.sleep(0.05)  # a page sends no event when it changes
        page = "\n".join(await self.texts("body"))
        raise AssertionError(f"{selector} never was as claimed, in the end: {found}; the page:\n{page}")

    async def complaints(self) -> list[str]:
        """Return what pages should not do since the last call: warnings, errors, and requests to other origins."""
        rows = await asyncio.to_thread(self._driver.get_log, "browser")
        said = [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]
        own = (await self.run("return location.origin"), "data:", "blob:", "chrome", "about:")
        return said + [f"requested {url}" for url in await self.requests() if not url.startswith(own)]

    async def requests(self) -> list[str]:
        """Return the addresses that pages have requested since the last call, even if the browser refused to."""
        rows = await asyncio.to_thread(self._driver.get_log, "performance")
        events = [json.loads(row["message"])["message"] for row in rows]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
