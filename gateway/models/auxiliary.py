"""Auxiliary models for the gateway's own work: summaries, titles, and what is written down before a compression.

Summaries have a block of settings, every other task a route: the conversation's own model, the configured one, an
alias, or none. The offline model does none of it: it cannot.
"""

from gateway.config.context_settings import AuxiliaryTask
from gateway.config.routes import RouteConfig, completed, written_route
from gateway.config.settings import Config


def route_for(config: Config, task: AuxiliaryTask, own: RouteConfig) -> RouteConfig | None:
    """The route of the model that does `task` for a conversation whose own model is `own`; None: nobody."""
    if task == "compression":
        settings = config.auxiliary.compression
        route = _summary_model(config) or (config.model.route if settings.mode == "same-as-main" else own)
        route = route.model_copy(update=settings.call_settings)
    else:
        word = config.auxiliary.routes[task]
        if word == "off":
            return None
        route = own if word == "auto" else config.model.route if word == "main" else config.model.alias_route(word)
    return None if route.protocol == "offline" else route


def all_routes(config: Config) -> tuple[RouteConfig, ...]:
    """Every route that the configuration leads to, each once: those that people may choose, and that of summaries."""
    route = _summary_model(config)
    return tuple(dict.fromkeys((*config.model.routes, *((route,) if route is not None else ()))))


def _summary_model(config: Config) -> RouteConfig | None:
    """The route that is named for summaries: an alias, or a model at the API of `model` or at another.

    The key of `model` goes along only to the API that it is for.
    """
    settings, main = config.auxiliary.compression, config.model
    name = (settings.model or "").strip()
    if not name:
        return None
    keys = ("protocol", "base_url", "api_key", "context_length")
    values = {"name": name} | {key: getattr(settings, key) for key in keys}
    block = written_route(values, "auxiliary.compression")
    if name.lower() in main.aliases and set(block) <= {"name", "context_length"}:
        route = main.alias_route(name.lower())
        size = settings.context_length
        return route if size is None else route.model_copy(update={"context_length": size})
    return completed(block, main)
