"""A headless Chromium for async tests. Every call waits in a thread, so that the fake services keep running."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
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
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
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
        """Return the warnings and errors in the browser's console since the last call."""
        rows = await asyncio.to_thread(self._driver.get_log, "browser")
        return [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]
