"""Model sizes: context window, longest prompt and longest answer.

Each size comes from the first of these sources that states it: the configuration, the provider, the catalog. If none of
them does, a default that suits nearly every model is used. The output limit always leaves room for a prompt.
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
"""Default output limit in tokens. A higher limit would count against credit and rate limits at some providers."""
MIN_OUTPUT: Final = 1_024
"""Lowest output limit, in tokens. It applies if, by our estimate, the prompt nearly fills the context window."""


class SizeSource(StrEnum):
    """Source of a model's size."""

    CONFIGURED = "configured"
    OFFERED = "offered"
    """Size that the provider stated."""
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    """Default size, used because no source states one."""
    LEARNED = "learned"
    """Size that the provider stated when it refused a prompt."""
    GUESSED = "guessed"
    """Estimated size, used because a refusal stated no usable size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Limits of a model and the source of each. Limits learned from refusals are not included."""

    context_length: Tokens
    context_from: SizeSource
    max_input_tokens: Tokens | None
    """Longest prompt, if the provider limits prompts to less than the context window."""
    max_output_tokens: Tokens | None
    """Longest answer, if a limit is known."""
    output_from: SizeSource
    reserved_output: Tokens
    """Tokens of `context_length` that are reserved for the answer."""

    @property
    def usual_output(self) -> Tokens:
        """Return the output limit for a call whose prompt leaves enough room."""
        if self.output_from is SizeSource.CONFIGURED:
            return self.reserved_output
        return Tokens(min(DEFAULT_OUTPUT, self.max_output_tokens or DEFAULT_OUTPUT))

    def reserved_in(self, window: Tokens) -> Tokens:
        """Return the tokens to reserve for the answer in a smaller window.

        The reserve shrinks first, down to a quarter of the window. Only then does the room for prompts shrink.
        """
        lost = self.context_length - window
        return Tokens(min(self.reserved_output, max(window // 4, self.reserved_output - lost)))

    def output_beside(self, prompt: EstimatedTokens, window: Tokens) -> Tokens:
        """Return the output limit of a call: the configured limit, else the room that the prompt leaves."""
        reserved = self.reserved_in(window)
        if self.output_from is SizeSource.CONFIGURED:
            return reserved
        room = room_beside(prompt, window)
        return Tokens(min(self.usual_output, max(room, min(MIN_OUTPUT, reserved))))


def room_beside(prompt: EstimatedTokens, window: Tokens) -> int:
    """Return the number of tokens that a prompt leaves free, less a margin of 5 % of the prompt (at least 256)."""
    return window - prompt - max(256, prompt * 5 // 100)


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """Return the limits of the named model. If both limits are configured, they are used unchanged.

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
    # Do not reserve more for models with longer answers, because conversations cannot use the reserved tokens.
    reserved = Tokens(max(1, min(8_192, context // 4)))
    if output is not None and output_from is SizeSource.CONFIGURED:
        if context_from is not SizeSource.CONFIGURED:  # at most half the window; leave 2,048 tokens for the prompt
            output = Tokens(min(output, max(1, context // 4, min(context // 2, context - 2_048))))
        reserved = output
    bound = known.max_input_tokens
    if bound is not None and not bound < context <= (known.context_length or 0):
        bound = None  # not a real limit, or the actual window differs from the catalog's
    return ModelSize(
        context_length=context,
        context_from=context_from,
        max_input_tokens=bound,
        max_output_tokens=output,
        output_from=output_from,
        reserved_output=reserved,
    )


def plausible(offered: ModelLimits) -> ModelLimits:
    """Return the limits stated by a provider, with implausible values replaced by None."""
    context, output = offered.context_length, offered.max_output_tokens
    return ModelLimits(
        context_length=context if context is not None and 2_048 <= context <= 20_000_000 else None,
        max_output_tokens=output if output is not None and 256 <= output <= 10_000_000 else None,
    )


def _first(figures: Iterable[tuple[Tokens | None, SizeSource]]) -> tuple[Tokens | None, SizeSource]:
    return next((one for one in figures if one[0] is not None), (None, SizeSource.ASSUMED))
