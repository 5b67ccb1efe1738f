"""Permissions of tools: which a chat may use, in whose turns, and what happens to calls that change something."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.tools.offers import Policy
from agent.tools.registry import Tool
from gateway.config.tool_settings import ToolsConfig
from hermes_state.values import ChatKey, ChatKind, ToolEffect, UserRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccessControl:
    """Permissions as the configuration in force says."""

    settings: Callable[[], ToolsConfig]
    is_admin: Callable[[UserRef], bool]

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        """Reason why a tool may not be used in a chat, or in a turn of this person; None: it may."""
        switch = self.settings().switch_of(tool.name, chat)
        if switch == "off":
            return "it is switched off here"
        if switch == "admins" and person is not None and not self.is_admin(person):
            return "it is for turns that an admin has started"
        return None

    def policy(self, effect: ToolEffect, chat: ChatKey) -> Policy:
        """Policy for a call with this effect that needs approval."""
        approval = self.settings().approval_in(chat)
        return Policy(approval.executes if effect is ToolEffect.EXECUTES else approval.writes)
