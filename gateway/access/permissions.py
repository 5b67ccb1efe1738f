"""Permissions of users for messages, commands, buttons and tools. Only configured or paired people have access.

People are identified by stable ids. A revocation applies from the next event on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum

import msgspec
import structlog

from agent.tools.offers import Policy
from agent.tools.registry import Tool
from gateway.access.clients import CLIENT_PREFIX
from gateway.config import LiveConfig
from gateway.config.settings import Config
from gateway.config.tool_settings import ToolsConfig
from hermes_state.admin.pairings import UserRole, load_admin_chats, load_roles
from hermes_state.aio import retried
from hermes_state.errors import StoreUnavailable
from hermes_state.inbox import queue_steers
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.talk import load_hearing
from hermes_state.values import LOCAL_OWNER, ChatId, ChatKey, ChatKind, InboundMessage, Millis, UserRef

log = structlog.get_logger()

MINUTE_MS = 60_000


class AccessResult(StrEnum):
    ADMITTED = "admitted"
    UNADDRESSED = "unaddressed"
    """Message in a shared chat, but not addressed to the bot."""
    BOT = "bot"
    STRANGER = "stranger"
    """Person without access in a direct chat. The bot explains how to get access."""
    DENIED = "denied"
    """Person without access in a shared chat. The bot does not answer."""


class AccessControl:
    """Checks whether people have access, according to the configuration and the pairings."""

    def __init__(
        self,
        store: Store,
        live: LiveConfig,
        on_loaded: Callable[[Callable[[UserRef], bool]], Awaitable[None]] | None = None,
        failed_accounts: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`on_loaded` is called with `has_access` after each load. It must end the work of people without access."""
        self._store = store
        self._live = live
        self._on_loaded = on_loaded
        self._failed_accounts = failed_accounts
        self._paired: dict[UserRef, UserRole] = {}
        self._hearing: Mapping[ChatKey, bool] = {}
        """Groups in which people have switched the storing of talk on or off."""
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        """Set when the pairings have been loaded again. Each load creates a new event."""
        self.counts: dict[AccessResult, int] = dict.fromkeys(AccessResult, 0)

    async def load(self) -> None:
        """Load the pairings, and keep people without access out of running turns. Retries if the database is down."""
        async with self._loading:  # one load at a time, so that old rows cannot replace newer rows
            await retried(self._load, StoreUnavailable, "access.stale")
        if self._on_loaded is not None:
            await self._on_loaded(self.has_access)

    async def _load(self) -> None:
        self._paired = await self._store.read(load_roles)
        self._hearing = await self._store.read(load_hearing)
        await self._store.write(queue_steers, self.has_access)
        self._changed.set()
        self._changed = asyncio.Event()
        log.debug("access.loaded", paired=len(self._paired))

    async def follow(self, changed: asyncio.Event) -> None:
        """Load the pairings again whenever `changed` is set, until cancelled."""
        while True:
            await changed.wait()
            changed.clear()
            await self.load()

    def role_of(self, ref: UserRef) -> UserRole | None:
        """Return the role of a person, or None if they have no access."""
        access = self._live.config.access
        if ref == LOCAL_OWNER or ref in access.admins:
            return UserRole.ADMIN
        if ref in self._paired:
            return self._paired[ref]
        if ref.startswith("hook:"):
            return UserRole.USER if ref.removeprefix("hook:") in self._live.config.webhooks else None
        return UserRole.USER if access.allow_all or ref in access.allow or ref in access.moderators else None

    def has_access(self, ref: UserRef) -> bool:
        return self.role_of(ref) is not None

    def is_admin(self, ref: UserRef) -> bool:
        return self.role_of(ref) is UserRole.ADMIN

    async def load_role(self, ref: UserRef) -> UserRole | None:
        """Return the role of a person. If they have none, reload the pairings: another node may have changed them."""
        if self.role_of(ref) is None:
            await self.load()
        return self.role_of(ref)

    def may_moderate(self, ref: UserRef) -> bool:
        """Return True if a person can change the conversation of a shared chat."""
        return self.is_admin(ref) or ref in self._live.config.access.moderators

    def role_in(self, chat: ChatKey, kind: ChatKind, sender: UserRef) -> str | None:
        """Return the role that counts for routes to agents: that of the person whose session it is.

        The role is "" in a shared session, where people differ. It is None if `sender` writes to the person's direct
        chat from elsewhere, as webhooks and scripts do: the person is unknown then.
        """
        if kind.is_shared and not chat.user_ref:
            return ""
        person = UserRef(f"{chat.platform}:{chat.user_ref}") if chat.user_ref else sender
        if not person.startswith(f"{chat.platform}:"):
            return None
        role = self.role_of(person)
        is_moderator = role is UserRole.USER and person in self._live.config.access.moderators
        return "moderator" if is_moderator else "" if role is None else role.value

    def hears(self, group: ChatKey) -> bool:
        """Return True if the gateway stores what people say in `group`, which is a chat key without a person."""
        return self._hearing.get(group, self._live.config.groups.context == "on")

    @property
    def hears_somewhere(self) -> bool:
        return self._live.config.groups.context == "on" or any(self._hearing.values())

    async def next_admins(self, platform: str, known: frozenset[str] | None) -> frozenset[str]:
        """Wait until the ids of a platform's admins differ from `known`, then return the new ids."""
        while True:
            changed = self._changed
            paired = (ref for ref, role in self._paired.items() if role is UserRole.ADMIN)
            people = (ref.partition(":") for ref in (*self._live.config.access.admins, *paired))
            admins = frozenset(ident for name, _, ident in people if name == platform)
            if admins != known:
                return admins
            await changed.wait()

    def judge(self, message: InboundMessage) -> AccessResult:
        """Check a sender's access before the message is stored, and count the result."""
        result = self.assess(message)
        self.counts[result] += 1
        return result

    def assess(self, message: InboundMessage) -> AccessResult:
        """Check a sender's access like `judge`, but without counting the result."""
        if message.sender.is_bot:
            return AccessResult.BOT
        if message.chat_kind.is_shared and not message.is_addressed:
            return AccessResult.UNADDRESSED
        if self.role_of(message.sender.ref) is not None:
            return AccessResult.ADMITTED
        return AccessResult.DENIED if message.chat_kind.is_shared else AccessResult.STRANGER

    # ---- tools

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None, agent: str = "") -> str | None:
        """Return the reason why an agent's tool cannot be used in this chat or by this person, or None if it can."""
        if agent not in self._live.loaded.agent_names:  # a turn or command that is older than the reload
            return f"its agent {agent} is no longer configured"
        switch = self._tools(agent).switch_of(tool.name, chat)
        if switch == "off":
            return "it is disabled in this chat"
        if switch == "admins" and person is not None and not self.is_admin(person):
            return "only turns started by an admin can use it"
        return None

    def policy(self, tool: Tool, chat: ChatKey, agent: str = "") -> Policy:
        """Return the approval policy for calls to an agent's tool in this chat."""
        if agent not in self._live.loaded.agent_names:
            return Policy.DENY
        policy = Policy(self._tools(agent).approval_in(chat).policy_of(tool.effect, is_mcp=tool.is_remote))
        is_program = chat.platform == "local" and chat.user_ref.startswith(CLIENT_PREFIX)  # it cannot answer
        return Policy.ASK_ADMIN if is_program and policy is Policy.ASK else policy

    def _tools(self, agent: str) -> ToolsConfig:
        return self._live.loaded.agent(agent).config.tools if agent else self._live.config.tools

    def load_admin_chats(self, db: Connection) -> Sequence[ChatId]:
        """Return the direct chats in which admins can approve requests."""
        return find_admin_chats(self._live.config, db, self._failed_accounts())


