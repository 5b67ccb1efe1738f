"""First commands of a newcomer: /start /help."""

from agent.model.protocols.offline import MODEL_SETUP_HINT
from gateway.commands.registry import CommandRequest, CommandResult, say


async def start(request: CommandRequest) -> CommandResult:
    offline = (
        f"\n\nFor now the small built-in model answers; for a real one, {MODEL_SETUP_HINT}."
        if request.context.runtime.config.model.protocol == "offline"
        else ""
    )
    return say(
        "Hello. Write to me and I answer; I remember this conversation until you say /new. "
        f"/help lists what else I can do.{offline}"
    )


async def help_(request: CommandRequest) -> CommandResult:
    return say(request.context.registry.help(request.role))
