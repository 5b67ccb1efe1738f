"""Commands about state and spending: /status and /usage, and /insights for admins."""

from collections.abc import Iterator

from msgspec.structs import replace

from agent.engines.loader import BUILT_IN
from agent.model.protocols.caching import marks_prompts
from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.tools.mcp.settings import ServerState
from gateway.commands.agents import load_agent_line
from gateway.commands.registry import CommandContext, CommandRequest, CommandResult, say
from gateway.models.pricing import cap_limits
from gateway.models.routes import window_from
from gateway.models.selection import name_of, route_of
from gateway.operator.spending import (
    DEFAULT_DAYS,
    MAX_DAYS,
    insights_block,
    insights_notes,
    load_insights,
    load_usage,
    today_lines,
    usage_lines,
)
from hermes_state import inbox
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import find_agent
from hermes_state.errors import CommandError
from hermes_state.sessions import Session, count_messages, load_active, load_title
from hermes_state.store.sql import Connection
from hermes_state.text import counted, plain
from hermes_state.turns import RunningTurn, find_open_turn
from hermes_state.values import ChatId, ChatKey
from platforms.base import AdapterState


async def status(request: CommandRequest) -> CommandResult:
    """Describe the chat in at most six lines. Admins also see routes, limits and every connection."""
    context, is_admin = request.context, request.role is UserRole.ADMIN
    session, title, messages, waiting, turn = await context.store.read(_load_status, request.chat.id)
    choice = session.chosen_model if session is not None else None
    model, *trouble = _model_lines(context, choice, is_admin=is_admin)
    about = ["- Conversation: none yet; send a message to start one"]
    if session is not None:
        name = f"“{plain(title)}”, " if title else ""
        about = [f"- Conversation: {name}{counted(messages, 'message')}, `{session.short_key}`"]
        settings = context.runtime.config.model
        chosen = route_of(settings, session.chosen_model) or settings.route
        if (by := context.runtime.fallbacks.of(session.lineage_id, chosen)) is not None:
            trouble.append(f"The last answer came from {by.label} because {chosen.label} failed")
        about += await context_lines(request, session, is_short=not is_admin)
    now = [_running_line(context, turn)] if turn is not None and not turn.is_waiting else []
    now += [f"Queue: {counted(waiting, 'message')}"] if waiting else []
    agent = await load_agent_line(request)
    lines = [*agent, model, *about, *(f"- {'; '.join(part)}" for part in (trouble, now) if part)]
    lines += account_lines(request)
    if not is_admin:
        return say("\n".join([*lines, _connected_line(context)]))
    return say("\n".join([*lines, *filter(None, [context.peer_line()]), *_connection_lines(context)]))


def account_lines(request: CommandRequest) -> list[str]:
    """Return a line with the chat's account if its platform has several."""
    key, config = request.chat.key, request.context.runtime.config
    accounts = [account for account in config.bots if account.partition("/")[0] == key.platform]
    return [f"- Account: `{config.label_of(key.account)}`"] if len(accounts) > 1 else []


def status_unstored(context: CommandContext, key: ChatKey) -> str:
    """Return the reply to `/status` without using the database. Used while the database cannot be written."""
    running = context.lanes.running_in(key)
    model, *trouble = _model_lines(context, running.chosen_model if running is not None else None)
    doing = [*trouble, *([_running_line(context, running)] if running is not None else [])]
    lines = [
        "- Database: not writable because it is locked or its disk is full; new messages must wait",
        model,
        *(f"- {one}" for one in doing),
    ]
    return "\n".join([*lines, *_connection_lines(context)])


def _model_lines(context: CommandContext, choice: str | None, *, is_admin: bool = False) -> Iterator[str]:
    """Yield the line about the conversation's model. If its circuit breaker is open, yield a clause about it next."""
    settings = context.runtime.config.model
    known = route_of(settings, choice)
    choice, route = (None, settings.route) if known is None else (choice, known)
    if route.protocol == "offline":
        yield f"- Model: the built-in offline model; to use a real one, {MODEL_SETUP_HINT}"
        return
    client = context.runtime.model_of(choice).client
    name = name_of(settings, choice)
    called = f"{name} ({route.label})" if name != route.label else name
    # Some providers cache every prompt, so only caching that the gateway itself requests is shown.
    caching = f"; prompt caching on ({settings.cache_ttl})" if marks_prompts(client.name, client.route) else ""
    chosen = ", chosen here" if choice is not None else ""
    yield f"- Model: {called}{chosen}" + (f", route {client.route}{caching}" if is_admin else "")
    if (circuit := client.breaker.open) is not None:
        yield f"{route.label} {circuit.why}; paused for {max(1, round(circuit.seconds))} s"


def _running_line(context: CommandContext, running: RunningTurn) -> str:
    seconds = max(0, context.clock.now() - running.started_at) // 1000
    return f"Working on an answer ({seconds} s so far); /stop cancels it"


def _connected_line(context: CommandContext) -> str:
    health = sorted(context.adapters.health().items())
    missing = [f"{name} ({one.state.value.replace('_', ' ')})" for name, one in health if not one.is_ready]
    return f"- Not connected: {', '.join(missing)}" if missing else f"- Connected: {', '.join(dict(health))}"


