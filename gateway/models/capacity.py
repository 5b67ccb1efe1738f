"""Capacity of models: how large those of a configuration are, and who says so. Light: the command line shows it.

A window is where conversations have to fit in the end; `gateway.models.window` makes it of this and of
what was learned.
"""

from typing import Final

from agent.model.base import ModelLimits
from agent.model.catalog import load_catalog
from agent.model.sizes import UNKNOWN_LIMITS, ModelSize, SizeSource, model_size
from gateway.config.routes import RouteConfig
from hermes_state.models.profiles import OfferedSize
from hermes_state.values import Tokens


def configured_limits(route: RouteConfig) -> ModelLimits:
    """Size of a model by the configuration."""
    context, output = route.context_length, route.max_output_tokens
    return ModelLimits(
        context_length=None if context is None else Tokens(context),
        max_output_tokens=None if output is None else Tokens(output),
    )


def capacity_in(route: RouteConfig, offer: OfferedSize | None = None) -> ModelSize:
    """Size of a model, by what its provider has said as well."""
    said = offer or UNKNOWN_LIMITS
    offered = ModelLimits(context_length=said.context_length, max_output_tokens=said.max_output_tokens)
    return model_size(route.label, configured_limits(route), offered)


_WINDOW_FROM: Final = {
    SizeSource.CONFIGURED: "as configured",
    SizeSource.OFFERED: "as its provider says",
    SizeSource.CATALOGUE: "by the built-in list of {taken_on}",
    SizeSource.ASSUMED: "assumed, for nobody says it; `model.context_length` does",
    SizeSource.LEARNED: "as its provider said when it refused a prompt",
    SizeSource.GUESSED: "assumed for this conversation, since a prompt was refused",
}
"""Sources of a window's size, for people: goes on after a comma."""


def window_from(source: SizeSource) -> str:
    """Words for people on who says how large a window is, to go on after a comma."""
    return _WINDOW_FROM[source].format(taken_on=load_catalog().sizes_taken_on)
