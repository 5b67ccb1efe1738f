"""Command menus: the list that Telegram shows next to the input field, and the longer one for each admin."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

import structlog
import telegram
from telegram import BotCommand, BotCommandScope, BotCommandScopeChat
from telegram.constants import BotCommandLimit
from telegram.error import TelegramError

from hermes_state.errors import StoreUnavailable
from hermes_state.store.meta import load_note, save_note
from hermes_state.store.writer import Store
from platforms.base import Intake, MenuCommand
from platforms.telegram.inbound import PLATFORM

log = structlog.get_logger(__name__)

RETRY_SECONDS = 3_600.0
"""Seconds after which a menu that could not be set for an admin is tried again."""


async def keep_menus(sdk: telegram.Bot, items: Sequence[MenuCommand], intake: Intake, store: Store) -> None:
    """Keep the menus up to date until cancelled: every admin has one with all commands in the direct chat."""
    if not items:
        return  # nothing to offer; a menu that the operator made by hand stays
    await publish_menu(sdk, [item for item in items if not item.is_admin_only])
    key, admins, shown = f"{PLATFORM}.menu.{sdk.id}", None, frozenset[str]()
    while True:
        # An admin who has never written to the bot can have no menu yet.
        is_done = admins is None or shown == admins
        with suppress(TimeoutError):
            async with asyncio.timeout(None if is_done else RETRY_SECONDS):
                admins = await intake.next_admins(PLATFORM, admins)
        try:
            before, admins = (await store.read(load_note, key) or "").split(), admins or frozenset()
            now = [one for one in admins if await publish_menu(sdk, items, BotCommandScopeChat(int(one)))]
            for one in {*before} - admins:
                with suppress(TelegramError):  # a menu that stays permits nothing
                    await sdk.delete_my_commands(BotCommandScopeChat(int(one)))
            await store.write(save_note, key, " ".join(sorted(now)))
            shown = frozenset(now)
        except StoreUnavailable as error:
            log.warning("telegram.menu_failed", error=type(error).__name__)


async def publish_menu(sdk: telegram.Bot, items: Sequence[MenuCommand], scope: BotCommandScope | None = None) -> bool:
    """Set a menu if Telegram shows another one; False, and logged, if that fails."""
    wanted = commands(items)
    try:
        if await sdk.get_my_commands(scope) == tuple(wanted):
            return True
        await sdk.set_my_commands(wanted, scope)
    except TelegramError as error:
        log.warning("telegram.menu_failed", error=type(error).__name__)
        return False
    log.info("telegram.menu_published", commands=len(wanted))
    return True


def commands(items: Sequence[MenuCommand]) -> list[BotCommand]:
    """Return the menu for Telegram, without names that it refuses. The argument leads the description."""
    return [
        BotCommand(
            item.name, " ".join(filter(None, (item.argument, item.description)))[: BotCommandLimit.MAX_DESCRIPTION]
        )
        for item in items
        if re.fullmatch(r"[a-z0-9_]{1,32}", item.name)
    ]
