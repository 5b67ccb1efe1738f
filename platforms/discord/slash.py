"""Slash commands and buttons: the command tree, pressed buttons, and tickets for answers to slash commands."""

import asyncio
import hashlib
import inspect
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import discord
import msgspec
import structlog
from discord import app_commands
from msgspec.structs import replace

from hermes_state.errors import PlatformError, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import Button, InboundMessage, InputKind
from platforms.base import CommandOption, Intake, MenuCommand
from platforms.buttons import ButtonCommandStore
from platforms.discord.client import GatewayClient
from platforms.discord.event_queue import EventQueue

TICKET_SECONDS = 14 * 60.0
"""Lifetime of a ticket, in seconds. Discord accepts answers for 15 minutes; one minute is left for sending."""

COMMAND_CHANGED = "This command has changed. Reload Discord (Ctrl+R, or restart the app), then pick it again."

log = structlog.get_logger(__name__)

Interaction: TypeAlias = discord.Interaction[GatewayClient]
SlashCommand: TypeAlias = app_commands.Command[Any, ..., Any]


async def button_view(commands: ButtonCommandStore, buttons: Sequence[Button]) -> discord.ui.View | None:
    """Return the view with a message's buttons, or None if there are none.

    Raises `StoreUnavailable` if the database is not available.
    """
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    for button in buttons[:25]:
        custom_id = await commands.data_for(button)
        view.add_item(discord.ui.Button(label=_short(button.label, 80), custom_id=custom_id))
    view.stop()  # the SDK can forget the view: `SlashCommands.on_interaction` handles the buttons
    return view


PRIVATE = "p"
"""End of a ticket's name if only the person may see the answer. The name is stored, so it outlives the ticket."""


class Ticket(msgspec.Struct):
    """Permission to answer a slash command in its "thinking" message."""

    interaction: Interaction
    expires_at: float
    """Monotonic time at which the ticket expires, in seconds."""
    answered_by: str | None = None
    """Key of the send that filled the "thinking" message. A repeat of this send can fill it again."""
    deferred: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set once Discord has answered the acknowledgement. Before that, no "thinking" message exists."""
    is_valid: bool = True
    is_private: bool = False
    """True if only the person sees the "thinking" message."""


class TicketRegistry:
    """Tickets of this process, by the name in `InboundMessage.ticket`."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def find(self, name: str | None) -> Ticket | None:
        """Return the ticket with this name if it is still valid."""
        ticket = self._tickets.get(name.removesuffix(PRIVATE)) if name is not None else None
        if ticket is None or not ticket.is_valid or time.monotonic() >= ticket.expires_at:
            return None
        return ticket

    def open(self, interaction: Interaction, *, is_private: bool) -> Ticket | None:
        """Create the ticket of an interaction, or return None if Discord delivered the interaction twice."""
        name = str(interaction.id)
        if name in self._tickets:
            return None
        now = time.monotonic()
        ticket = self._tickets[name] = Ticket(interaction, now + TICKET_SECONDS, is_private=is_private)
        while len(self._tickets) > 1_000 or next(iter(self._tickets.values())).expires_at < now:
            self._tickets.popitem(last=False)
        return ticket


class CommandRefused(app_commands.CheckFailure):
    """The command was refused. The exception's text is the sentence to show to the person."""


