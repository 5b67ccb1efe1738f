"""`/model` and `/think`: choose the model of this conversation and its reasoning effort."""

from typing import Final, get_args

from agent.context.model_handle import ModelHandle
from gateway.commands.registry import CommandRequest, CommandResult, say, set_in_session
from gateway.config.routes import CONFIGURED, RouteConfig
from gateway.config.settings import ModelConfig
from gateway.models.routes import left_out, settings_text, window_from
from gateway.models.selection import Runtime, choose, known_routes, name_of, route_of
from hermes_state import sessions
from hermes_state.errors import CommandError, ConfigError
from hermes_state.values import Button, ReasoningEffort

EFFORTS: Final[tuple[ReasoningEffort, ...]] = get_args(ReasoningEffort)
LEVELS = (*EFFORTS, CONFIGURED)


async def model(request: CommandRequest) -> CommandResult:
    """Without an argument, list the models. With a name, use that model for this conversation from the next turn on."""
    context, settings = request.context, request.context.runtime.config.model
    session = await request.load_open_session()
    if not request.argument:
        return await _listed(request, session)
    choice = choose(settings, request.argument, request.role)
    route = route_of(settings, choice)
    assert route is not None, "`choose` returns only known models"
    try:
        handle = context.runtime.models.of(route)
    except ConfigError as error:
        raise CommandError(f"That model cannot be used here: {error}.") from error
    window, described = await _window(handle), _described(settings, route)
    sentence = f"From your next message on, the configured model answers: {described}, {window}."
    if choice is not None:
        name = name_of(settings, choice)
        called = f"{name}: " if name != route.label else ""
        sentence = (
            f"From your next message on, this conversation uses {called}{described}, "
            f"{window}{settings_text(route)}. `/model {CONFIGURED}` switches back."
        )
    sentences = [sentence]
    if session is not None:  # a smaller context window can lead to a compression
        status = await context.runtime.agent.context.status(request.conversation(session), handle)
        if status.prompt >= status.limits.threshold and handle.context.enabled:
            size = f"This conversation has about {status.prompt:,} tokens"
            sentences.append(f"{size}, so I will compress it before the next answer.")
    if choice is not None and choice not in known_routes(settings):
        sentences.append("This model is not in the configuration, so your next message will show whether it exists.")
    return set_in_session(request, sessions.choose_model, choice, " ".join(sentences))


def names(runtime: Runtime) -> list[str]:
    return [CONFIGURED, *known_routes(runtime.config.model)]


async def think(request: CommandRequest) -> CommandResult:
    """Show the reasoning effort, or with an argument, set it for this conversation from the next turn on."""
    settings, session = request.context.runtime.config.model, await request.load_open_session()
    route = route_of(settings, session.chosen_model if session is not None else None) or settings.route
    word = request.argument.lower()
    if not word:
        chosen = await _chosen_effort(request, session)
        by = " (chosen here)" if chosen else " (as configured)" if route.reasoning_effort else ""
        shown = chosen or route.reasoning_effort or "the provider's default"
        lines = [f"Reasoning effort of {route.label}: {shown}{by}.", *left_out(route, chosen)]
        lines.append(f"`/think low|medium|high|off` sets it for this conversation. `/think {CONFIGURED}` resets it.")
        buttons = [Button(label=one, command=f"/think {one}") for one in ("low", "medium", "high", "off")]
        return say("\n".join(lines), *buttons)
    if word == CONFIGURED:
        value = f"the configured value: {effort}" if (effort := route.reasoning_effort) else "the provider's default"
        text = f"From your next message on, reasoning effort is back to {value}."
        return set_in_session(request, sessions.choose_effort, None, text)
    for effort in EFFORTS:
        if effort == ("off" if word == "none" else word):
            text = f"From your next message on, reasoning effort in this conversation is {effort}."
            text = " ".join([text, f"`/think {CONFIGURED}` resets it.", *left_out(route, effort)])
            return set_in_session(request, sessions.choose_effort, effort, text)
    raise CommandError(f"Nothing was changed: /think accepts {', '.join(EFFORTS)} or {CONFIGURED}.")


async def _chosen_effort(request: CommandRequest, session: sessions.Session | None) -> ReasoningEffort | None:
    return await request.context.store.read(sessions.load_effort, session.id) if session is not None else None


async def _window(handle: ModelHandle) -> str:
    """Return the size of the context window and its source. The provider reports the size at the model's first turn."""
    limits = await handle.load_limits()
    return f"window {limits.context_length:,} tokens ({window_from(handle.window_from)})"


async def _listed(request: CommandRequest, session: sessions.Session | None) -> CommandResult:
    runtime = request.context.runtime
    settings = runtime.config.model
    choice = session.chosen_model if session is not None else None
    route = route_of(settings, choice)
    if route is None:
        choice, route = None, settings.route
    effort, window = await _chosen_effort(request, session), await _window(runtime.model_of(choice))
    lines = [f"Model: {_described(settings, route)}, {window}{settings_text(route, effort)}"]
    current = settings.label if choice is None else name_of(settings, choice)
    known = known_routes(settings)
    lines += [_line(settings, name, one, current) for name, one in list(known.items())[:30]]
    if settings.fallback_routes:
        lines.append("Fallbacks: " + ", then ".join(_described(settings, one) for one in settings.fallback_routes))
    if len(known) == 1 and choice is None:
        lines.append("No other models are configured. An operator can add models under `model.aliases`.")
    else:
        lines.append(f"`/model <name>` chooses one for this conversation. `/model {CONFIGURED}` switches back.")
    others = [name for name in known if name != current][:8]
    buttons = [Button(label=name, command=f"/model {name}") for name in others]
    return say("\n".join(lines), *buttons)


def _line(settings: ModelConfig, name: str, route: RouteConfig, current: str) -> str:
    marks = [mark for mark, holds in (("current", name == current), ("configured", name == settings.label)) if holds]
    described = "" if name == route.label and route.host == settings.host else f": {_described(settings, route)}"
    marked = f" ({', '.join(marks)})" if marks else ""
    own = settings_text(route)
    return f"- `{name}`{described}{marked}{own if own != settings_text(settings) else ''}"


def _described(settings: ModelConfig, route: RouteConfig) -> str:
    """Return the name of a route, with its host if that is not the host of the configured model."""
    return route.label if route.host in (None, settings.host) else f"{route.label} at {route.host}"
