"""Sizes of models: window, longest prompt and answer, from the configuration, the provider or the catalog.

For each figure the configuration wins, then the provider, then the catalog, then a figure that nearly every model has.
The result always leaves room for a prompt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.model.base import ModelLimits
from agent.model.catalog import KnownModel, known_model
from hermes_state.values import EstimatedTokens, Tokens

ASSUMED_CONTEXT: Final = 32_768
"""Context window of an unknown model, in tokens."""
DEFAULT_OUTPUT: Final = 32_000
"""Longest answer that is asked for unless configured, in tokens: providers count it against credit and rate limits."""
MIN_OUTPUT: Final = 1_024
"""Shortest answer that is asked for where a prompt nearly fills its window by our estimate, in tokens."""


class SizeSource(StrEnum):
    """Source of a model's size."""

    CONFIGURED = "configured"
    OFFERED = "offered"
    """The provider."""
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    """No source: a default."""
    LEARNED = "learned"
    """The provider, when it refused a prompt."""
    GUESSED = "guessed"
    """The provider, when it refused a prompt without a size that would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model's window before anything is learned from refusals, and the sources of the figures."""

    context_length: Tokens
    context_from: SizeSource
    max_input_tokens: Tokens | None
    """Longest prompt, where the provider bounds it below the context."""
    max_output_tokens: Tokens | None
    """Longest answer, if a limit is known."""
    output_from: SizeSource
    reserved_output: Tokens
    """Tokens of `context_length` that are kept for the answer."""

    @property
    def usual_output(self) -> Tokens:
        """Return the output limit of a call whose prompt leaves room for it."""
        if self.output_from is SizeSource.CONFIGURED:
            return self.reserved_output
        return Tokens(min(DEFAULT_OUTPUT, self.max_output_tokens or DEFAULT_OUTPUT))

    def reserved_in(self, window: Tokens) -> Tokens:
        """Return the tokens kept for the answer in a smaller window: they shrink first, down to a quarter."""
        lost = self.context_length - window
        return Tokens(min(self.reserved_output, max(window // 4, self.reserved_output - lost)))

    def output_beside(self, prompt: EstimatedTokens, window: Tokens) -> Tokens:
        """Return the output limit of a call: the configured one, else the room that the prompt leaves."""
        reserved = self.reserved_in(window)
        if self.output_from is SizeSource.CONFIGURED:
            return reserved
        room = room_beside(prompt, window)
        return Tokens(min(self.usual_output, max(room, min(MIN_OUTPUT, reserved))))


def room_beside(prompt: EstimatedTokens, window: Tokens) -> int:
    """Return the tokens that a prompt leaves of a window, if our estimate falls short by 5 % or 256 tokens."""
    return window - prompt - max(256, prompt * 5 // 100)


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """Return the size of a model of this name. If both figures are configured, they hold unchanged.

    >>> size = model_size("gpt-4o", ModelLimits(context_length=Tokens(100_000)))
    >>> size.context_length, size.context_from.value, size.max_output_tokens, size.output_from.value
    (100000, 'configured', 16384, 'catalogue')
    >>> size.reserved_output, size.output_beside(EstimatedTokens(90_000), size.context_length)
    (8192, 5500)
    """
    known, offered = known_model(model) or KnownModel(), plausible(offered)
    sources: tuple[tuple[ModelLimits | KnownModel, SizeSource], ...] = (
        (configured, SizeSource.CONFIGURED),
        (offered, SizeSource.OFFERED),
        (known, SizeSource.CATALOGUE),
    )
    stated, context_from = _first((size.context_length, source) for size, source in sources)
    output, output_from = _first((size.max_output_tokens, source) for size, source in sources)
    context = Tokens(ASSUMED_CONTEXT) if stated is None else stated
    # No more is reserved for a model that writes longer answers: the reserve is lost to conversations.
    reserved = Tokens(max(1, min(8_192, context // 4)))
    if output is not None and output_from is SizeSource.CONFIGURED:
        if context_from is not SizeSource.CONFIGURED:  # half of it at most, and room for a prompt of 2,048 tokens
            output = Tokens(min(output, max(1, context // 4, min(context // 2, context - 2_048))))
        reserved = output
    bound = known.max_input_tokens
    if bound is not None and not bound < context <= (known.context_length or 0):
        bound = None  # it is none, or the window that is configured is not the one that the list knows
    return ModelSize(
        context_length=context,
        context_from=context_from,
        max_input_tokens=bound,
        max_output_tokens=output,
        output_from=output_from,
        reserved_output=reserved,
    )


def plausible(offered: ModelLimits) -> ModelLimits:
    """Return the limits that a provider named, without impossible ones."""
    context, output = offered.context_length, offered.max_output_tokens
    return ModelLimits(
        context_length=context if context is not None and 2_048 <= context <= 20_000_000 else None,
        max_output_tokens=output if output is not None and 256 <= output <= 10_000_000 else None,
    )


def _first(figures: Iterable[tuple[Tokens | None, SizeSource]]) -> tuple[Tokens | None, SizeSource]:
    return next((one for one in figures if one[0] is not None), (None, SizeSource.ASSUMED))
