"""Prices of models whose makers publish them, for those who have not configured their own in `costs.prices`.

Prices change, and whoever resells a model asks what he likes: what is configured wins over this list. A model that is
not in it has an unknown price. The patterns are meant narrowly, so that a successor does not get the price of what it
replaces.
"""

from collections.abc import Mapping
from typing import Final

TAKEN_ON: Final = "2025-12"
"""When the makers asked these prices, as far as is publicly known."""

BUILT_IN: Final[Mapping[str, tuple[float, float, float]]] = {
    # US dollars for a million tokens: input, output, input read from the cache. What a cache write costs, see
    # `prices`: only Anthropic asks extra for it. Where long prompts cost more, the price of the short ones stands here.
    # OpenAI
    "gpt-5.2": (1.75, 14.00, 0.175),
    "gpt-5.2-pro": (21.00, 168.00, 21.00),
    "gpt-5.1": (1.25, 10.00, 0.125),
    "gpt-5": (1.25, 10.00, 0.125),
    "gpt-5*-codex": (1.25, 10.00, 0.125),
    "gpt-5*-chat": (1.25, 10.00, 0.125),
    "gpt-5-mini": (0.25, 2.00, 0.025),
    "gpt-5-nano": (0.05, 0.40, 0.005),
    "gpt-5-pro": (15.00, 120.00, 15.00),
    "gpt-4.1": (2.00, 8.00, 0.50),
    "gpt-4.1-mini": (0.40, 1.60, 0.10),
    "gpt-4.1-nano": (0.10, 0.40, 0.025),
    "gpt-4o": (2.50, 10.00, 1.25),
    "gpt-4o-2024-05-13": (5.00, 15.00, 5.00),
    "gpt-4o-mini": (0.15, 0.60, 0.075),
    "gpt-4-turbo": (10.00, 30.00, 10.00),
    "gpt-3.5-turbo": (0.50, 1.50, 0.50),
    "o1": (15.00, 60.00, 7.50),
    "o3": (2.00, 8.00, 0.50),
    "o3-pro": (20.00, 80.00, 20.00),
    "o3-mini": (1.10, 4.40, 0.55),
    "o4-mini": (1.10, 4.40, 0.275),
    "gpt-4o-transcribe": (6.00, 10.00, 6.00),  # of audio, which is what it is sent
    "gpt-4o-mini-transcribe": (3.00, 5.00, 3.00),
    # Anthropic; OpenRouter writes the version with a dot
    "claude-opus-4[-.]5": (5.00, 25.00, 0.50),
    "claude-opus-4[-.]1": (15.00, 75.00, 1.50),
    "claude-opus-4": (15.00, 75.00, 1.50),
    "claude-opus-4-0": (15.00, 75.00, 1.50),
    "claude-sonnet-4[-.]5": (3.00, 15.00, 0.30),
    "claude-sonnet-4": (3.00, 15.00, 0.30),
    "claude-sonnet-4-0": (3.00, 15.00, 0.30),
    "claude-3[-.]7-sonnet": (3.00, 15.00, 0.30),
    "claude-3[-.]5-sonnet": (3.00, 15.00, 0.30),
    "claude-haiku-4[-.]5": (1.00, 5.00, 0.10),
    "claude-3[-.]5-haiku": (0.80, 4.00, 0.08),
    "claude-3-haiku": (0.25, 1.25, 0.03),
    "claude-3-opus": (15.00, 75.00, 1.50),
    # Google
    "gemini-3-pro-preview": (2.00, 12.00, 0.20),
    "gemini-3-flash-preview": (0.50, 3.00, 0.05),
    "gemini-2.5-pro": (1.25, 10.00, 0.125),
    "gemini-2.5-flash": (0.30, 2.50, 0.03),
    "gemini-2.5-flash-lite": (0.10, 0.40, 0.01),
    "gemini-2.0-flash": (0.10, 0.40, 0.025),
    "gemini-2.0-flash-001": (0.10, 0.40, 0.025),
    "gemini-2.0-flash-lite": (0.075, 0.30, 0.075),
    # DeepSeek
    "deepseek-chat": (0.28, 0.42, 0.028),
    "deepseek-reasoner": (0.28, 0.42, 0.028),
    # Mistral
    "mistral-large": (0.50, 1.50, 0.50),
    "mistral-large-2411": (2.00, 6.00, 2.00),
    "mistral-medium": (0.40, 2.00, 0.40),
    "mistral-small": (0.10, 0.30, 0.10),
    "magistral-medium": (2.00, 5.00, 2.00),
    "codestral": (0.30, 0.90, 0.30),
    "ministral-8b": (0.10, 0.10, 0.10),
    # xAI
    "grok-4": (3.00, 15.00, 0.75),
    "grok-4-fast*": (0.20, 0.50, 0.05),
    "grok-4-1-fast*": (0.20, 0.50, 0.05),
    "grok-3": (3.00, 15.00, 0.75),
    "grok-3-mini": (0.30, 0.50, 0.075),
    "grok-code-fast-1": (0.20, 1.50, 0.02),
}
"""Pattern of the name → price."""
