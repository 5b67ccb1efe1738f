"""Sizes of models: window, longest prompt and answer, from the configuration, the provider or the built-in list.

For each figure the configuration wins, then what the provider says, then the built-in list, then a figure that nearly
every model has. Whatever the sources say, a prompt has room in what comes of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.model.base import ModelLimits
from agent.model.catalog import KnownModel, known_model
from hermes_state.values import EstimatedTokens, Tokens

ASSUMED_CONTEXT: Final = 32_768
"""Context window of a model that nobody knows anything about, in tokens."""
DEFAULT_RESERVE: Final = 8_192
"""Tokens of a context that are kept for an answer, unless a quarter of a small one is less. No more, however long a
model may write: what is kept for answers is lost to conversations."""
DEFAULT_OUTPUT: Final = 32_000
"""Longest answer that is asked for unless configured, in tokens: providers hold it against the account's credit and its
tokens a minute."""
MIN_OUTPUT: Final = 1_024
"""Shortest answer that is asked for where a prompt leaves next to nothing of its window by our estimate, in tokens."""
ESTIMATE_PERCENT: Final = 5
"""Share of a prompt, in percent, by which our estimate of it may fall short."""
MIN_SLACK: Final = 256
"""Least that it may fall short by, in tokens: what stands around a short prompt is a larger share of it."""
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
    max_input_tokens: Tokens | None
    """Longest prompt, where the provider bounds it below the context, however short the answer is."""
    max_output_tokens: Tokens | None
    """Longest answer; None where nobody knows a limit."""
    output_from: SizeSource
    reserved_output: Tokens
    """Tokens of `context_length` that are kept for the answer."""

    @property
    def usual_output(self) -> Tokens:
        """Output limit of a call whose prompt leaves room for it."""
        if self.output_from is SizeSource.CONFIGURED:
            return self.reserved_output
        return Tokens(min(DEFAULT_OUTPUT, self.max_output_tokens or DEFAULT_OUTPUT))

    def reserved_in(self, window: Tokens) -> Tokens:
        """Tokens kept for the answer in a smaller window: they give way first, down to a quarter."""
        lost = self.context_length - window
        return Tokens(min(self.reserved_output, max(window // 4, self.reserved_output - lost)))

    def output_beside(self, prompt: EstimatedTokens, window: Tokens) -> Tokens:
        """Output limit of a call with such a prompt: what is configured, else what the prompt leaves of the window."""
        reserved = self.reserved_in(window)
        if self.output_from is SizeSource.CONFIGURED:
            return reserved
        room = room_beside(prompt, window)
        return Tokens(min(self.usual_output, max(room, min(MIN_OUTPUT, reserved))))


def room_beside(prompt: EstimatedTokens, window: Tokens) -> int:
    """Tokens that a prompt leaves of a window, less what the estimate may be wrong by."""
    return window - prompt - max(MIN_SLACK, prompt * ESTIMATE_PERCENT // 100)


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """Size of a model of this name. Both figures being configured, they are taken as they are.

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
    reserved = Tokens(max(1, min(DEFAULT_RESERVE, context // 4)))
    if output is not None and output_from is SizeSource.CONFIGURED:
        if context_from is not SizeSource.CONFIGURED:  # half of it at most, and prompts have room
            output = Tokens(min(output, max(1, context // 4, min(context // 2, context - MIN_INPUT))))
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
    """Limits that a provider named, without what cannot be true."""
    return ModelLimits(
        context_length=_within(_CONTEXTS, offered.context_length),
        max_output_tokens=_within(_OUTPUTS, offered.max_output_tokens),
    )


def _within(bounds: tuple[int, int], tokens: Tokens | None) -> Tokens | None:
    return tokens if tokens is not None and bounds[0] <= tokens <= bounds[1] else None


def _first(figures: Iterable[tuple[Tokens | None, SizeSource]]) -> tuple[Tokens | None, SizeSource]:
    return next((one for one in figures if one[0] is not None), (None, SizeSource.ASSUMED))
