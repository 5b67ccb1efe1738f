"""How large models are and whether they see images, by name, for those of whom neither configuration nor provider says.

Whoever resells or hosts a model may allow less than its maker: what the provider says wins over this list, what is
configured over both, and what a refused prompt teaches lowers either. The patterns stand for families, so that a
model's next release is not taken for an unknown one; where hosts differ, the smaller figure stands here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Final

TAKEN_ON: Final = "2026-10"
"""When these were the figures of the makers, as far as is publicly known."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One family."""

    context_length: int | None
    """Tokens; None where that depends on how a server of one's own was started."""
    max_output_tokens: int | None = None
    """None: no limit of its own."""
    sees_images: bool = False


@lru_cache(maxsize=256)
def known_model(model: str) -> KnownModel | None:
    """What is known of a model's family; None for a name that matches none.

    A name with a tag, such as `gpt-oss:20b`, is one of a server of one's own, whose window is what it was started with.
    """
    names = list(_names(model))
    known = next((one for pattern, one in _BY_LENGTH if any(map(pattern.match, names))), None)
    if known is None:
        return None
    return KnownModel(None, None, known.sees_images) if _has_local_tag(model) else known


def sees_images(model: str) -> bool:
    """Whether a model is known to see images, by its family or by what it is called."""
    known = known_model(model)
    if known is not None and known.sees_images:
        return True
    return any(pattern.match(name) for name in _names(model) for pattern in _SEEING)


_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{2}-\d{2}|latest)$")
_TAG = re.compile(r":[^/]*$")
_HOSTED_TAG = re.compile(r":(?:free|nitro|floor|exacto|extended|online|thinking|beta|\d+)$")
"""Behind names of resellers, for another way to the same model; and the revision behind Amazon's."""
_FINE_TUNED = re.compile(r"^ft:([^:]+):.*$")
_CLOUD = re.compile(r"^(?:[a-z]{2,6}\.)?(?:amazon|anthropic|deepseek|google|meta|mistral|openai|qwen|xai)\.")
_REVISION = re.compile(r"-v\d+$")


def _names(model: str) -> Iterator[str]:
    """Every spelling; `eu.anthropic.claude-sonnet-4-5-20250929-v1:0` is also `claude-sonnet-4-5`."""
    name = _TAG.sub("", _FINE_TUNED.sub(r"\1", model.strip().lower()))
    yield from spellings(name)
    yield from spellings(_REVISION.sub("", _CLOUD.sub("", name.rpartition("/")[2])))


def _has_local_tag(model: str) -> bool:
    name = model.strip().lower()
    return bool(_TAG.search(name)) and not (_HOSTED_TAG.search(name) or _FINE_TUNED.match(name))


_SEEING: Final = tuple(
    re.compile(translate(pattern))
    for pattern in (
        *("*vision*", "*[-_]vl", "*[-_]vl[-_]*", "*[0-9]vl", "*[0-9]vl-*", "*llava*", "*minicpm-v*", "*internvl*"),
        *("*moondream*", "gemma3*", "gemma4*", "llama4*", "mistral-small3*"),
    )
)
"""Names that say it, also of models whose window is not known."""

