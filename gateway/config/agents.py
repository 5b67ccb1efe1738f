"""Agents by name, and the routes that select the agent of a chat.

An agent is the top-level configuration with some keys replaced. A chat without a route has the agent with the name "".
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, SecretStr

from gateway.config.blocks import BaseConfig, checked_block, did_you_mean
from gateway.config.tool_settings import places_of
from hermes_state.agents import UNNAMED
from hermes_state.redaction import is_secret_name
from hermes_state.setting_types import AnyCase, FrozenBlock, keyed, listed
from hermes_state.values import ChatKey, ChatScope

AGENT_BLOCKS = ("tools", "memory", "compression", "hygiene", "context")
"""Blocks of the configuration that an agent can override."""
AGENT_CAPS = ("daily_cap", "chat_daily_cap", "conversation_cap")
"""Keys of `costs` that an agent can set."""
OWN_KEYS = ("persona", "model", "skills", "shared_notes")
"""Keys of an agent that are not keys of the configuration."""

ROLES = ("admin", "moderator", "user")
"""Roles in the gateway that a route can name."""

BY_ROUTE = "auto"
"""Word with which `/agent` lets the routes choose the agent again."""

_NAME = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"


def _masked(value: object, name: str = "") -> object:
    """Return a value with secrets wrapped in `SecretStr`."""
    if isinstance(value, Mapping):
        is_secret = name == "extra_headers"
        return FrozenBlock({key: _masked(one, "token" if is_secret else str(key)) for key, one in value.items()})
    if isinstance(value, list):
        return tuple(_masked(one) for one in value)
    return SecretStr(value) if isinstance(value, str) and is_secret_name(name) else value


def unmasked(value: object) -> Any:  # Any: a value from YAML
    """Return a value of an agent's block as it was written."""
    if isinstance(value, Mapping):
        return {key: unmasked(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [unmasked(one) for one in value]
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _agents(value: object) -> Mapping[str, object]:
    """Return a mapping from name to block. In an environment variable, it is written as JSON."""
    found: dict[str, object] = {}
    for name, block in keyed(value).items():
        if not isinstance(name, str) or re.fullmatch(_NAME, name) is None:
            raise ValueError(
                f"{name!r} cannot be the name of an agent: use at most 32 of the characters a-z, 0-9 and -"
            )
        if name == BY_ROUTE:
            raise ValueError(f"{name!r} is reserved for `/agent {BY_ROUTE}`: choose another name")
        if not isinstance(block, Mapping | None):
            raise ValueError(f"{name} must be a block with keys such as persona and model")
        if name == UNNAMED and not (block or {}).keys() <= {"shared_notes"}:
            raise ValueError(f"{name} is the agent at the top level: here it can have only the key shared_notes")
        found[name] = _masked(block or {})
    return found


Agents: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_agents)]


def _guild(value: str) -> str:
    if not re.fullmatch(r"\d*", value, re.ASCII):
        raise ValueError("must be the id of a Discord server, a number that Discord shows with Copy Server ID")
    return value


def _role(value: str) -> str:
    if value not in ROLES and not re.fullmatch(r"\d*", value, re.ASCII):
        raise ValueError(
            "must be admin, moderator, user, or the id of a Discord role, a number that Discord shows with Copy Role ID"
        )
    return value


class AgentRoute(BaseConfig):
    """Rule that selects an agent. Every key that is set must match."""

    agent: str
    chat: str = ""
    account: str = ""
    guild: Annotated[str, AfterValidator(_guild)] = ""
    role: Annotated[str, AnyCase, AfterValidator(_role)] = ""

    @property
    def selector(self) -> tuple[str, str, str, str]:
        return self.chat, self.account, self.guild, self.role

    @property
    def has_discord_role(self) -> bool:
        return self.role.isdigit()

    @property
    def text(self) -> str:
        """The route as text, such as `chat telegram:-100123, role admin`."""
        named = zip(("chat", "account", "guild", "role"), self.selector, strict=True)
        return ", ".join(f"{key} {value}" for key, value in named if value) or "all chats"


def _rows(value: object) -> Sequence[object]:
    rows = listed(value)
    if not isinstance(rows, list | tuple):
        raise ValueError("must be a list of blocks with agent, and with chat, account, guild or role")
    return rows


def _route(value: object) -> AgentRoute:
    texts = {key: str(one) for key, one in keyed(value).items() if one is not None}
    if "agent" not in texts:
        raise ValueError("agent is missing: set it to the name of an agent")
    return checked_block(AgentRoute, texts, "route", AgentRoute.model_fields)


