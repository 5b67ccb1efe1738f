"""Permissions of tools: which a chat may use, in whose turns, and what happens to calls that change something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.tools.offers import Policy
from agent.tools.registry import Tool
from gateway.access.permissions import LOCAL_OWNER
from gateway.config.settings import Config
from gateway.config.tool_settings import ToolsConfig
from hermes_state.admin.pairings import load_admin_chats
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, ChatKey, ChatKind, UserRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccessControl:
    """Permissions as the configuration in force says."""

    settings: Callable[[], ToolsConfig]
    is_admin: Callable[[UserRef], bool]
    load_admin_chats: Callable[[Connection], Sequence[ChatId]] = lambda db: ()

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        """Reason why a tool may not be used in a chat, or in a turn of this person; None: it may."""
        switch = self.settings().switch_of(tool.name, chat)
        if switch == "off":
            return "it is switched off here"
        if switch == "admins" and person is not None and not self.is_admin(person):
            return "it is for turns that an admin has started"
        return None

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        """Policy for a call of this tool that needs approval."""
        return Policy(self.settings().approval_in(chat).policy_of(tool.effect, is_mcp=tool.is_remote))


def find_admin_chats(config: Config, db: Connection) -> Sequence[ChatId]:
    """The direct chats in which admins can be asked, on the platforms of a configuration."""
    tokens = {"telegram": config.telegram.token, "discord": config.discord.token, "local": config.local.enabled or None}
    platforms = [name for name, token in tokens.items() if token is not None]
    return load_admin_chats(db, {*map(UserRef, config.access.admins), LOCAL_OWNER}, platforms)
