"""Commands about usage and costs: /usage, and /insights for admins."""

from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.commands.status import context_lines
from gateway.models.pricing import cap_limits
from gateway.operator.render import insights_block, insights_notes, today_lines, usage_lines
from gateway.operator.spending import DEFAULT_DAYS, MAX_DAYS, load_insights, load_usage
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError
from hermes_state.sessions import load_active


async def usage(request: CommandRequest) -> CommandResult:
    """Show this conversation, this chat today, and caps; the whole gateway only to admins, or where it is capped."""
    context, chat = request.context, request.chat
    session = await context.store.read(load_active, chat.id)
    place = LookupResult(chat_id=chat.id, session=session)
    found = await context.store.read(load_usage, cap_limits(context.runtime.config), context.clock.now(), place)
    lines = []
    if session is None:
        lines.append("This chat has no conversation yet.")
    else:
        lines.append(f"This conversation, `{session.short_key}`:")
        lines += usage_lines(found)
        lines.append((await context_lines(request, session))[0])
    lines += ["", "Caps and today:" if found.caps else "Today:"]
    lines += today_lines(found, tells_all=request.role is UserRole.ADMIN and not chat.kind.is_shared)
    return say("\n".join(lines))


async def insights(request: CommandRequest) -> CommandResult:
    """Show what was spent lately; in a chat that others can read an admin sees that chat alone."""
    days = request.number(DEFAULT_DAYS)
    if days is None or days > MAX_DAYS:
        raise CommandError(f"Write `/insights`, or `/insights 30` for another number of days, at most {MAX_DAYS}.")
    context = request.context
    within = request.reachable_chat
    caps, now = cap_limits(context.runtime.config), context.clock.now()
    found = await context.store.read(load_insights, caps, now, days, within)
    where = "This chat" if within is not None else "All chats"
    span = "today" if days == 1 else f"the last {days} days"
    notes = "\n".join(insights_notes(found.total))
    return say(f"{where}, {span}:\n```\n{insights_block(found)}\n```\n{notes}".rstrip())
