"""Slash commands and buttons: the published menu, the pressed button's command, the ticket to answer in its place."""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import discord
import msgspec
import structlog
from discord.http import HTTPClient, Route

from hermes_state.errors import PlatformError, StoreUnavailable
from hermes_state.store.meta import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import Button, InputKind
from platforms.base import Intake, MenuCommand
from platforms.buttons import ButtonCommandStore
from platforms.discord.client import GatewayClient
from platforms.discord.errors import rest_errors
from platforms.discord.event_queue import EventQueue

TICKET_SECONDS = 14 * 60.0
"""Lifetime of a ticket, in seconds: Discord takes answers for 15 minutes; a minute is left for sending."""

DEFER_SECONDS = 3.0
"""Seconds after which Discord forgets an interaction that was not acknowledged."""

MAX_TICKETS = 1_000
DESCRIPTION_LENGTH = 100
LABEL_LENGTH = 80
CUSTOM_ID_LENGTH = 100
BUTTONS_A_ROW = 5
MAX_ROWS = 5

MESSAGE = 4
DEFERRED_MESSAGE = 5
DEFERRED_UPDATE = 6
"""Interaction callback types: an answer, "an answer follows" and "seen, nothing to show"."""

EPHEMERAL = 64
"""Flag of a message that only its addressee sees, and nothing keeps."""

FOLLOW_UP = "/webhooks/{webhook_id}/{webhook_token}"
NOT_HERE = "I cannot be asked here."

STRING_OPTION = 3
ACTION_ROW, BUTTON, SECONDARY = 1, 2, 2

log = structlog.get_logger(__name__)


# The menu


async def publish_menu(http: HTTPClient, store: Store, application_id: int, menu: Sequence[MenuCommand]) -> None:
    """Publish the menu unless it is the one published last. Trouble is logged: the next connection tries again."""
    payload: list[dict[str, object]] = [
        {
            "name": item.name.lower(),
            "type": 1,
            "description": _description(item),
            "contexts": [0, 1],  # servers and the chat with the bot
            "options": [] if item.argument is None else [_option(item.argument)],
        }
        for item in menu
    ]
    digest = hashlib.sha256(msgspec.json.encode(payload)).hexdigest()
    key = f"discord.menu.{application_id}"
    try:
        if await store.read(load_note, key) == digest:
            return
        with rest_errors():
            await http.bulk_upsert_global_commands(application_id, payload)
        await store.write(save_note, key, digest)
    except (PlatformError, StoreUnavailable) as error:
        log.warning("discord.menu_unpublished", error=type(error).__name__)
    else:
        log.info("discord.menu_published", commands=len(payload))


def _description(item: MenuCommand) -> str:
    """Description of a command. Everybody sees every command: Discord shows none by people's roles with us."""
    mark = " (admins)" if item.is_admin_only else ""
    return _short(item.description or item.name, DESCRIPTION_LENGTH - len(mark)) + mark


def _option(argument: str) -> dict[str, object]:
    """Arguments of a command: one optional text."""
    name = re.sub(r"[^\w-]+", "_", argument.lower()).strip("_")[:32] or "text"
    return {"name": name, "description": _short(argument, DESCRIPTION_LENGTH), "type": STRING_OPTION, "required": False}


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# Buttons


def button_commands(store: Store) -> ButtonCommandStore:
    """The commands behind the buttons of Discord."""
    return ButtonCommandStore(
        store=store,
        note_prefix="discord.button.",
        hash_mark="n:",
        fits=lambda data: len(data) <= CUSTOM_ID_LENGTH,
        digest=lambda command: hashlib.blake2s(command, digest_size=16).hexdigest(),
    )


async def components(commands: ButtonCommandStore, buttons: Sequence[Button]) -> list[dict[str, object]]:
    """Rows of buttons as Discord's API takes them. Raises `StoreUnavailable`."""
    rendered: list[dict[str, object]] = []
    for button in buttons[: BUTTONS_A_ROW * MAX_ROWS]:
        custom_id = await commands.data_for(button.command)
        label = _short(button.label, LABEL_LENGTH)
        rendered.append({"type": BUTTON, "style": SECONDARY, "label": label, "custom_id": custom_id})
    rows = [rendered[start : start + BUTTONS_A_ROW] for start in range(0, len(rendered), BUTTONS_A_ROW)]
    return [{"type": ACTION_ROW, "components": row} for row in rows]


# Interactions and the right to answer them in their place