def _connection_lines(context: CommandContext) -> Iterator[str]:
    if failed := [f"`{one.name}`" for one in context.servers.statuses() if one.state is ServerState.DOWN]:
        yield f"- MCP servers not connected: {', '.join(failed)}"
    for name, health in sorted(context.adapters.health().items()):
        is_good = health.state is AdapterState.RUNNING
        detail = f" ({health.detail})" if health.detail and not is_good else ""
        yield f"- {name}: {'connected' if is_good else health.state.value.replace('_', ' ')}{detail}"


async def context_lines(request: CommandRequest, session: Session, *, is_short: bool = False) -> list[str]:
    """Describe the context window: how full it is and, unless `is_short`, its size and whether it is too small."""
    runtime = request.context.runtime
    model, engine = runtime.model_of(session.chosen_model), runtime.agent.context.engine.name
    status = await runtime.agent.context.status(request.conversation(session), model)
    limits, times = status.limits, status.compressions
    percent = status.prompt * 100 // limits.input_window
    acts = f"compression starts at {status.threshold:,}"
    if engine != BUILT_IN:  # a plugin can also compress for other reasons
        acts = f"compression by `{engine}` starts at {status.threshold:,} or earlier"
    if not model.context.enabled:
        acts = "compressed only by /compress"
    done = f"compressed {counted(times, 'time')} so far" if times else "not compressed so far"
    if is_short:
        return [f"- Context: {percent} % full, {done}"]
    used = f"about {status.prompt:,} of {limits.input_window:,} tokens ({percent} %, estimate)"
    is_bound = limits.longest_prompt < limits.context_length
    bound = f"; a prompt can use {limits.longest_prompt:,} of them" if is_bound else ""
    lines = [
        f"- Context: {used}; {acts}; {done}",
        f"- Window: {limits.context_length:,} tokens ({window_from(status.window_from)}){bound}",
    ]
    if status.is_crowded:
        lines.append(
            f"- The system prompt and tools use {status.fixed:,} tokens, at least half of the compression threshold "
            f"({status.threshold:,}); a larger `model.context_length` would help"
        )
    return lines


def _load_status(db: Connection, chat_id: ChatId) -> tuple[Session | None, str | None, int, int, RunningTurn | None]:
    """Load the chat's session and title, the counts of stored and queued messages, and the open turn."""
    session, turn = load_active(db, chat_id), find_open_turn(db, chat_id)
    waiting = sum(row.kind is inbox.InboxKind.MESSAGE for row in inbox.load_waiting(db, chat_id))
    if session is None:
        return None, None, 0, waiting, turn
    return session, load_title(db, session.lineage_id), count_messages(db, session.lineage_id), waiting, turn


async def usage(request: CommandRequest) -> CommandResult:
    """Show usage and spending caps. Only admins see the usage of the whole gateway, unless a cap applies to it."""
    context, chat = request.context, request.chat
    session = await context.store.read(load_active, chat.id)
    place = LookupResult(chat_id=chat.id, session=session)
    runtime = context.runtime
    caps = cap_limits(runtime.config, runtime.live.loaded.agent(runtime.name) if runtime.is_configured else None)
    found = await context.store.read(load_usage, caps, context.clock.now(), place)
    lines = ["This chat has no conversation yet."]
    if session is not None:
        context_line = (await context_lines(request, session))[0]
        title = await context.store.read(load_title, session.lineage_id)
        name = f"“{plain(title)}”, " if title else ""
        lines = [
            f"This conversation, {name}`{session.short_key}`:",
            *usage_lines(found),
            context_line,
            *await load_agent_line(request),
            *account_lines(request),
        ]
    lines += ["", "Spending caps and today's usage:" if found.caps else "Today:"]
    lines += today_lines(found, tells_all=request.role is UserRole.ADMIN and not chat.kind.is_shared)
    return say("\n".join(lines))


async def insights(request: CommandRequest) -> CommandResult:
    """Show recent spending. In a shared chat, show only the spending of that chat."""
    words = request.argument.split()
    agent = next((word for word in words if not word.lstrip("+-").isdecimal()), None)
    days = replace(request, argument=" ".join(word for word in words if word != agent)).number(DEFAULT_DAYS)
    if days is None or days > MAX_DAYS:
        number = f"or `/insights 30` for another number of days, at most {MAX_DAYS}"
        raise CommandError(f"Send `/insights`, {number}. `/insights ops` shows only the agent ops.")
    context, within = request.context, request.reachable_chat
    caps, now = cap_limits(context.runtime.config), context.clock.now()
    found = await context.store.read(lambda db: load_insights(db, caps, now, days, within, find_agent(db, agent)))
    where = ("This chat" if within is not None else "All chats") + ("" if agent is None else f", agent {agent}")
    span = "today" if days == 1 else f"the last {days} days"
    notes = "\n".join(insights_notes(found.total))
    return say(f"{where}, {span}:\n```\n{insights_block(found)}\n```\n{notes}".rstrip())
