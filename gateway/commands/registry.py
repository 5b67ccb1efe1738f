"""Command registry: the types that handlers use, and parsing, help and menus for all platforms."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import tzinfo
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from agent.tools.mcp.servers import ServerRegistry
from gateway.access.permissions import AccessControl
from gateway.models.selection import Runtime
from gateway.operator.forgetting import Forgetter
from gateway.outbound.adapters import AdapterRegistry
from gateway.turns.lanes import LaneRegistry
from hermes_state import outbox, sessions
from hermes_state.admin.pairings import UserRole
from hermes_state.aio import cancel_all
from hermes_state.chats import Chat
from hermes_state.inbox import InboxRow
from hermes_state.outbox import OfferTopic, Reply
from hermes_state.redaction import Redactor
from hermes_state.sessions import Session
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import closest, shortened
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    Button,
    ChatId,
    ChatKey,
    ChatKind,
    Clock,
    ConversationRef,
    InboxId,
    Millis,
    SessionId,
    UserRef,
)
from platforms.base import CommandAction, CommandOption, CommandPlace, MenuCommand

T = TypeVar("T")


class CommandKind(StrEnum):
    CONTROL = "control"
    """Runs immediately, even during a turn. `/stop` and `/status` run even while the database cannot be written."""
    READ = "read"
    """Runs immediately, even during a turn."""
    CHANGE = "change"
    """Waits in the chat's queue, so it never runs during a turn."""
    MESSAGE = "message"
    """Adds its text to the current or next turn. Without text, it runs like a `read` command."""


class CommandReply(msgspec.Struct, frozen=True, kw_only=True):
    markdown: str
    buttons: tuple[Button, ...] = ()
    other_chat: ChatId | None = None
    """Another chat for which the command's transaction also stored a reply."""
    on_commit: Callable[[], object] | None = None
    offer: OfferTopic | None = None
    """Topic of the buttons if they apply only for a time."""
    is_urgent: bool = False
    """True to send this reply before earlier unsent replies."""


Apply: TypeAlias = Callable[[Connection, Millis], "CommandReply | str | RunningTurn"]
"""Effect of a command inside its transaction. A `CommandError` rolls the effect back and becomes the reply.

If the effect opens a turn, it returns the turn, which belongs to the command's inbox row and runs next. The transaction
locks the command's chat. Any other lock must be declared. See `store.locks`.
"""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a command, determined after all reads and network calls."""

    apply: Apply
    after: Callable[[], Awaitable[None]] | None = None
    """Called after the transaction, even if the transaction failed."""
    turns_page: bool = False
    """True if the reply replaces the message whose button was pressed."""


class TaskRegistry:
    """Running tasks of slow commands, such as `/compress`, by the inbox row of the command."""

    def __init__(self) -> None:
        self._running: dict[InboxId, asyncio.Task[Any]] = {}  # Any: only the caller of `run` knows the result type

    async def run(self, command_id: InboxId, work: Coroutine[Any, Any, T]) -> T | None:
        """Run `work` and return its result, or None if it was stopped. Cancelling this call cancels `work`."""
        task = self._running[command_id] = asyncio.create_task(work, name=f"work-{command_id}")
        try:
            await asyncio.wait({task})
        finally:
            del self._running[command_id]
            await cancel_all([task])
        return None if task.cancelled() else task.result()

    def stop(self, command_id: InboxId) -> None:
        """Cancel the command's task if it runs in this process."""
        if command_id in self._running:
            self._running[command_id].cancel()


