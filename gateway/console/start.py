"""Set-up page: connect a model and the chat platforms, without editing files."""

import asyncio
from collections.abc import Callable, Mapping

from gateway.config import LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE
from gateway.config.settings import Config
from gateway.config.writing import (
    DISCORD_TOKEN,
    MODEL_BASE_URL,
    MODEL_KEY,
    MODEL_NAME,
    MODEL_PROTOCOL,
    SECRETS,
    TELEGRAM_TOKEN,
)
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.operator.probes import probe_discord, probe_model, probe_telegram
from gateway.operator.providers import find_local_servers, recognise
from hermes_state.errors import CommandError, ConfigError
from hermes_state.redaction import Redactor
from hermes_state.setting_types import plain
from hermes_state.store.sql import load_note, save_note
from platforms.console import ConsolePage, Values, WebPerson

OFFLINE_NOTE = "offline_model_chosen"
"""Note in the database that says that the owner looks around with the offline model."""


async def is_new(context: ConsoleContext) -> bool:
    """Return True if no model and no platform is configured, and the owner did not choose the offline model."""
    loaded = context.live.loaded
    keys = ("model.protocol", "telegram.token", "discord.token")
    if loaded.config.model.protocol != "offline" or any(loaded.sources[key] != DEFAULT_SOURCE for key in keys):
        return False
    return await context.store.read(load_note, OFFLINE_NOTE) is None


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    current, trouble = context.live.loaded, ""
    try:
        saved = await context.preview_settings({})
    except ConfigError as error:
        saved, trouble = current, context.live.redactor()(str(error))
    model = current.config.model
    return {
        "model": model.label,
        "host": model.host,
        "is_offline": model.protocol == "offline",
        "trouble": trouble,
        # Ports of this machine are asked only here, so only while an admin has this page open.
        "servers": await asyncio.to_thread(find_local_servers),
        "telegram": _state("telegram", current, saved),
        "discord": _state("discord", current, saved),
    }


def _state(platform: str, current: LoadedConfig, saved: LoadedConfig) -> str:
    """Return `missing`, `saved` if a restart is needed to use the token, or `used`."""
    token, new = (plain(getattr(loaded.config, platform).token) for loaded in (current, saved))
    if new is None:
        return "missing"
    return "used" if new == token else "saved"


async def use_model(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    key, address, name = (form.get(field, "").strip() for field in ("key", "address", "model"))
    is_same = not (key or address) and context.live.config.model.protocol != "offline"
    if is_same and name:  # another model at the same provider
        return await _use(context, person, {MODEL_NAME: name})
    if not (key or address):
        raise CommandError("Paste an API key, or add the address of your model server.")
    provider = recognise(key, address)
    if provider is None and not address:
        raise CommandError(
            "This page does not know whose key this is. Open “Another provider or model” and add the address of the "
            "API and the name of the model."
        )
    model = name or (provider.model if provider is not None else "")
    if not model:
        raise CommandError("Add the name of the model, as the provider spells it.")
    answers = {
        MODEL_NAME: model,
        MODEL_PROTOCOL: provider.protocol if provider is not None else "",
        MODEL_BASE_URL: address or (provider.base_url if provider is not None else ""),
        MODEL_KEY: key,
    }
    return await _use(context, person, answers)


async def _use(context: ConsoleContext, person: WebPerson, answers: Mapping[str, str]) -> str:
    found = await _save(context, answers, lambda config: probe_model(config.model, may_call=True))
    await context.record(person, "set up model", answers[MODEL_NAME])
    return f"{found} {answers[MODEL_NAME]} now answers in every chat."


async def add_telegram(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    answers = {TELEGRAM_TOKEN: field_of(form, "token").strip()}
    found = await _save(context, answers, lambda config: probe_telegram(config.telegram))
    await context.record(person, "set up platform", "telegram")
    return f"{found} It is saved, and connects after a restart of the gateway."


async def add_discord(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    answers = {DISCORD_TOKEN: field_of(form, "token").strip()}
    found = await _save(context, answers, lambda config: probe_discord(config.discord))
    await context.record(person, "set up platform", "discord")
    return f"{found} It is saved, and connects after a restart of the gateway."


async def look_around(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    await context.store.write(save_note, OFFLINE_NOTE, str(context.clock.now()))
    return "The offline model answers. “Set up” in the menu leads back to this page."


async def _save(context: ConsoleContext, answers: Mapping[str, str], probe: Callable[[Config], str]) -> str:
    """Test the answers, save them and reload. Return what the test found. Errors never contain the secrets."""
    if context.live.config.store.url is not None:
        raise CommandError(
            "Nodes that share a PostgreSQL database need the same settings. Change the configuration on each node."
        )
    redact = Redactor(tuple(answers[name] for name in SECRETS if answers.get(name)))
    try:
        loaded = await context.preview_settings(answers)
        found = await asyncio.to_thread(probe, loaded.config)
    except (CommandError, ConfigError) as error:
        text = redact(str(error))
        raise CommandError(f"{text}{'' if text.endswith(('.', '?')) else '.'} Nothing was saved.") from None
    try:
        await context.save_settings(answers)
    except ConfigError as error:
        raise CommandError(f"The test succeeded, but the settings cannot be used: {redact(str(error))}") from None
    return redact(found)


PAGE = Page(
    about=ConsolePage(name="start", title="Set up"),
    load=load,
    actions={"model": use_model, "telegram": add_telegram, "discord": add_discord, "look": look_around},
)
