"""`/agent`: show which agent answers in this chat and why, and let admins choose another one."""

from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.config.agents import BY_ROUTE, AgentRoute, route_for_chat
from gateway.models.selection import Runtime
from hermes_state import agents, sessions
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import UNNAMED, AgentState, RoutedAgent, shown_name
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.values import Button, Millis


async def agent(request: CommandRequest) -> CommandResult:
    """Without an argument, tell which agent answers and why. With a name, let that agent answer from now on."""
    routed, name = _routed(request), request.argument.lower()
    if not name:
        state = await request.context.store.read(agents.load_state, request.chat.id, routed)
        return say(*_shown(request, state))
    if request.role is not UserRole.ADMIN:
        raise CommandError("Only admins can choose the agent of a chat.")
    known = names(request.context.lanes.runtime)
    if name not in known:
        raise CommandError(f"There is no agent “{name[:32]}”, so nothing was changed. Known: {', '.join(known)}.")
    chosen = None if name == BY_ROUTE else "" if name == UNNAMED else name

    def apply(db: Connection, now: Millis) -> str:
        agents.choose(db, request.chat.id, chosen)
        state = agents.load_state(db, request.chat.id, routed)
        text = "The routes choose the agent of this chat again. " if chosen is None else ""
        text += f"From your next message on, the agent {shown_name(state.next_agent)} answers here"
        if state.next_agent == state.agent:
            return f"{text}."
        text += ", in a new conversation."
        active = sessions.load_active(db, request.chat.id)
        if active is not None and sessions.count_messages(db, active.lineage_id):
            text += f" `/resume {active.short_key}` goes back to the conversation with {shown_name(state.agent)}."
        return text

    return CommandResult(apply=apply)


def names(runtime: Runtime) -> list[str]:
    """Return the words that `/agent` accepts."""
    return [*map(shown_name, runtime.live.loaded.agent_names), BY_ROUTE]


def agent_line(request: CommandRequest, state: AgentState) -> str:
    """Return the name of the agent that answered last or, if another one takes over, of the next one."""
    following = f", from the next message on {shown_name(state.next_agent)}" if state.next_agent != state.agent else ""
    return f"{shown_name(state.agent)}{following} ({_reason(request, state)})"


async def load_agent_line(request: CommandRequest) -> list[str]:
    """Return the line of `/status` about the agent, or nothing if there is only one agent."""
    if len(request.context.runtime.live.loaded.agent_names) == 1:
        return []
    state = await request.context.store.read(agents.load_state, request.chat.id, _routed(request))
    return [f"- Agent: {agent_line(request, state)}"]


def _shown(request: CommandRequest, state: AgentState) -> tuple[str, *tuple[Button, ...]]:
    known = names(request.context.lanes.runtime)
    lines = [f"Agent: {agent_line(request, state)}."]
    if request.role is not UserRole.ADMIN or len(known) == 2:
        return ("\n".join(lines),)
    lines.append(f"`/agent <name>` chooses one for this chat: {', '.join(known)}. A new conversation begins.")
    others = [name for name in known if name != shown_name(state.next_agent)][:8]
    return ("\n".join(lines), *(Button(label=name, command=f"/agent {name}") for name in others))


def _reason(request: CommandRequest, state: AgentState) -> str:
    if state.chosen_agent is not None and state.next_agent == state.chosen_agent:
        return "chosen with /agent"
    if _routed(request).keeps and state.next_agent == state.agent:
        return "it answered here last"
    route = _route(request)
    return "no route matches" if route is None else f"route: {route.text}"


def _route(request: CommandRequest) -> AgentRoute | None:
    chat = request.chat
    role = request.context.access.role_in(chat.key, chat.kind, request.row.sender_ref) or ""
    return route_for_chat(request.context.runtime.config.routes, chat.key, chat.scope, role)


def _routed(request: CommandRequest) -> RoutedAgent:
    chat = request.chat
    return request.context.lanes.routed_agent(chat.key, chat.kind, chat.scope, request.row.sender_ref)
