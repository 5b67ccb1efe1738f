"""Delivery of updates: getUpdates with its conflicts, and webhooks with their retries."""

import asyncio
import re
import time

import aiohttp

from tests.fakes.labkit import Json
from tests.fakes.tg_platform import ApiError, Bot, Upload, bad

BATCH = 100
LONGEST_POLL_SECONDS = 50
DELIVERY_SECONDS = 60
RETRY_FIRST_SECONDS, RETRY_LONGEST_SECONDS = 0.2, 5.0

_RIVAL = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK_ACTIVE = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)


async def get_updates(bot: Bot, params: Json) -> list[Json]:
    """Return pending updates from `offset`, waiting if there are none. A second poller interrupts the first one."""
    if bot.webhook["url"]:
        raise ApiError(409, _WEBHOOK_ACTIVE)
    if bot.poller and not bot.poller.done():
        bot.poller.set_exception(ApiError(409, _RIVAL))
    if params.get("allowed_updates") is not None:
        bot.set_allowed(params["allowed_updates"])
    _forget(bot, int(params.get("offset") or 0))
    limit = min(BATCH, max(1, int(params.get("limit") or BATCH)))
    await _wait_for_updates(bot, min(float(params.get("timeout") or 0), LONGEST_POLL_SECONDS))
    return bot.updates[:limit]


def _forget(bot: Bot, offset: int) -> None:
    """Drop all updates before `offset`, which acknowledges them. A negative offset keeps only the newest ones."""
    if offset > 0:
        bot.updates = [update for update in bot.updates if update["update_id"] >= offset]
    elif offset < 0:
        bot.updates = bot.updates[offset:]


async def _wait_for_updates(bot: Bot, seconds: float) -> None:
    """Wait until there are updates, or for `seconds`. Raises the conflict error if another poller starts."""
    thrown_out = asyncio.get_running_loop().create_future()
    bot.poller = thrown_out
    deadline = time.monotonic() + seconds
    try:
        while not bot.updates and not thrown_out.done() and (left := deadline - time.monotonic()) > 0:
            bot.changed.clear()
            waiter = asyncio.ensure_future(bot.changed.wait())
            await asyncio.wait({waiter, thrown_out}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
        if thrown_out.done() and not thrown_out.cancelled():  # cancelled if the platform was reset
            thrown_out.result()
    finally:
        if bot.poller is thrown_out:
            bot.poller = None
        if thrown_out.done() and not thrown_out.cancelled():
            thrown_out.exception()  # prevents asyncio's warning about exceptions that were never retrieved
        thrown_out.cancel()


def webhook_info(bot: Bot) -> Json:
    info = {
        "url": bot.webhook["url"],
        "has_custom_certificate": bool(bot.webhook.get("certificate")),
        "pending_update_count": len(bot.updates),
        **bot.webhook_error,
    }
    if bot.webhook["url"]:
        info.update(max_connections=bot.webhook["max_connections"], ip_address="127.0.0.1")
    if bot.allowed:
        info["allowed_updates"] = sorted(bot.allowed)
    return info


def delete_webhook(bot: Bot) -> str:
    """Delete the webhook, and return the Bot API's description of the result."""
    had = bool(bot.webhook["url"])
    bot.webhook, bot.webhook_error = {"url": ""}, {}
    if bot.worker:
        bot.worker.cancel()
        bot.worker = None
    return "Webhook was deleted" if had else "Webhook is already deleted"


def set_webhook(bot: Bot, params: Json) -> None:
    """Check the address (https, or http on this machine) and the secret, then start to deliver updates."""
    url = str(params["url"])
    is_local = re.match(r"http://(127\.0\.0\.1|localhost)(:\d+)?/", url + "/")
    if not url.startswith("https://") and not is_local:
        raise bad("bad webhook: An HTTPS URL must be provided for webhook")
    secret = params.get("secret_token") or ""
    if secret and not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret):
        raise bad("secret token contains unallowed characters")
    if params.get("allowed_updates") is not None:
        bot.set_allowed(params["allowed_updates"])
    bot.webhook = {
        "url": url,
        "secret": secret,
        "max_connections": int(params.get("max_connections") or 40),
        "certificate": isinstance(params.get("certificate"), Upload),
    }
    bot.webhook_error = {}
    if bot.worker:
        bot.worker.cancel()
    bot.worker = asyncio.create_task(_deliver(bot), name="fake Telegram delivers")


async def _deliver(bot: Bot) -> None:
    """Post the updates one after the other. Each is repeated until it gets a 2xx response."""
    pause = RETRY_FIRST_SECONDS
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DELIVERY_SECONDS)) as session:
        while True:
            if not bot.updates:
                bot.changed.clear()
                await bot.changed.wait()
                continue
            update = bot.updates[0]
            try:
                problem = await _post(session, bot, update)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = f"Connection failed: {type(error).__name__}"
            if problem is None:
                if update in bot.updates:
                    bot.updates.remove(update)
                pause = RETRY_FIRST_SECONDS
                continue
            bot.webhook_error = {"last_error_date": int(time.time()), "last_error_message": problem}
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_LONGEST_SECONDS)


async def _post(session: aiohttp.ClientSession, bot: Bot, update: Json) -> str | None:
    """Post an update, and return the problem, or None if it was delivered."""
    secret = bot.webhook["secret"]
    headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
    async with session.post(bot.webhook["url"], json=update, headers=headers, ssl=False) as answer:
        is_delivered = 200 <= answer.status < 300
        return None if is_delivered else f"Wrong response from the webhook: {answer.status} {answer.reason}"
