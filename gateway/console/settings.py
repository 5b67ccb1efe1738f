"""Settings: the values in use and where each one came from, and the set-up of a model and the chat platforms."""

import asyncio
from collections.abc import Mapping
from functools import partial

from gateway.config import LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE
from gateway.config.writing import MODEL_BASE_URL, MODEL_KEY, MODEL_NAME, MODEL_PROTOCOL, SECRETS
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.models.selection import known_routes
from gateway.operator.effective import effective_settings, setting_text
from gateway.operator.probes import PROBES
from gateway.operator.providers import find_local_servers, recognise
from hermes_state.chats import Chat, load_chat
from hermes_state.errors import CommandError, ConfigError
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.tools.schedules import ScheduleRow, load_all_schedules
from platforms.console import ConsolePage, SentCommand, Values, WebPerson, platform_name

OFFLINE_NOTE = "offline_model_chosen"
"""Key of the database note that records that the owner chose to try the gateway with the offline model."""


# ---- settings


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    loaded, models = context.live.loaded, context.runtime.models
    words = query.get("words", "").strip().lower()[:100]
    routes = known_routes(loaded.config.model).items()
    return {
        "settings": [
            (key, setting_text(value), source)
            for key, (value, source) in effective_settings(loaded).items()
            if words in key
        ],
        "words": words,
        "models": [(name, route, models.open_circuit(route)) for name, route in routes],
        "tools": context.runtime.agent.offers.registry.by_name.values(),
        "servers": context.servers.statuses(),
        "schedules": await context.store.read(_load_schedules, 200),
        "redact": context.live.redactor(),
    }


def _load_schedules(db: Connection, limit: int) -> list[tuple[ScheduleRow, Chat]]:
    return [(row, load_chat(db, row.chat_id)) for row in load_all_schedules(db, limit)]


async def change_schedule(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> SentCommand:
    number, action = field_of(form, "schedule"), "resume" if form.get("to") == "active" else "pause"
    schedules = await context.store.read(_load_schedules, 1_000)
    found = next(((row, chat) for row, chat in schedules if str(row.id) == number), None)
    if found is None:
        raise CommandError("This schedule no longer exists. Reload the page.")
    row, chat = found
    await context.record(person, f"{action} schedule", f"{row.id} in {chat.key.name}")
    said = f"Schedule {row.id} is {action}d. Its chat receives a message."
    return SentCommand(chat=chat.key, kind=chat.kind, text=f"/schedule {action} {row.id}", said=said)


# ---- set-up


async def is_new(context: ConsoleContext) -> bool:
    """Return True if no model and no platform is configured, and the owner did not choose the offline model."""
    loaded = context.live.loaded
    is_unset = loaded.sources["model.protocol"] == DEFAULT_SOURCE
    if loaded.config.model.protocol != "offline" or not is_unset or loaded.config.bots:
        return False
    return await context.store.read(load_note, OFFLINE_NOTE) is None


async def load_start(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    current, trouble = context.live.loaded, ""
    try:
        saved = await context.preview_settings({})
    except ConfigError as error:
        saved, trouble = current, context.live.redactor()(str(error))
    return {
        "model": current.config.model,
        "trouble": trouble,
        # The gateway probes ports of this machine only here, so only while an admin has this page open.
        "servers": await asyncio.to_thread(find_local_servers),
        "telegram": _state("telegram", current, saved),
        "discord": _state("discord", current, saved),
    }


def _state(platform: str, current: LoadedConfig, saved: LoadedConfig) -> str:
    """Return the state of a platform's tokens: `missing`, `saved` (a restart is needed to use them) or `used`."""
    bots, new = (getattr(loaded.config, platform).bots for loaded in (current, saved))
    return "missing" if not new else "used" if new == bots else "saved"


async def use_model(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    key, address, name = (form.get(field, "").strip() for field in ("key", "address", "model"))
    answers = {MODEL_NAME: name}
    if key or address:
        provider = recognise(key, address)
        if provider is None and not address:
            raise CommandError(
                "This page cannot tell which provider the key belongs to. Open “Another provider or model” and add "
                "the address of the API and the name of the model."
            )
        answers = {
            MODEL_NAME: name or (provider.model if provider is not None else ""),
            MODEL_PROTOCOL: provider.protocol if provider is not None else "",
            MODEL_BASE_URL: address or (provider.base_url if provider is not None else ""),
            MODEL_KEY: key,
        }
        if not answers[MODEL_NAME]:
            raise CommandError("Add the name of the model, as the provider spells it.")
    elif not name or context.live.config.model.protocol == "offline":  # else: another model at the same provider
        raise CommandError("Paste an API key, or add the address of your model server.")
    found = await _save(context, answers, MODEL_NAME)
    await context.record(person, "set up model", answers[MODEL_NAME])
    return f"{found} {answers[MODEL_NAME]} now answers in every chat."


async def add_platform(platform: str, context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    if getattr(context.live.config, platform).accounts:
        raise CommandError(f"{platform_name(platform)} has a list of bots in the configuration. Add the token there.")
    variable = f"HERMES_{platform.upper()}__TOKEN"
    found = await _save(context, {variable: field_of(form, "token").strip()}, variable)
    await context.record(person, "set up platform", platform)
    return f"{found} The token is saved. Restart the gateway to connect."


async def look_around(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    await context.store.write(save_note, OFFLINE_NOTE, str(context.clock.now()))
    return "The offline model answers. To return to this page, choose “Set up” in the menu."


async def _save(context: ConsoleContext, answers: Mapping[str, str], tested: str) -> str:
    """Test the answers, save them and reload. Return the result of the test. Errors never contain the secrets."""
    if context.live.config.store.url is not None:
        raise CommandError(
            "Nodes that share a PostgreSQL database need the same settings. Change the configuration on each node."
        )
    redact = Redactor(tuple(answers[name] for name in SECRETS if answers.get(name)))
    try:
        loaded = await context.preview_settings(answers)
        found = await asyncio.to_thread(PROBES[tested], loaded.config)
    except (CommandError, ConfigError) as error:
        text = redact(str(error))
        raise CommandError(f"{text}{'' if text.endswith(('.', '?')) else '.'} Nothing was saved.") from None
    try:
        await context.save_settings(answers)
    except ConfigError as error:
        raise CommandError(f"The test succeeded, but the settings cannot be used: {redact(str(error))}") from None
    return redact(found)


SETTINGS = Page(about=ConsolePage(name="setup", title="Settings"), load=load, actions={"schedule": change_schedule})
START = Page(
    about=ConsolePage(name="start", title="Set up"),
    load=load_start,
    actions={
        "model": use_model,
        "look": look_around,
        **{platform: partial(add_platform, platform) for platform in ("telegram", "discord")},
    },
)
