"""Command menu: the list that Telegram shows beside the input field."""

import re
from collections.abc import Sequence

import structlog
import telegram
from telegram import BotCommand
from telegram.error import TelegramError

from platforms.base import CommandMenuItem

log = structlog.get_logger(__name__)

DESCRIPTION_CHARACTERS = 256

_NAME = re.compile(r"[a-z0-9_]{1,32}")


async def publish_menu(sdk: telegram.Bot, items: Sequence[CommandMenuItem]) -> None:
    """Set the command menu if Telegram shows another one. A menu that cannot be set is logged, nothing more."""
    wanted = commands(items)
    if not wanted:
        return  # nothing to offer; a menu that the operator made by hand stays
    try:
        if await sdk.get_my_commands() == tuple(wanted):
            return
        await sdk.set_my_commands(wanted)
    except TelegramError as error:
        log.warning("telegram.menu_failed", error=type(error).__name__)
        return
    log.info("telegram.menu_published", commands=len(wanted))


def commands(items: Sequence[CommandMenuItem]) -> list[BotCommand]:
    """Items as Telegram takes them: names it refuses are left out, the argument leads the description."""
    return [
        BotCommand(item.name, " ".join(filter(None, (item.argument, item.description)))[:DESCRIPTION_CHARACTERS])
        for item in items
        if _NAME.fullmatch(item.name)
    ]
