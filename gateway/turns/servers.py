"""MCP servers in the daemon: their settings as the agent takes them."""

from typing import Final

from agent.tools.mcp.settings import ServerSettings
from gateway.config.mcp_settings import EffectWord, McpConfig
from hermes_state.values import ToolEffect

_EFFECTS: Final[dict[EffectWord, ToolEffect]] = {
    "reads": ToolEffect.READ_ONLY,
    "writes": ToolEffect.WRITES,
    "executes": ToolEffect.EXECUTES,
}


def server_settings(config: McpConfig) -> list[ServerSettings]:
    """The servers that are switched on."""
    return [
        ServerSettings(
            name=name,
            command=one.command,
            args=one.args,
            env=one.plain_env,
            cwd=one.cwd,
            url=one.url,
            headers={key: value.get_secret_value() for key, value in one.headers.items()},
            allow=one.allow,
            deny=one.deny,
            effects={tool: _EFFECTS[word] for tool, word in one.effects.items()},
            trusts_hints=one.trust_hints,
            seconds=one.seconds,
        )
        for name, one in config.servers.items()
        if one.enabled
    ]
