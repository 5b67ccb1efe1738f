"""`/tools`: what the agent may use in this chat, and why."""

from functools import partial
from sqlite3 import Connection

from agent.tools.offers import OfferRegistry, Policy
from agent.tools.registry import Tool
from gateway.commands.registry import CommandRequest, CommandResult, say
from hermes_state import approvals
from hermes_state.errors import CommandError
from hermes_state.text import counted
from hermes_state.tool_runs import load_offer
from hermes_state.values import Millis, ToolEffect

_POLICIES = {
    Policy.ASK: "asks a person first",
    Policy.ALLOW: "needs no question here",
    Policy.DENY: "refused here (`tools.approval`)",
}


async def tools(request: CommandRequest) -> CommandResult:
    """List the tools; `forget` takes back what was allowed for longer."""
    word = request.argument.lower()
    if word == "forget":
        return CommandResult(apply=partial(_forget, request))
    if word:
        raise CommandError("Write `/tools`, or `/tools forget` to be asked again about everything.")
    store, offers = request.context.store, request.context.runtime.agent.offers
    session = await request.load_open_session()
    names = await store.read(load_offer, session.id) if session is not None else None
    lines = [_line(request, offers, tool, names) for tool in offers.registry.by_name.values()]
    granted = await store.read(approvals.list_grants, request.chat.id)
    if granted:
        allowed = ", ".join(f"`{one}`" for one in granted)
        lines.append(f"\nAllowed for longer: {allowed}. `/tools forget` takes all of that back.")
    return say("\n".join(lines) if lines else "There are no tools.")


def _line(request: CommandRequest, offers: OfferRegistry, tool: Tool, names: list[str] | None) -> str:
    chat, sender = request.chat, request.row.sender_ref
    reason = tool.why_unavailable() or offers.access.refusal(tool, chat.key, chat.kind, sender)
    origin = f" (from {tool.source})" if tool.source else ""
    if reason is not None:
        return f"- `{tool.name}`{origin}: off, {reason}"
    policy = ""
    if tool.effect is not ToolEffect.READ_ONLY and tool.needs_approval:
        policy = f", {_POLICIES[offers.access.policy(tool.effect, chat.key)]}"
    behind = ", found through `more_tools`" if names is not None and tool.name not in names else ""
    return f"- `{tool.name}`{origin}: on{policy}{behind}"


def _forget(request: CommandRequest, db: Connection, _now: Millis) -> str:
    if not request.is_in_charge:
        raise CommandError("In a chat of several people that is for admins.")
    count = approvals.revoke_grants(db, request.chat.id)
    return f"Took back {counted(count, 'permission')}: I ask again." if count else "Nothing was allowed for longer."
