"""Call settings of routes: what every call says beside the conversation, in words, and what of it is missing."""

import re
from collections.abc import Iterator
from typing import Final

from pydantic import SecretStr

from gateway.config.routes import CALL_KEYS, RouteConfig
from gateway.config.settings import Config
from gateway.models.auxiliary import all_routes
from hermes_state.values import ReasoningEffort

_NO_SAMPLING: Final = re.compile(
    r"(?:^|/)(?:o[1-9]\b|gpt-[5-9](?!.*chat)|claude-(?:opus-4[-.][7-9]|(?:opus|sonnet|haiku)-[5-9]|fable|mythos))"
)
"""Models that are known to draw their words in their own way."""
_NO_EFFORT: Final = re.compile(r"(?:^|/)(?:(?:chat)?gpt-[34]|claude-(?:[12]|3-[^7]|instant))")
"""Models that are known not to think."""


def settings_text(route: RouteConfig, chosen: ReasoningEffort | None = None) -> str:
    """What is set, to go on behind a comma: `, temperature 0.2, reasoning effort high`; empty where nothing is.

    `chosen`: the effort of a conversation. Of headers and further fields only the names are told.
    """
    words = [f"{key} {value:g}" for key in ("temperature", "top_p") if (value := getattr(route, key)) is not None]
    if effort := chosen or route.reasoning_effort:
        words.append(f"reasoning effort {effort}" + (" (chosen here)" if chosen else ""))
    for what, block in (("header", route.extra_headers), ("field", route.extra_body)):
        words += [f"{what} {name}" for name in block]
    return "".join(f", {word}" for word in words)


def left_out(route: RouteConfig, chosen: ReasoningEffort | None = None) -> Iterator[str]:
    """Sentences about settings that do not reach a route's model, as far as is known without asking it."""
    effort, name = chosen or route.reasoning_effort, (route.name or "").lower()
    thinks = effort not in (None, "off")
    sampling = " and ".join(f"`{key}`" for key in ("temperature", "top_p") if getattr(route, key) is not None)
    if route.protocol == "offline":
        if chosen or any(getattr(route, key) for key in CALL_KEYS):
            yield "What is set for calls is left out: the built-in offline model takes no settings."
        return
    if thinks and _NO_EFFORT.search(name):
        yield "`reasoning_effort` is left out once it is refused: this model does not think."
    if sampling and _NO_SAMPLING.search(name):
        yield f"{sampling}: left out once refused, for this model draws its words in its own way."
    elif sampling and route.protocol == "anthropic" and thinks:
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