class CommandContext(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    runtime: Runtime
    access: AccessControl
    lanes: LaneRegistry
    clock: Clock
    adapters: AdapterRegistry
    registry: "CommandRegistry"
    deliver: Callable[[ChatId], None]
    servers: ServerRegistry
    reschedule: Callable[[], None] = lambda: None
    remove_deleted: Callable[[], None] = lambda: None
    """Starts the removal of deleted chats, conversations and people."""
    forgetter: Forgetter
    peer_line: Callable[[], str | None] = lambda: None
    """Returns the `/status` line about this cluster node, or None for a single daemon."""
    tasks: TaskRegistry = msgspec.field(default_factory=TaskRegistry)


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    context: CommandContext
    row: InboxRow
    chat: Chat
    role: UserRole
    argument: str

    @property
    def is_in_charge(self) -> bool:
        """True if the sender controls the whole chat, because the chat is private or the sender is an admin."""
        return self.role is UserRole.ADMIN or not self.chat.kind.is_shared

    @property
    def zone(self) -> tzinfo | None:
        """Time zone for times in chats, or None for the server's zone."""
        name = self.context.runtime.config.agent.time_zone
        return ZoneInfo(name) if name is not None else None

    @property
    def redactor(self) -> Redactor:
        return self.context.runtime.live.redactor()

    @property
    def reachable_chat(self) -> ChatId | None:
        """The only chat whose contents a reply can show. None in a direct chat, where any chat is allowed."""
        return self.chat.id if self.chat.kind.is_shared else None

    async def load_open_session(self) -> Session | None:
        """Return the session for the chat's next message, or None if that message will open a new session."""
        return await self.context.store.read(sessions.load_open, self.chat.id)

    def conversation(self, session: Session) -> ConversationRef:
        """Return a reference to a session's conversation for the agent. It includes this chat and its kind."""
        chat = self.chat
        return ConversationRef(chat_id=chat.id, lineage_id=session.lineage_id, chat=chat.key, chat_kind=chat.kind)

    def number(self, default: int) -> int | None:
        """Return the argument as a positive number, `default` if it is empty, or None if it is not a number."""
        if not self.argument:
            return default
        # Nine digits are more than any real count needs. The limit keeps huge input cheap to parse.
        return (int(self.argument[:9]) or None) if self.argument.isdecimal() else None

    async def acknowledge(self, markdown: str) -> None:
        """Reply that the command takes a while. Do nothing for a slash command: the platform shows its progress."""
        if self.row.payload.ticket is not None:
            return
        reply = reply_to(self.row, self.chat, CommandReply(markdown=markdown), f"inbox:{self.row.id}:begun")
        await self.context.store.write(outbox.enqueue, reply, self.context.clock.now())
        self.context.deliver(self.chat.id)


def reply_to(row: InboxRow, chat: Chat, reply: CommandReply, dedupe_key: str) -> Reply:
    return Reply(
        chat_id=chat.id,
        markdown=reply.markdown,
        dedupe_key=dedupe_key,
        reply_to=row.message_ref if chat.kind.is_shared else None,
        ticket=row.payload.ticket,
        buttons=reply.buttons,
        is_urgent=reply.is_urgent,
    )


Handler: TypeAlias = Callable[[CommandRequest], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    kind: CommandKind
    handler: Handler
    description: str
    options: tuple[CommandOption, ...] = ()
    _: KW_ONLY
    actions: tuple[CommandAction, ...] = ()
    """Sub-commands. One must act like the command without an argument, because some menus show only sub-commands."""
    suggest: Callable[[Runtime], Sequence[str]] = lambda _runtime: ()
    aliases: tuple[str, ...] = ()
    place: CommandPlace = "anywhere"
    is_admin_only: bool = False
    is_private: bool = False
    """True if only the sender needs the reply. Commands of the kind `read` are always private."""
    moderated: str | None = None
    """Regular expression for arguments that only admins and moderators can use in a shared chat."""
    unstored: Callable[[CommandContext, ChatKey], str] | None = None
    """Returns the reply while the database cannot be written. None if the command must wait for the database."""

    @property
    def argument(self) -> str | None:
        """Syntax of the argument, such as `[once|session|always]` or `<id>`. None if the command has no argument."""
        if self.actions:
            return f"[{'|'.join(action.words for action in self.actions)}]"
        names = ((one, "|".join(one.choices) or one.name) for one in self.options)
        return " ".join(f"<{name}>" if one.is_required else f"[{name}]" for one, name in names) or None

    def refusal(
        self, argument: str, access: AccessControl, person: UserRef, chat: ChatKey, kind: ChatKind
    ) -> str | None:
        """Return the reply that refuses this command, or None if this person can use it in this chat."""
        if self.is_admin_only and access.role_of(person) is not UserRole.ADMIN:
            return f"Only admins can use /{self.name}."
        is_for_all = kind.is_shared and not chat.user_ref
        if self.moderated is None or not is_for_all or access.may_moderate(person):
            return None
        if re.fullmatch(self.moderated, argument, re.IGNORECASE | re.DOTALL) is None:
            return None
        return f"In a shared chat, only admins and moderators (`access.moderators`) can do this with /{self.name}."


class ParsedCommand(NamedTuple):
    name: str
    argument: str


def parse(text: str) -> ParsedCommand | None:
    """Return the command in a message, or None for an ordinary message, such as the path `/etc/hosts`."""
    match = re.fullmatch(r"/([A-Za-z][A-Za-z0-9_-]{0,31})(?:\s+(.*))?", text.strip(), re.DOTALL)
    return ParsedCommand(match[1].lower(), (match[2] or "").strip()) if match else None


def say(markdown: str, *buttons: Button) -> CommandResult:
    """Return the effect of a command that only replies."""
    return CommandResult(apply=lambda _db, _now: CommandReply(markdown=markdown, buttons=buttons))


def page_buttons(command: str, page: int, has_more: bool) -> tuple[Button, ...]:
    """Return the buttons below a page of a list. Each button replaces the page with the one before or after it."""
    turns = (("Back", page - 1, page > 1), ("More", page + 1, has_more))
    return tuple(
        Button(label=label, command=f"{command} {number}", turns_page=True) for label, number, exists in turns if exists
    )


def set_in_session(
    request: CommandRequest, write: Callable[[Connection, SessionId, T], None], value: T, text: str
) -> CommandResult:
    """Return the effect of a command that stores `value` in the chat's current conversation and replies with `text`."""

    def apply(db: Connection, now: Millis) -> str:
        write(db, sessions.ensure_active(db, request.chat.id, now).id, value)
        return text

    return CommandResult(apply=apply)


def transaction(apply: Callable[[CommandRequest, Connection, Millis], CommandReply | str | RunningTurn]) -> Handler:
    """Return the handler of a command that consists of a single transaction."""

    async def handle(request: CommandRequest) -> CommandResult:
        return CommandResult(apply=partial(apply, request))

    return handle


CommandGroup: TypeAlias = tuple[str, str, str, str]
"""Group of commands in `/help`: its title, the names of the commands, an example, and what the example does."""


class CommandRegistry:
    """All commands: by name and alias, in the order of the menus, and in the groups of `/help`."""

    def __init__(self, commands: Iterable[Command], groups: Sequence[CommandGroup] = ()) -> None:
        self.commands = tuple(commands)
        self.groups = groups
        self.by_name = {name: command for command in self.commands for name in (command.name, *command.aliases)}

    def resolve(self, text: str, is_literal: bool) -> tuple[ParsedCommand | None, Command | None]:
        """Return the parsed command line and its command. Both are None for ordinary text and if `is_literal`."""
        parsed = None if is_literal else parse(text)
        return parsed, self.by_name.get(parsed.name) if parsed is not None else None

    def menu(self) -> list[MenuCommand]:
        return [
            MenuCommand(
                name=command.name,
                description=command.description.replace("`", ""),  # menus show plain text
                argument=command.argument,
                options=command.options,
                actions=command.actions,
                is_admin_only=command.is_admin_only,
                is_private=command.is_private or command.kind is CommandKind.READ,
                public=command.moderated,  # what only some people may do changes the chat for all
                place=command.place,
            )
            for command in self.commands
        ]

    def unknown(self, name: str) -> str:
        """Return the reply to a command that does not exist."""
        meant = closest(name, self.by_name)
        question = f" Did you mean /{meant}?" if meant is not None else ""
        return f"There is no command /{name}.{question} /help lists all commands."

    def help(self, kind: ChatKind, *, is_admin: bool) -> str:
        """Return the text of `/help` as Markdown: the commands that a person can use in this kind of chat."""
        elsewhere, parts = "direct" if kind.is_shared else "groups", []
        for title, names, example, effect in self.groups:
            group = [self.by_name[name] for name in names.split()]
            shown = [one for one in group if one.place != elsewhere and (is_admin or not one.is_admin_only)]
            if shown:
                listed = " ".join(f"/{one.name}" for one in shown)
                parts.append(f"**{title}**\n{listed}\n`{example}` {effect}.")
        return "\n\n".join([*parts, "`/help schedule` explains one command."])

    def explain(self, name: str, *, is_admin: bool) -> str:
        """Return the explanation of one command for `/help <command>`."""
        command = self.by_name.get(name.removeprefix("/").lower())
        if command is None:
            return self.unknown(shortened(name.removeprefix("/"), 32))
        if command.is_admin_only and not is_admin:
            return f"Only admins can use /{command.name}."
        also = "".join(f", `/{alias}`" for alias in command.aliases)
        lines = [f"`/{' '.join(filter(None, (command.name, command.argument)))}`{also}: {command.description}."]
        for action in command.actions:
            words = " ".join([command.name, action.words, *(f"<{option.name}>" for option in action.options)])
            lines.append(f"- `/{words}`: {action.description}")
        lines += [f"- `{option.name}`: {option.description}" for option in command.options]
        if command.moderated is not None:
            lines.append("In a shared chat, only admins and moderators can use some of this.")
        for _, _, example, effect in self.groups:
            if example[1:].split()[0] == command.name:
                lines.append(f"Example: `{example}` {effect}.")
        return "\n".join(lines)
