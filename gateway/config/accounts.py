"""Accounts of the chat platforms: `telegram` and `discord` configure one bot each, or a list of bots with names.

The first bot is stored under the platform's name, so that it keeps the chats from before the list. Every other bot is
stored under the platform and its own name, such as `telegram/operations`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator

from gateway.config.blocks import checked_block, fields_of, is_block
from hermes_state.redaction import redact
from hermes_state.setting_types import FrozenBlock, keyed, listed
from hermes_state.settings import Setting
from platforms.settings import DiscordSettings, TelegramSettings, WebhookSettings

Bot: TypeAlias = TelegramSettings | DiscordSettings
_Bot = TypeVar("_Bot", TelegramSettings, DiscordSettings)


def _keys_of(kind: type[Bot], value: object) -> dict[str, Any]:
    """Return the keys that an account sets. Raises `ValueError` for an invalid name, key or value."""
    row = _set_keys(value)
    name = str(row.pop("name", ""))
    if name and re.fullmatch(r"(?=.{1,24}$)[a-z0-9]+([_-][a-z0-9]+)*", name) is None:
        raise ValueError(
            f"{redact(name)[:40]!r} cannot be the name of an account: use at most 24 of the characters a-z and 0-9, "
            "with single - or _ between them"
        )
    fields, called = fields_of(kind), name or "account"
    for key, written in row.items():
        inner = fields[key].annotation if key in fields else None
        if isinstance(inner, type) and is_block(inner):
            row[key] = checked_block(inner, _set_keys(written), f"{called}.{key}", fields_of(inner))
    block = checked_block(kind, row, called, fields)
    return {"name": name, **{key: getattr(block, key) for key in row}}


def _set_keys(value: object) -> dict[str, Any]:
    """Return the keys of a block that are set, because an empty value counts as not set."""
    return {key: written for key, written in keyed(value).items() if written is not None and str(written).strip()}


def has_first_token(accounts: object) -> bool:
    """Return True if the first account has a token of its own. The list need not have been checked."""
    try:
        rows = listed(accounts)
        return isinstance(rows, Sequence) and bool(rows) and "token" in _set_keys(rows[0])
    except ValueError:
        return False


_Row: TypeAlias = Annotated[dict[str, Any], AfterValidator(FrozenBlock)]


@dataclass(frozen=True, kw_only=True)
class TelegramConfig(TelegramSettings):
    """Telegram bot, enabled when a token is set; or several bots."""

    accounts: Annotated[
        tuple[Annotated[_Row, BeforeValidator(partial(_keys_of, TelegramSettings))], ...],
        BeforeValidator(listed),
        Setting(restart=True, default_text="none"),
    ] = ()
    """All bots, if there are several: blocks with `name`, `token` and other keys of `telegram`. You can also write this
    list directly under `telegram`."""

    @property
    def all_bots(self) -> list[TelegramSettings]:
        """Settings of every bot, the first one first."""
        return [*_all_bots(self, self.accounts)]

    @property
    def bots(self) -> list[TelegramSettings]:
        """Settings of every bot with a token."""
        return [bot for bot in self.all_bots if bot.token is not None]


@dataclass(frozen=True, kw_only=True)
class DiscordConfig(DiscordSettings):
    """Discord bot, enabled when a token is set; or several bots."""

    accounts: Annotated[
        tuple[Annotated[_Row, BeforeValidator(partial(_keys_of, DiscordSettings))], ...],
        BeforeValidator(listed),
        Setting(restart=True, default_text="none"),
    ] = ()
    """All bots, if there are several: blocks with `name`, `token` and other keys of `discord`. You can also write this
    list directly under `discord`."""

    @property
    def all_bots(self) -> list[DiscordSettings]:
        """Settings of every bot, the first one first."""
        return [*_all_bots(self, self.accounts)]

    @property
    def bots(self) -> list[DiscordSettings]:
        """Settings of every bot with a token."""
        return [bot for bot in self.all_bots if bot.token is not None]


def _all_bots(block: _Bot, accounts: tuple[dict[str, Any], ...]) -> Iterator[_Bot]:
    """Yield the settings of every bot. Only the first bot can use the token and the webhook of the block itself."""
    platform = block.account
    of_one = {name: field.default for name, field in fields_of(type(block)).items() if name in ("token", "webhook")}
    for number, row in enumerate(accounts or ({},), start=1):
        name = row.get("name") or platform
        label = platform if name == platform else f"{platform}/{name}"
        is_first, values = number == 1, {key: value for key, value in row.items() if key != "name"}
        yield replace(
            block if is_first else replace(block, **of_one),
            **values,
            account=platform if is_first else label,
            label=label,
            token_key=f"{platform}.token" if is_first and "token" not in values else f"{platform}.accounts[{number}]",
        )


def check_accounts(telegram: TelegramConfig, discord: DiscordConfig) -> None:
    """Raise `ValueError` if two accounts cannot run together. The message names both."""
    for block in (telegram, discord):
        platform, key = block.account, f"{block.account}.accounts"
        bots: Sequence[Bot] = block.all_bots
        seen: dict[object, str] = {}
        if block.token is not None and bots[0].token != block.token:
            where = f"{platform}.token and {key}[1]"
            raise ValueError(f"{where} are different tokens for the first account: remove one of them")
        for number, bot in enumerate(bots, start=1):
            place = f"{key}[{number}]" if block.accounts else f"{platform}.token"
            if number > 1 and bot.label == platform:
                raise ValueError(f"{place}: every account after the first needs a `name` other than {platform}")
            if (other := seen.setdefault(bot.label, place)) != place:
                raise ValueError(f"{place} has the same name as {other}: give each account its own name")
            if bot.token is None:
                continue
            if (other := seen.setdefault((bot.server, bot.token), bot.token_key)) != bot.token_key:
                raise ValueError(f"{place} has the same token as {other}: each account needs a bot of its own")
            hook = bot.webhook if isinstance(bot, TelegramSettings) else WebhookSettings()
            listens = {"port": (hook.host, hook.port), "url": hook.url} if hook.url is not None and hook.port else {}
            for what, value in listens.items():
                if (other := seen.setdefault(value, place)) != place:
                    raise ValueError(
                        f"{place} has the same webhook.{what} as {other}: each webhook needs its own {what}"
                    )


def check_places(telegram: TelegramConfig, discord: DiscordConfig, places: Mapping[str, Iterable[str]]) -> None:
    """Raise `ValueError` if a place names a first account by its own name, under which no chat is stored.

    `places` contains the names of accounts and chats in each setting.
    """
    bots: list[Bot] = [*telegram.all_bots, *discord.all_bots]
    stored = {bot.label: bot.account for bot in bots if bot.label != bot.account}
    for key, names in places.items():
        for name in names:
            label, colon, chat = name.partition(":")
            if (account := stored.get(label)) is not None:
                raise ValueError(
                    f"{key}: {account}.accounts[1] is stored as {account}, so write {account}{colon}{chat} instead of "
                    f"{name}"
                )


def idle_accounts(telegram: TelegramConfig, discord: DiscordConfig) -> Iterator[str]:
    """Yield a warning for each account in a list that has no token."""
    for block in (telegram, discord):
        bots: Sequence[Bot] = block.all_bots
        for number, bot in enumerate(bots, start=1):
            if block.accounts and bot.token is None:
                yield f"{block.account}.accounts[{number}]: {bot.label} has no token, so it is not connected"