Routes: TypeAlias = Annotated[tuple[Annotated[AgentRoute, BeforeValidator(_route)], ...], BeforeValidator(_rows)]


def route_for_chat(routes: Sequence[AgentRoute], chat: ChatKey, scope: ChatScope, role: str = "") -> AgentRoute | None:
    """Return the most specific route that matches, or None.

    A thread or topic is more specific than its channel or group. Then come the Discord role, the server, the account,
    the platform, and the role in the gateway. `role` is that role of the person whose session it is, or "" if several
    people share the session.
    """
    places = [*places_of(chat, scope.parent_ref)]
    roles = [role, *reversed(scope.roles)] if chat.user_ref else [role]

    def matches(route: AgentRoute) -> bool:
        is_there = route.chat in ("", *places) and route.account in ("", chat.account)
        return is_there and route.guild in ("", scope.guild_ref) and route.role in ("", *roles)

    def rank(route: AgentRoute) -> tuple[int, int, bool, bool, int, bool]:
        place = len(places) - places.index(route.chat) if route.chat else 0
        discord_role = roles.index(route.role) if route.has_discord_role else 0
        chat_place = place if ":" in route.chat else 0
        return chat_place, discord_role, bool(route.guild), bool(route.account), place, bool(route.role)

    return max(filter(matches, routes), key=rank, default=None)


def route_problems(
    routes: Sequence[AgentRoute], agents: Mapping[str, object], accounts: Sequence[str], lines: Sequence[str]
) -> Iterator[str]:
    """Yield a message for each route with an unknown agent or account, or that never matches, and for equal routes.

    `lines` are the positions of the routes in the configuration.
    """
    seen = defaultdict[tuple[str, ...], list[str]](list)
    for route, line in zip(routes, lines, strict=True):
        known = (UNNAMED, *agents)
        if route.agent not in known:
            meant = did_you_mean(route.agent, known) or f"; configured agents: {', '.join(known)}"
            yield f"{line}: routes: there is no agent {route.agent!r}{meant}"
        for account in (route.account, route.chat.partition(":")[0]):
            if account and account not in accounts:
                meant = did_you_mean(account, accounts) or f"; accounts: {', '.join(accounts)}"
                yield f"{line}: routes: there is no account {account!r}{meant}"
        yield from (f"{line}: routes: {why}" for why in _mismatches(route))
        elsewhere = next((name for name in (route.chat, route.account) if name and not name.startswith("discord")), "")
        if elsewhere and (route.guild or route.has_discord_role):
            what = f"guild {route.guild}" if route.guild else f"role {route.role}"
            yield f"{line}: routes: {what} is on Discord and {elsewhere} is not, so nothing matches: remove one of them"
        seen[route.selector].append(line)
    for found in seen.values():
        if len(found) > 1:
            yield f"{found[0]} and {found[1]}: routes: both routes match the same messages: remove one of them"


def _mismatches(route: AgentRoute) -> Iterator[str]:
    account, colon, ref = route.chat.partition(":")
    has_chats = account == route.account or (not colon and route.account.startswith(f"{account}/"))
    if account and route.account and not has_chats:
        yield f"{route.text}: the account {route.account} has no such chat, so nothing matches: remove one of them"
    if colon and not re.fullmatch(r".+" if account == "local" else r"-?\d+(/\d+)?(#.+)?", ref, re.ASCII):
        yield f"{route.chat} is not a chat: write it as `/whoami` shows it, with a number, such as {account}:123"


def route_notices(
    routes: Sequence[AgentRoute], agents: Mapping[str, str], lines: Sequence[str], *, is_shared: bool
) -> Iterator[str]:
    """Yield a warning for each agent without a route, and for each route whose Discord role has no effect.

    `agents` and `lines` are the positions of the agents and routes in the configuration. `is_shared` is False with
    `sessions.groups: per_user`.
    """
    routed = {UNNAMED, *(route.agent for route in routes)}
    for name, position in agents.items():
        if name not in routed:
            hint = "add a route, or choose the agent with /agent in a chat"
            yield f"{position}: no route leads to the agent {name}: {hint}"
    for route, line in zip(routes, lines, strict=True):
        if is_shared and route.has_discord_role:
            why = "because the people in a channel share one conversation"
            yield f"{line}: routes: role {route.role} has no effect, {why}: set sessions.groups to per_user"