@dataclass(slots=True)
class Ticket:
    """Right to answer one slash command where it was given."""

    application_id: int
    token: str
    expires_at: float
    """End of the ticket, in monotonic seconds."""
    answered_by: str | None = None
    """Key of the send that filled the "thinking" message; its repeats fill it again."""
    deferred: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once Discord took the acknowledgement (or did not): there is nothing to fill before."""
    is_valid: bool = True


class TicketRegistry:
    """Tickets of this process, by the name that `InboundMessage.ticket` carries."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def find(self, name: str | None) -> Ticket | None:
        """Ticket of this name, if it is still good for an answer."""
        ticket = self._tickets.get(name) if name is not None else None
        if ticket is None or not ticket.is_valid or time.monotonic() >= ticket.expires_at:
            return None
        return ticket

    async def defer(self, http: HTTPClient, interaction: discord.Interaction) -> None:
        """Acknowledge an interaction, which Discord wants within three seconds; never raises for trouble."""
        if str(interaction.id) in self._tickets:
            return  # it came twice: Discord would refuse a second acknowledgement, and the first one is still good
        is_command = interaction.type is discord.InteractionType.application_command
        ticket = Ticket(interaction.application_id, interaction.token, time.monotonic() + TICKET_SECONDS)
        if is_command:
            self._tickets[str(interaction.id)] = ticket
            while len(self._tickets) > MAX_TICKETS:
                self._tickets.popitem(last=False)
        try:
            # Without it the command runs all the same, its answer is an ordinary message.
            ticket.is_valid = await _acknowledge(http, interaction, DEFERRED_MESSAGE if is_command else DEFERRED_UPDATE)
        finally:
            ticket.deferred.set()


async def _acknowledge(
    http: HTTPClient, interaction: discord.Interaction, kind: int, data: Mapping[str, object] | None = None
) -> bool:
    """Acknowledge an interaction, which Discord wants within three seconds; False, and logged, when it fails."""
    address = "/interactions/{webhook_id}/{webhook_token}/callback"
    route = Route("POST", address, webhook_id=interaction.id, webhook_token=interaction.token)
    return await _request(http, route, {"type": kind} if data is None else {"type": kind, "data": data})


async def _request(http: HTTPClient, route: Route, payload: Mapping[str, object]) -> bool:
    try:
        with rest_errors():
            async with asyncio.timeout(DEFER_SECONDS):
                await http.request(route, json=payload)
    except PlatformError as error:
        log.warning("discord.interaction_unacknowledged", error=type(error).__name__)
        return False
    return True


def _ephemeral(text: str) -> dict[str, object]:
    return {"content": text, "flags": EPHEMERAL, "allowed_mentions": {"parse": []}}


@dataclass(frozen=True, repr=False, slots=True)
class InteractionHandler:
    """Handler of one client's slash commands and buttons: acknowledges them and hands them over."""

    client: GatewayClient
    events: EventQueue
    intake: Intake
    tickets: TicketRegistry
    buttons: ButtonCommandStore

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        """Take an interaction. A command is handed over before anything is awaited; a button has to look up its own.

        What is refused is told only to whoever asked, and nothing is kept of it.
        """
        http, refusal = self.client.http, None
        if interaction.type is discord.InteractionType.application_command:
            refusal = self._take(interaction, _command_line(interaction), InputKind.SLASH)
        elif interaction.type is not discord.InteractionType.component:
            return
        if refusal is not None:
            await _acknowledge(http, interaction, MESSAGE, _ephemeral(refusal))
            return
        await self.tickets.defer(http, interaction)
        if interaction.type is discord.InteractionType.component:
            await self._press(interaction)

    async def _press(self, interaction: discord.Interaction) -> None:
        try:
            text = await self.buttons.command_of(str(_data(interaction).get("custom_id", "")))
        except StoreUnavailable:
            log.warning("discord.button_lost")
            return
        refusal = self._take(interaction, text, InputKind.BUTTON) if text is not None else None
        if refusal is not None:
            application = interaction.application_id
            route = Route("POST", FOLLOW_UP, webhook_id=application, webhook_token=interaction.token)
            await _request(self.client.http, route, _ephemeral(refusal))

    def _take(self, interaction: discord.Interaction, text: str, via: InputKind) -> str | None:
        """Hand a command over; a sentence where it is refused instead."""
        event = self.client.reader.interaction(interaction, text, via)
        if event is None:
            return NOT_HERE
        refusal = self.intake.refusal(event)
        if refusal is None:
            self.events.put(event)
        return refusal


def _data(interaction: discord.Interaction) -> dict[str, object]:
    return dict(interaction.data or {})


def _command_line(interaction: discord.Interaction) -> str:
    data = _data(interaction)
    options = data.get("options")
    values = [str(option.get("value", "")).strip() for option in options] if isinstance(options, list) else []
    return " ".join([f"/{data['name']}", *(value for value in values if value)])
