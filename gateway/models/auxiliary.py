"""Auxiliary models for the gateway's own work: summaries, titles, and what is written down before a compression.

One rule for all tasks: the model that a task names; else the one that its mode picks, the conversation's own or the
configured one. The offline model does none of it: it cannot.
"""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from gateway.config.context_settings import AuxiliaryTaskConfig, Mode
from gateway.config.routes import PartialRoute, RouteConfig, completed
from gateway.config.settings import Config

Task: TypeAlias = Literal["compression", "flush", "title"]
TASKS: Final[tuple[Task, ...]] = ("compression", "flush", "title")


def route_for(config: Config, task: Task, live: RouteConfig) -> RouteConfig | None:
    """The route of the model that does `task` for a conversation whose own model is that of `live`; None: nobody."""
    mode = _mode(config, task)
    if mode == "off":
        return None
    route = _named(config, task, live) or (config.model.route if mode == "same-as-main" else live)
    return None if route.protocol == "offline" else route


def all_routes(config: Config) -> tuple[RouteConfig, ...]:
    """Every route that the configuration leads to, each once: those that people may choose, and those of tasks."""
    return tuple(dict.fromkeys((*config.model.routes, *named_routes(config))))


def named_routes(config: Config) -> Iterator[RouteConfig]:
    """Those of the models that are named for tasks of conversations with the configured model."""
    for task in TASKS:
        named = _named(config, task, config.model)
        if named is not None and _mode(config, task) != "off":
            yield named


def _mode(config: Config, task: Task) -> Mode | Literal["off"]:
    own = config.auxiliary.title.mode if task == "title" else _settings(config, task).mode
    return own or config.auxiliary.mode


def _settings(config: Config, task: Task) -> AuxiliaryTaskConfig:
    match task:
        case "compression":
            return config.auxiliary.compression
        case "flush":
            return config.auxiliary.flush
        case "title":
            return config.auxiliary.title


def _named(config: Config, task: Task, live: RouteConfig) -> RouteConfig | None:
    """The route of the model that is named for a task: an alias, or a model at the API of `model` or at another.

    The key of `model` goes along only to the API that it is for.
    """
    settings, main = _settings(config, task), config.model
    own = config.compression.for_model(live.name or "").summary_model if task == "compression" else None
    name = (own or settings.model or "").strip()
    if not name:
        return None
    keys = ("protocol", "base_url", "api_key", "context_length")
    block = PartialRoute.model_validate({"name": name} | {key: getattr(settings, key) for key in keys})
    if name.lower() in main.aliases and set(block.written) <= {"name", "context_length"}:
        route = main.alias_route(name.lower())
        size = settings.context_length
        return route if size is None else route.model_copy(update={"context_length": size})
    return completed(block, main)
