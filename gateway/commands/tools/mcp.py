"""Command `/mcp`: the MCP servers, their tools and what is wrong with them, for admins."""

from collections.abc import Iterator
from datetime import UTC, tzinfo

from agent.tools.approvals import inline
from agent.tools.mcp.settings import ServerState, ServerStatus
from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.times import format_time
from hermes_state.text import counted
from hermes_state.values import Millis, ToolEffect

MAX_NAMES = 20
"""Names of resources and of prompts that are shown."""
_EFFECTS = {ToolEffect.READ_ONLY: "reads", ToolEffect.WRITES: "writes", ToolEffect.EXECUTES: "executes"}


async def mcp(request: CommandRequest) -> CommandResult:
    """List the servers."""
    context = request.context
    config, now = context.runtime.config.mcp, context.clock.now()
    lines = [line for status in context.servers.statuses() for line in _lines(status, now, request.zone)]
    lines += [f"- **{name}**: switched off" for name, one in config.servers.items() if not one.enabled]
    return say("\n".join(lines) or "There are no MCP servers (`mcp.servers`).")


def _lines(status: ServerStatus, now: Millis, zone: tzinfo | None) -> Iterator[str]:
    yield f"- **{status.name}**: {state_words(status, now, zone)}"
    if status.tools:
        yield f"  - tools: {', '.join(f'`{name}` {_EFFECTS[effect]}' for name, effect in status.tools.items())}"
    for what, names in (("resource", status.catalog.resources), ("prompt", status.catalog.prompts)):
        if names:
            more = ", …" if len(names) > MAX_NAMES else ""
            yield f"  - {counted(len(names), what)}: {', '.join(map(inline, names[:MAX_NAMES]))}{more}"
    yield from (f"  - {inline(fault)}" for fault in status.catalog.faults)
    if status.error is not None and status.state is ServerState.CONNECTED:
        yield f"  - last error: {inline(status.error)}"


def state_words(status: ServerStatus, now: Millis, zone: tzinfo | None = UTC) -> str:
    """The state of a server in a line."""
    words = f"{status.state.value} since {format_time(status.since, zone)}"
    if status.state is not ServerState.DOWN:
        return words
    words += f" ({inline(status.error or 'no reason is known')})"
    if status.next_try_at is None:
        return words
    return f"{words}, next try in {max(0, status.next_try_at - now) // 1000} s"
