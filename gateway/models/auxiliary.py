"""Auxiliary models for the gateway's own work: summaries, titles, and what is written down before a compression.

One rule for all tasks: the model that a task names; else the one that its mode picks, the conversation's own or the
configured one. The offline model does none of it: it cannot.
"""

from typing import Literal

from gateway.config.context_settings import AuxiliaryTask, Mode
from gateway.config.routes import PartialRouteConfig, RouteConfig, completed
from gateway.config.settings import Config


def route_for(config: Config, task: AuxiliaryTask, own: RouteConfig) -> RouteConfig | None:
    """The route of the model that does `task` for a conversation whose own model is `own`; None: nobody."""
    mode = _mode(config, task)
    if mode == "off":
        return None
    route = _named(config, task, own) or (config.model.route if mode == "same-as-main" else own)
    return None if route.protocol == "offline" else route.model_copy(update=config.auxiliary.tasks[task].call_settings)


def all_routes(config: Config) -> tuple[RouteConfig, ...]:
    """Every route that the configuration leads to, each once: those that people may choose, and those of tasks."""
    named = (_named(config, task, config.model) for task in config.auxiliary.tasks if _mode(config, task) != "off")
    return tuple(dict.fromkeys((*config.model.routes, *(route for route in named if route is not None))))


def _mode(config: Config, task: AuxiliaryTask) -> Mode | Literal["off"]:
    auxiliary = config.auxiliary
    return (auxiliary.title.mode if task == "title" else auxiliary.tasks[task].mode) or auxiliary.mode


def _named(config: Config, task: AuxiliaryTask, own: RouteConfig) -> RouteConfig | None:
    """The route of the model that is named for a task: an alias, or a model at the API of `model` or at another.

    The key of `model` goes along only to the API that it is for.
    """
    settings, main = config.auxiliary.tasks[task], config.model
    summary_model = config.compression.for_model(own.name or "").summary_model if task == "compression" else None
    name = (summary_model or settings.model or "").strip()
    if not name:
        return None
    keys = ("protocol", "base_url", "api_key", "context_length")
    block = PartialRouteConfig.model_validate({"name": name} | {key: getattr(settings, key) for key in keys})
    if name.lower() in main.aliases and set(block.written) <= {"name", "context_length"}:
        route = main.alias_route(name.lower())
        size = settings.context_length
        return route if size is None else route.model_copy(update={"context_length": size})
    return completed(block, main)