class AgentAccess(msgspec.Struct, frozen=True):
    """Access rules for the tools of one agent. Implements `agent.tools.offers.ToolAccess`."""

    access: AccessControl
    agent: str

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        return self.access.refusal(tool, chat, kind, person, self.agent)

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        return self.access.policy(tool, chat, self.agent)

    def is_admin(self, person: UserRef) -> bool:
        return self.access.is_admin(person)

    def load_admin_chats(self, db: Connection) -> Sequence[ChatId]:
        return self.access.load_admin_chats(db)


def find_admin_chats(config: Config, db: Connection, failed: Collection[str] = ()) -> Sequence[ChatId]:
    """Return the direct chats with the configured accounts, preferably not `failed`, in which admins can approve."""
    accounts = [*config.bots, *(["local"] if config.local.enabled else [])]
    return load_admin_chats(db, {*map(UserRef, config.access.admins), LOCAL_OWNER}, accounts, failed)


class RateLimiter:
    """Counts each person's events in windows of fixed length. The first event after a window opens the next window.

    Windows are based on sending times, because messages that arrive together after an outage were not sent together.
    """

    def __init__(self, window_ms: int = MINUTE_MS) -> None:
        self._window_ms = window_ms
        self._windows: dict[UserRef, tuple[Millis, set[str]]] = {}
        """Start time and events of each person's window. The person with the newest event comes last."""

    def full_since(self, message: InboundMessage, limit: int) -> Millis | None:
        """Return the start of the sender's window if it already has `limit` events, or None if the message is accepted.

        A message that was accepted before is accepted again. A `limit` of 0 means no limit.
        """
        if not limit:
            return None
        begun, events = self._windows.pop(message.sender.ref, (message.sent_at, set()))
        if abs(message.sent_at - begun) >= self._window_ms:
            begun, events = message.sent_at, set()
        self._windows[message.sender.ref] = begun, events
        if len(self._windows) > 1_000:
            del self._windows[next(iter(self._windows))]
        if len(events) >= limit and message.event_ref not in events:
            return begun
        events.add(message.event_ref)
        return None
