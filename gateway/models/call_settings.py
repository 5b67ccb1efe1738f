"""Call settings of routes: what every call says beside the conversation, in words, and what of it is missing."""

from collections.abc import Iterator

from pydantic import SecretStr

from gateway.config.routes import CALL_KEYS, RouteConfig
from gateway.config.settings import Config
from gateway.models.auxiliary import all_routes
from hermes_state.values import ReasoningEffort


def settings_text(route: RouteConfig, chosen: ReasoningEffort | None = None) -> str:
    """Settings of calls, to go on behind a comma: `, temperature 0.2, reasoning effort high`; empty where nothing is.

    `chosen`: the effort of a conversation. Of headers and further fields only the names are told.
    """
    words = [f"{key} {value:g}" for key in ("temperature", "top_p") if (value := getattr(route, key)) is not None]
    if effort := chosen or route.reasoning_effort:
        words.append(f"reasoning effort {effort}" + (" (chosen here)" if chosen else ""))
    for what, block in (("header", route.extra_headers), ("field", route.extra_body)):
        words += [f"{what} {name}" for name in block]
    return "".join(f", {word}" for word in words)


def left_out(route: RouteConfig, chosen: ReasoningEffort | None = None) -> Iterator[str]:
    """Sentences about settings that a route's protocol does not take; what a model refuses is in the log."""
    sampling = " and ".join(f"`{key}`" for key in ("temperature", "top_p") if getattr(route, key) is not None)
    if route.protocol == "offline":
        if chosen or any(getattr(route, key) for key in CALL_KEYS):
            yield "What is set for calls is left out: the built-in offline model takes no settings."
    elif route.protocol == "anthropic" and sampling and (chosen or route.reasoning_effort) not in (None, "off"):
        yield f"{sampling}: left out where the model thinks (`reasoning_effort`), for it takes none then."
    elif route.protocol == "anthropic" and (" and " in sampling or (route.temperature or 0) > 1):
        yield "This protocol takes `temperature` up to 1, and `top_p` only without it: the rest is left out."


def missing_keys(config: Config) -> Iterator[str]:
    """Sentences about models on the internet that are asked without a key."""
    for route in all_routes(config):
        host, headers = route.host or "", route.extra_headers.values()
        is_own = "." not in host or host.endswith((".local", ".localhost", ".lan", ".internal", ".home.arpa"))
        is_public = (route.address or "").startswith("https:") and not is_own and not host.replace(".", "").isdecimal()
        if is_public and route.api_key is None and not any(isinstance(value, SecretStr) for value in headers):
            where = "model.api_key" if route == config.model.route else f"api_key of the model {route.label}"
            yield f"{where} is missing: {host} is asked without a key; if it needs none, write any word"