BUILT_IN: Final[Mapping[str, KnownModel]] = {
    # OpenAI
    "gpt-6*": KnownModel(1_050_000, 128_000, True),
    "gpt-5.[4-9]*": KnownModel(1_050_000, 128_000, True),
    "gpt-5.[4-9]-mini*": KnownModel(400_000, 128_000, True),
    "gpt-5.[4-9]-nano*": KnownModel(400_000, 128_000, True),
    "gpt-5.[4-9]-instant*": KnownModel(400_000, 128_000, True),
    "gpt-5*": KnownModel(400_000, 128_000, True),
    "gpt-5*-chat*": KnownModel(128_000, 16_384, True),
    "gpt-5.3-codex-spark*": KnownModel(128_000),
    "gpt-4.1*": KnownModel(1_047_576, 32_768, True),
    "gpt-4o*": KnownModel(128_000, 16_384, True),
    "gpt-4o-2024-05-13": KnownModel(128_000, 4_096, True),
    "chatgpt-4o*": KnownModel(128_000, 16_384, True),
    "gpt-4-turbo*": KnownModel(128_000, 4_096, True),
    "gpt-4": KnownModel(8_192),
    "gpt-3.5-turbo*": KnownModel(16_385, 4_096),
    "gpt-oss-*": KnownModel(131_072),
    "gpt-oss": KnownModel(131_072),
    "o1": KnownModel(200_000, 100_000, True),
    "o1-pro*": KnownModel(200_000, 100_000, True),
    "o1-mini*": KnownModel(128_000, 65_536),
    "o1-preview*": KnownModel(128_000, 32_768),
    "o3": KnownModel(200_000, 100_000, True),
    "o3-*": KnownModel(200_000, 100_000, True),
    "o3-mini*": KnownModel(200_000, 100_000),
    "o4-mini*": KnownModel(200_000, 100_000, True),
    # Anthropic; OpenRouter writes the version with a dot
    "claude-*": KnownModel(200_000, 32_000, True),
    "claude-fable-*": KnownModel(1_000_000, 128_000, True),
    "claude-mythos-*": KnownModel(1_000_000, 128_000, True),
    "claude-opus-[5-9]*": KnownModel(1_000_000, 128_000, True),
    "claude-sonnet-[5-9]*": KnownModel(1_000_000, 128_000, True),
    "claude-haiku-[5-9]*": KnownModel(1_000_000, 128_000, True),
    "claude-opus-4[-.][6-9]*": KnownModel(1_000_000, 128_000, True),
    "claude-sonnet-4[-.][6-9]*": KnownModel(1_000_000, 64_000, True),
    "claude-opus-4[-.]5*": KnownModel(200_000, 64_000, True),
    "claude-opus-4*": KnownModel(200_000, 32_000, True),
    "claude-sonnet-4*": KnownModel(200_000, 64_000, True),
    "claude-haiku-4*": KnownModel(200_000, 64_000, True),
    "claude-3[-.]7-*": KnownModel(200_000, 64_000, True),
    "claude-3[-.]5-*": KnownModel(200_000, 8_192, True),
    "claude-3-*": KnownModel(200_000, 4_096, True),
    # Google
    "gemini-*": KnownModel(1_048_576, 65_536, True),
    "gemini-2.0-*": KnownModel(1_048_576, 8_192, True),
    "gemini-1.5-*": KnownModel(1_048_576, 8_192, True),
    "gemini-*-image*": KnownModel(32_768, None, True),
    "gemma-3-*": KnownModel(131_072, 8_192, True),
    # DeepSeek
    "deepseek-chat": KnownModel(1_000_000, 384_000),
    "deepseek-reasoner": KnownModel(1_000_000, 384_000),
    "deepseek-v4*": KnownModel(1_000_000, 384_000),
    "deepseek-v4.[1-9]*": KnownModel(1_000_000, 384_000, True),
    "deepseek-chat-v3*": KnownModel(131_072),
    "deepseek-v3*": KnownModel(131_072),
    "deepseek-r1*": KnownModel(128_000),
    # Mistral
    "mistral-large*": KnownModel(262_144, None, True),
    "mistral-large-24*": KnownModel(131_072),
    "mistral-medium*": KnownModel(131_072, None, True),
    "mistral-medium-3[-.]5*": KnownModel(262_144, None, True),
    "mistral-medium-26*": KnownModel(262_144, None, True),
    "mistral-small*": KnownModel(128_000, None, True),
    "mistral-nemo*": KnownModel(128_000),
    "open-mistral-nemo*": KnownModel(128_000),
    "ministral-*": KnownModel(131_072),
    "ministral-*-2512": KnownModel(262_144, None, True),
    "magistral-*": KnownModel(128_000),
    "codestral*": KnownModel(256_000),
    "devstral*": KnownModel(128_000),
    "devstral-*2512": KnownModel(262_144),
    "devstral-2512": KnownModel(262_144),
    "pixtral-*": KnownModel(128_000, None, True),
    # xAI
    "grok-4*": KnownModel(256_000, None, True),
    "grok-4-fast*": KnownModel(2_000_000, None, True),
    "grok-4[-.]1-fast*": KnownModel(2_000_000, None, True),
    "grok-4.20*": KnownModel(1_000_000, None, True),
    "grok-4.3*": KnownModel(1_000_000, None, True),
    "grok-4.[5-9]*": KnownModel(500_000, None, True),
    "grok-3*": KnownModel(131_072),
    "grok-code-*": KnownModel(256_000),
    # Meta
    "muse-spark-*": KnownModel(1_048_576, 131_072, True),
    "llama-4-*": KnownModel(131_072, None, True),
    "llama-3.[1-3]-*": KnownModel(131_072),
    "llama-3-*": KnownModel(8_192),
    "meta-llama-3.[1-3]-*": KnownModel(131_072),
    "meta-llama-3-*": KnownModel(8_192),
    # Qwen
    "qwen3.[5-9]-*": KnownModel(262_144, 65_536, True),
    "qwen3.[5-9]-max*": KnownModel(262_144, 65_536),
    "qwen3-max*": KnownModel(262_144, 65_536),
    "qwen3-coder*": KnownModel(262_144, 65_536),
    "qwen3-next-*": KnownModel(262_144),
    "qwen3-vl-*": KnownModel(131_072, 32_768, True),
    "qwen3-*2507*": KnownModel(262_144),
    "qwen3-*": KnownModel(40_960),
    "qwen2.5-*": KnownModel(32_768, 8_192),
    "qwen-max*": KnownModel(32_768, 8_192),
    "qwen-plus*": KnownModel(1_000_000, 32_768),
    "qwen-flash*": KnownModel(1_000_000, 32_768),
}
"""Pattern of the name → what is known; of several the longest wins."""

_BY_LENGTH: Final = [
    (re.compile(translate(pattern)), BUILT_IN[pattern]) for pattern in sorted(BUILT_IN, key=len, reverse=True)
]


def spellings(model: str) -> Iterator[str]:
    """What a model may be called in a list: `openai/gpt-5-2025-08-07` is also `gpt-5-2025-08-07` and `gpt-5`."""
    name = model.strip().lower()
    yield name
    bare = name.rpartition("/")[2]
    yield bare
    yield _DATE.sub("", name)
    yield _DATE.sub("", bare)
