"""Sizes of models: context window and output limit, from the configuration, the provider or the built-in list.

For each figure the configuration wins, then what the provider says, then the built-in list, then a figure that nearly
every model has. Whatever the sources say, a prompt has room in what comes of it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.model.base import ModelLimits
from agent.model.catalog import KnownModel, known_model
from hermes_state.values import Tokens

ASSUMED_CONTEXT: Final = 32_768
"""Context window of a model that nobody knows anything about, in tokens."""
DEFAULT_OUTPUT: Final = 8_192
"""Tokens reserved for an answer of unknown length, unless a quarter of a small context is less."""
MIN_INPUT: Final = 2_048
"""Tokens that are left to prompts, as far as the context allows: below, a system prompt and one exchange do not fit."""

_CONTEXTS: Final = (2_048, 20_000_000)
"""Smallest and largest context that a provider is believed, in tokens; the rest counts as not said."""
_OUTPUTS: Final = (256, 10_000_000)
"""Smallest and largest output limit that a provider is believed, in tokens."""


class SizeSource(StrEnum):
    """Source of a model's size."""

    CONFIGURED = "configured"
    OFFERED = "offered"
    """The provider."""
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    """Nobody."""
    LEARNED = "learned"
    """The provider, when it refused a prompt."""
    GUESSED = "guessed"
    """The provider, when it refused a prompt without saying what would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model's window before anything is learned from refusals, and where the figures come from."""

    context_length: Tokens
    context_from: SizeSource
    max_output_tokens: Tokens
    """Reserved out of `context_length`."""
    output_from: SizeSource

    def output_in(self, window: Tokens) -> Tokens:
        """Tokens reserved for the answer in a smaller window: it gives way first, down to a quarter."""
        lost = self.context_length - window
        return Tokens(min(self.max_output_tokens, max(window // 4, self.max_output_tokens - lost)))


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """Size of a model of this name. Both figures being configured, they are taken as they are.

    >>> size = model_size("gpt-4o", ModelLimits(max_output_tokens=Tokens(4_000)))
    >>> size.context_length, size.context_from.value, size.max_output_tokens, size.output_from.value
    (128000, 'catalogue', 4000, 'configured')
    """
    known, offered = known_model(model) or KnownModel(), plausible(offered)
    context, context_from = _first(
        (configured.context_length, SizeSource.CONFIGURED),
        (offered.context_length, SizeSource.OFFERED),
        (known.context_length, SizeSource.CATALOGUE),
        (Tokens(ASSUMED_CONTEXT), SizeSource.ASSUMED),
    )
    usual = Tokens(max(1, min(DEFAULT_OUTPUT, context // 4)))
    output, output_from = _first(
        (configured.max_output_tokens, SizeSource.CONFIGURED),
        (offered.max_output_tokens, SizeSource.OFFERED),
        (known.max_output_tokens, SizeSource.CATALOGUE),
        (usual, SizeSource.ASSUMED),
    )
    if (context_from, output_from) != (SizeSource.CONFIGURED, SizeSource.CONFIGURED):
        output = min(output, _max_output(context, is_configured=output_from is SizeSource.CONFIGURED))
    if known.max_input_tokens is not None and context_from is not SizeSource.CONFIGURED:
        # A longer prompt is refused, however little is reserved for the answer.
        context = Tokens(min(context, known.max_input_tokens + output))
    return ModelSize(
        context_length=context, context_from=context_from, max_output_tokens=output, output_from=output_from
    )


def _max_output(context: Tokens, *, is_configured: bool) -> Tokens:
    """Most tokens of a context for the answer. Many models may write to the end of it, which leaves prompts nothing.

    Of a third, the threshold can still be half of the context; who has configured an output may take half.
    """
    share = context // (2 if is_configured else 3)
    return Tokens(max(1, context // 4, min(share, context - MIN_INPUT)))


def plausible(offered: ModelLimits) -> ModelLimits:
    """Limits that a provider named, without what cannot be true."""
    return ModelLimits(
        context_length=_within(_CONTEXTS, offered.context_length),
        max_output_tokens=_within(_OUTPUTS, offered.max_output_tokens),
    )


def _within(bounds: tuple[int, int], tokens: Tokens | None) -> Tokens | None:
    return tokens if tokens is not None and bounds[0] <= tokens <= bounds[1] else None


def _first(*figures: tuple[Tokens | None, SizeSource]) -> tuple[Tokens, SizeSource]:
    return next((figure, source) for figure, source in figures if figure is not None)