class SlashCommands(app_commands.CommandTree[GatewayClient]):
    """Converts one client's slash commands and buttons to command lines. Only the person sees a refusal."""

    def __init__(
        self,
        client: GatewayClient,
        menu: Sequence[MenuCommand],
        *,
        events: EventQueue,
        intake: Intake,
        tickets: TicketRegistry,
        buttons: ButtonCommandStore,
    ) -> None:
        super().__init__(client, allowed_contexts=app_commands.AppCommandContext(guild=True, dm_channel=True))
        self._events = events
        self._intake = intake
        self._tickets = tickets
        self._buttons = buttons
        self._private = {item.name: item.public or "(?!)" for item in menu if item.is_private}
        for item in menu:
            self._add(item)
        client.event(self.on_interaction)

    async def publish(self, store: Store, seconds: float) -> None:
        """Publish changed commands once there is a session. Errors are logged; the next connection tries again."""
        await self.client.had_session.wait()
        payload = msgspec.json.encode([command.to_dict(self) for command in self.get_commands()])
        digest = hashlib.sha256(payload).hexdigest()
        key = f"discord.menu.{self.client.application_id}"
        try:
            if await store.read(load_note, key) == digest:
                return
            async with self.client.calling(seconds):
                await self.sync()
            await store.write(save_note, key, digest)
        except (PlatformError, StoreUnavailable) as error:
            log.warning("discord.menu_unpublished", error=type(error).__name__)
        else:
            log.info("discord.menu_published", commands=len(self.get_commands()))

    # Conversion of the menu to the SDK's commands

    def _add(self, item: MenuCommand) -> None:
        """Add a command. A command with actions becomes a group of sub-commands, such as `/memory me add`."""
        # Everyone sees every command, because Discord does not know people's roles in the gateway. Default permissions
        # would hide admin commands from bot admins without these permissions in the server.
        mark = " (admins)" if item.is_admin_only else ""
        name, description = item.name.lower(), _short(item.description or item.name, 100 - len(mark)) + mark
        if not item.actions:
            self.add_command(self._leaf(name, description, item.options))
            return
        group = app_commands.Group(name=name, description=description)
        for action in item.actions:
            parent, (*path, last) = group, action.words.split()
            for word in path:
                known = parent.get_command(word) or app_commands.Group(
                    name=word, description=description, parent=parent
                )
                assert isinstance(known, app_commands.Group), "no action is a prefix of another action"
                parent = known
            parent.add_command(self._leaf(last, _short(action.description), action.options))
        self.add_command(group)

    def _leaf(self, name: str, description: str, options: Sequence[CommandOption]) -> SlashCommand:
        async def run(interaction: Interaction, **_: object) -> None:
            await self._take(interaction)

        # The SDK reads the options of a command from the signature of its function.
        parameters = [inspect.Parameter("interaction", inspect.Parameter.POSITIONAL_ONLY)]
        for one in options:
            annotation = app_commands.Range[int, 1, 999_999_999] if one.is_number else str
            default = inspect.Parameter.empty if one.is_required else None
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(one.name, kind, annotation=annotation, default=default))
        cast(Any, run).__signature__ = inspect.Signature(parameters)
        app_commands.describe(**{one.name: _short(one.description) for one in options})(run)
        app_commands.choices(**{one.name: _choices(one.choices) for one in options if one.choices})(run)
        app_commands.autocomplete(**{one.name: self._suggest for one in options if one.has_suggestions})(run)
        command: SlashCommand = app_commands.Command(name=name, description=description, callback=run)
        command.add_check(self._check)
        return command

    # Conversion of an interaction to a command line

    async def interaction_check(self, interaction: Interaction) -> bool:
        """Make the SDK's own responses, such as suggestions, use the client's base URL."""
        self.client.use_own_addresses()
        return True

    async def _check(self, interaction: Interaction) -> bool:
        """Apply the gateway's rules. Contains no `await`, so commands keep their order.

        Raises `CommandRefused` if the command is not allowed here.
        """
        interaction.extras["event"] = self._read(interaction, _command_line(interaction), InputKind.SLASH)
        return True

    async def _take(self, interaction: Interaction) -> None:
        """Put a command into the event queue before awaiting anything, then acknowledge it."""
        event = interaction.extras["event"]
        is_private = self._is_private(interaction, event.text)
        self._events.put(replace(event, ticket=f"{interaction.id}{PRIVATE * is_private}"))
        await self._defer(interaction, is_private=is_private, thinking=True)

    def _is_private(self, interaction: Interaction, line: str) -> bool:
        """Return True if only the person should see the answer. Direct chats have no hidden messages."""
        name, _, argument = line[1:].partition(" ")
        public = self._private.get(name)
        is_public = public is None or re.fullmatch(public, argument.strip(), re.IGNORECASE | re.DOTALL) is not None
        return interaction.guild_id is not None and not is_public

    async def _defer(self, interaction: Interaction, *, is_private: bool, thinking: bool) -> None:
        """Acknowledge an interaction and open its ticket. `is_private` cannot change afterwards."""
        if (ticket := self._tickets.open(interaction, is_private=is_private)) is None:
            return  # Discord would refuse a second acknowledgement, and the first is still valid
        try:
            # Without an acknowledgement the command still runs, and its answer is an ordinary message.
            defer = partial(interaction.response.defer, ephemeral=is_private and thinking, thinking=thinking)
            ticket.is_valid = await self._answer(defer)
        finally:
            ticket.deferred.set()

    async def _suggest(self, interaction: Interaction, written: str) -> list[app_commands.Choice[str]]:
        event = self.client.reader.interaction(interaction, _command_line(interaction), InputKind.SLASH)
        found = self._intake.suggestions(event) if event is not None else ()
        fitting = [one for one in found if written.lower() in one.lower()]
        return _choices([one for one in fitting if len(one) <= 100][:25])

    async def on_interaction(self, interaction: Interaction) -> None:
        """Acknowledge a pressed button, look up its command, and pass it on. `_take` handles slash commands."""
        if interaction.type is not discord.InteractionType.component:
            return
        data, message = interaction.custom_id or "", interaction.message
        kind = self._buttons.kind_of(data)
        # Only the interaction can edit a private message. A public page is edited like any other message.
        is_page = kind is InputKind.PAGE and message is not None and message.flags.ephemeral
        line = data.partition(":")[2]  # a hash does not match any command name
        is_private = is_page or (kind is InputKind.BUTTON and self._is_private(interaction, line))
        if is_private:
            await self._defer(interaction, is_private=True, thinking=not is_page)
        else:
            await self._answer(interaction.response.defer)
        try:
            text = await self._buttons.command_of(data)
            if text is not None:
                event, ticket = self._read(interaction, text, kind), f"{interaction.id}{PRIVATE}"
                self._events.put(replace(event, ticket=ticket if is_private else None))
        except StoreUnavailable:
            log.warning("discord.button_lost")
        except CommandRefused as refusal:
            await self._answer(partial(interaction.followup.send, str(refusal), ephemeral=True))

    async def on_error(self, interaction: Interaction, error: app_commands.AppCommandError) -> None:
        """Tell the person why a command did not run. Other people do not see this message."""
        if isinstance(error, app_commands.CommandInvokeError):
            log.error("discord.command_crashed", exc_info=error)
            return
        text = str(error) if isinstance(error, CommandRefused) else COMMAND_CHANGED
        await self._answer(partial(interaction.response.send_message, text, ephemeral=True))

    def _read(self, interaction: Interaction, text: str, via: InputKind) -> InboundMessage:
        """Convert a command line to an event. Raises `CommandRefused` if the command is not allowed here."""
        event = self.client.reader.interaction(interaction, text, via)
        refusal = "I cannot run commands here." if event is None else self._intake.refusal(event)
        if event is None or refusal is not None:
            raise CommandRefused(refusal)
        return event

    async def _answer(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Answer an interaction, which Discord requires within three seconds. On failure, log it and return False."""
        try:
            async with self.client.calling(3.0):
                await call()
        except PlatformError as error:
            log.warning("discord.interaction_unacknowledged", error=type(error).__name__)
            return False
        return True


def _command_line(interaction: Interaction) -> str:
    """Return the command as the text that a user would have typed.

    Raises `CommandSignatureMismatch` if the user's Discord client sent it from an outdated menu.
    """
    command, given = interaction.command, interaction.namespace
    assert isinstance(command, app_commands.Command), "the menu has only slash commands"
    names = [parameter.name for parameter in command.parameters]
    if any(name not in names for name, _ in given):
        raise app_commands.CommandSignatureMismatch(command)
    values = [str(given[name]).strip() for name in names if name in given]
    return " ".join([f"/{command.qualified_name}", *filter(None, values)])


def _choices(values: Sequence[str]) -> list[app_commands.Choice[str]]:
    return [app_commands.Choice(name=value, value=value) for value in values]


def _short(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
