"""Commands for who begins: /start /help."""

from agent.model.protocols.offline import MODEL_SETUP_HINT
from gateway.commands.registry import Command, CommandKind, CommandResult, Invocation, say


async def start(invocation: Invocation) -> CommandResult:
    offline = (
        f"\n\nFor now the small built-in model answers; for a real one, {MODEL_SETUP_HINT}."
        if invocation.context.live.config.model.protocol == "offline"
        else ""
    )
    return say(
        "Hello. Write to me and I answer; I remember this conversation until you say /new. "
        f"/help lists what else I can do.{offline}"
    )


async def help_(invocation: Invocation) -> CommandResult:
    return say(invocation.context.registry.help(invocation.role))


COMMANDS = (
    Command("start", CommandKind.READ, start, "what this is"),
    Command("help", CommandKind.READ, help_, "list the commands"),
)
