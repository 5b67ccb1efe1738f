"""How large a model's context window is, and how much of it an answer may take: who says so, in which order.

What is configured wins, then what the provider says, then the built-in list, then a figure that nearly every model
has. Whatever the sources say, a prompt has room in what comes of it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.model.base import ModelLimits
from agent.model.catalog import known_model
from hermes_state.values import Tokens

ASSUMED_CONTEXT: Final = 32_768
"""Tokens. Of a model that nobody knows anything about."""
DEFAULT_OUTPUT: Final = 8_192
"""Tokens reserved for an answer of unknown length, unless a quarter of a small context is less."""
MIN_INPUT: Final = 2_048
"""Tokens that are left to prompts, as far as the context allows: below, a system prompt and one exchange do not fit."""

_CONTEXTS: Final = (2_048, 20_000_000)
"""What a provider may believably say of a context, and below of an answer's length; the rest counts as not said."""
_OUTPUTS: Final = (256, 10_000_000)


class SizeSource(StrEnum):
    """Who says how large a model is."""

    CONFIGURED = "configured"
    OFFERED = "offered"
    """The provider."""
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    """Nobody."""
    LEARNED = "learned"
    """The provider, when it refused a prompt."""
    GUESSED = "guessed"
    """It refused a prompt without saying what would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model's window before anything is learned from refusals, and where the figures come from."""

    context_length: Tokens
    context_from: SizeSource
    max_output_tokens: Tokens
    """Reserved out of `context_length`."""
    output_from: SizeSource

    def output_in(self, window: Tokens) -> Tokens:
        """In a window smaller than this one the answer's room gives way first, down to a quarter."""
        lost = self.context_length - window
        return Tokens(min(self.max_output_tokens, max(window // 4, self.max_output_tokens - lost)))


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """What holds for a model of this name. Both figures being configured, they are taken as they are."""
    known, offered = listed_limits(model), plausible(offered)
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
    return ModelSize(
        context_length=context, context_from=context_from, max_output_tokens=output, output_from=output_from
    )


def _max_output(context: Tokens, *, is_configured: bool) -> Tokens:
    """What an answer may take of a context. Many models may write to the end of it, which leaves prompts nothing.

    Of a third, the threshold can still be half of the context; who has configured an output may take half.
    """
    share = context // (2 if is_configured else 3)
    return Tokens(max(1, context // 4, min(share, context - MIN_INPUT)))


def listed_limits(model: str) -> ModelLimits:
    """What the built-in list says."""
    known = known_model(model)
    if known is None:
        return UNKNOWN_LIMITS
    return ModelLimits(context_length=_tokens(known.context_length), max_output_tokens=_tokens(known.max_output_tokens))


def plausible(offered: ModelLimits) -> ModelLimits:
    """What a provider says, without what cannot be true."""
    return ModelLimits(
        context_length=_within(_CONTEXTS, offered.context_length),
        max_output_tokens=_within(_OUTPUTS, offered.max_output_tokens),
    )


def _within(bounds: tuple[int, int], tokens: Tokens | None) -> Tokens | None:
    return tokens if tokens is not None and bounds[0] <= tokens <= bounds[1] else None


def _first(*said: tuple[Tokens | None, SizeSource]) -> tuple[Tokens, SizeSource]:
    return next((figure, source) for figure, source in said if figure is not None)


def _tokens(number: int | None) -> Tokens | None:
    return None if number is None else Tokens(number)
