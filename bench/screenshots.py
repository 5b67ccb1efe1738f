"""Record the README's screenshots and animation from the real page: `make screenshots`.

Starts the gateway with the fake model of the tests, writes a scripted conversation in a headless Chromium, and takes
pictures of what it shows. Marks that a conversation does not have are not in the pictures, so run it again after the
page changed.
"""

import argparse
import asyncio
import io
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.e2e.browser.chromium import Chromium
from tests.e2e.protocols import CHAT_COMPLETIONS
from tests.e2e.world import World, world_in

FOLDER = Path(__file__).parents[1] / "docs" / "images"
MAX_BYTES = 1_000_000
"""Maximum size of all pictures together."""
SIZE = (1120, 760)
MODEL = "gpt-5-mini"

HISTORY = (
    ("We plan the new order service. PostgreSQL 16, about 40 million orders.", "Good. Let us begin with the schema."),
    (
        "Orders are looked up by customer and by day.",
        "Then two indexes: `(customer_id, created_at)`, and BRIN on days.",
    ),
    (
        "Only 2 % of the orders are open at any time.",
        "A partial index `WHERE status = 'open'` stays small: about 30 MB.",
    ),
    ("Never lock the table for longer than a second.", "Noted as a standing rule: `CREATE INDEX CONCURRENTLY` only."),
    ("Who reviews the migration?", "Priya reviews it on Tuesday, and you run it on Wednesday at 06:00."),
    ("And the old table?", "It stays readable for 30 days. Then the nightly job drops it."),
)
QUESTION = "Which indexes did we agree on? Give me the migration too."
SEARCH = {"name": "history_search", "arguments": {"query": "index*"}}
ANSWER = """Three indexes, all built without locking the table:

| index | for | size |
|---|---|--:|
| `orders_customer` | orders of a customer | 1.1 GB |
| `orders_day` | reports by day | 2 MB |
| `orders_open` | open orders only | 30 MB |

```sql
CREATE INDEX CONCURRENTLY orders_customer ON orders (customer_id, created_at);
CREATE INDEX CONCURRENTLY orders_day ON orders USING brin (created_at);
CREATE INDEX CONCURRENTLY orders_open ON orders (id) WHERE status = 'open';
```

Priya reviews it on **Tuesday**.
"""
BACKGROUND = " ".join(f"Step {number} of the plan was checked against the notes of the team." for number in range(500))
"""Text that a person pasted, so that a compression has something to condense."""


class Film:
    """Frames of the page with the time for which each is shown."""

    def __init__(self, browser: Chromium, folder: Path) -> None:
        self._browser, self._file = browser, folder / "frame.png"
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []
        self._taken_at = time.monotonic()

    async def shoot(self, seconds: float = 0.0) -> None:
        """Add frames for some seconds, at least one. Equal frames become one long frame."""
        end = time.monotonic() + seconds
        while True:
            await self._browser.screenshot(self._file)
            frame = Image.open(io.BytesIO(self._file.read_bytes())).convert("RGB")
            now = time.monotonic()
            if self.durations:
                self.durations[-1] += round(1000 * (now - self._taken_at))
            self._taken_at = now
            if not self.frames or frame.tobytes() != self.frames[-1].tobytes():
                self.frames.append(frame)
                self.durations.append(0)
            if now >= end:
                return
            await asyncio.sleep(0.1)

    async def type(self, text: str) -> None:
        for start in range(0, len(text), 4):
            await self._browser.press(text[start : start + 4])
            await self.shoot()

    def save(self, path: Path) -> None:
        self.durations[-1] += 2_500
        self.frames[0].save(
            path, save_all=True, append_images=self.frames[1:], duration=self.durations, loop=0, lossless=True, method=4
        )


async def write_history(world: World, browser: Chromium, root: str) -> None:
    """Fill the list of chats, the overview and the chat of the animation."""
    for question, answer in HISTORY:
        await world.script(match=question[:20], last_role="user", text=answer)
    await world.script(
        match="Step 1 ", last_role="user", text="Thanks, I compared it with our plan. Nothing is missing."
    )
    await world.script(match="trip|garden", last_role="user", times=2, text="Gladly. When does it start?")
    await world.script(match=QUESTION[:20], last_role="user", tool_calls=[SEARCH])
    await world.script(last_role="tool", text=ANSWER, chunk_chars=7, chunk_delay=0.06)
    await world.say("May I use this bot?", chat_id=99, first_name="Ben")
    for name, text in (("trip-to-rome", "Plan a trip to Rome"), ("garden", "Plan the garden")):
        await send(browser, f"{root}/chat/{name}", text)
    questions = [question for question, _ in HISTORY]
    texts = [*questions[:4], BACKGROUND, *questions[4:]]
    for number, text in enumerate(texts):
        await send(browser, f"{root}/chat/order-service" if number == 0 else "", text)


async def send(browser: Chromium, address: str, text: str) -> None:
    """Send a message in the chat at the address, or in the open chat, and wait for its answer."""
    if address:
        await browser.open(address)
        await browser.wait_for("#page-menu a", lambda found: found != [])
    count = len(await browser.texts(".answer"))
    await browser.run("document.getElementById('text').value = arguments[0]", text)
    await browser.press("\ue007")
    await browser.wait_for(".answer .body", lambda found: len(found) > count)


async def record(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        async with world_in(path / "world", CHAT_COMPLETIONS) as world, Chromium(path / "profile") as browser:
            await world.llm.post("models", {MODEL: {"context": 32_000, "max_output": 4_000}})
            settings = {
                **{"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(world.free_port())},
                **{"HERMES_MODEL__NAME": MODEL, "HERMES_MODEL__CONTEXT_LENGTH": "32000"},
                **{"HERMES_COMPRESSION__PROTECT_FIRST_N": "1", "HERMES_COMPRESSION__PROTECT_LAST_N": "4"},
                "HERMES_COSTS__DAILY_CAP": "2",
            }
            await world.gateway.start(**settings)
            link = await world.gateway.printed_url()
            root = link.partition("/?")[0]
            await browser.look(*SIZE)
            await browser.open(link)
            await browser.wait_for("#page-menu a", lambda found: found != [])
            await write_history(world, browser, root)
            film = Film(browser, path)
            await film.shoot(1.0)
            await film.type(QUESTION)
            await browser.press("\ue007")
            await film.shoot(8.0)
            await browser.screenshot(folder / "chat.png")
            await film.type("/compress")
            await browser.press("\ue007")
            await film.shoot(3.5)
            await browser.open(f"{root}/console/overview")
            await browser.wait_for("#content", lambda found: found != [""])
            await film.shoot(1.0)
            await browser.screenshot(folder / "overview.png")
            film.save(folder / "tour.webp")
    for picture in ("chat.png", "overview.png"):
        Image.open(folder / picture).convert("RGB").quantize(256).save(folder / picture, optimize=True)
    pictures = [folder / name for name in ("chat.png", "overview.png", "tour.webp")]
    for picture in pictures:
        print(f"{picture.name}: {picture.stat().st_size:,} bytes")
    print(f"tour.webp: {sum(film.durations) / 1000:.0f} seconds, {len(film.frames)} frames")
    if sum(picture.stat().st_size for picture in pictures) > MAX_BYTES:
        raise SystemExit(f"The pictures are larger than {MAX_BYTES:,} bytes together.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder for the pictures")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(folder))
