"""Model sizes: their sources, and the room for prompts."""

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.limits import LimitSettings, limits_of
from agent.model.base import ModelLimits
from agent.model.catalog import (
    ASSUMED_CONTEXT,
    UNKNOWN_LIMITS,
    ModelSize,
    SizeSource,
    known_model,
    load_catalog,
    model_size,
    sees_images,
)
from hermes_state.values import EstimatedTokens, Tokens
from tests.agent.model.asking import said

MIN_INPUT = 2_048
UNKNOWN = "a-model-of-my-own"
CATALOG = load_catalog()
SIZES = CATALOG.sizes


def figures(capacity: ModelSize) -> tuple[int, SizeSource, int | None, SizeSource]:
    return capacity.context_length, capacity.context_from, capacity.max_output_tokens, capacity.output_from


# ---- order of the sources


CONFIGURED, OFFERED, CATALOGUE, ASSUMED = (
    SizeSource.CONFIGURED,
    SizeSource.OFFERED,
    SizeSource.CATALOGUE,
    SizeSource.ASSUMED,
)


@pytest.mark.parametrize(
    ("model", "configured", "offered", "expected"),
    [
        ("gpt-4.1-mini", said(100_000, 5_000), said(50_000, 7_000), (100_000, CONFIGURED, 5_000, CONFIGURED)),
        ("gpt-4.1-mini", said(100_000), said(50_000, 7_000), (100_000, CONFIGURED, 7_000, OFFERED)),
        ("gpt-4.1-mini", said(100_000), UNKNOWN_LIMITS, (100_000, CONFIGURED, 32_768, CATALOGUE)),
        ("gpt-4.1-mini", said(None, 5_000), said(50_000, 7_000), (50_000, OFFERED, 5_000, CONFIGURED)),
        ("gpt-4.1-mini", UNKNOWN_LIMITS, said(50_000, 7_000), (50_000, OFFERED, 7_000, OFFERED)),
        ("gpt-4.1-mini", UNKNOWN_LIMITS, said(None, 7_000), (1_047_576, CATALOGUE, 7_000, OFFERED)),
        ("gpt-4.1-mini", UNKNOWN_LIMITS, UNKNOWN_LIMITS, (1_047_576, CATALOGUE, 32_768, CATALOGUE)),
        (UNKNOWN, said(100_000), UNKNOWN_LIMITS, (100_000, CONFIGURED, None, ASSUMED)),
        (UNKNOWN, UNKNOWN_LIMITS, said(16_384), (16_384, OFFERED, None, ASSUMED)),
        (UNKNOWN, UNKNOWN_LIMITS, UNKNOWN_LIMITS, (32_768, ASSUMED, None, ASSUMED)),
    ],
)
def test_configuration_overrides_the_provider_which_overrides_the_catalogue(
    model: str, configured: ModelLimits, offered: ModelLimits, expected: tuple[int, SizeSource, int | None, SizeSource]
) -> None:
    assert figures(model_size(model, configured, offered)) == expected


@pytest.mark.parametrize("nonsense", [0, -1, 1, 2_047, 20_000_001, 10**30])
def test_an_impossible_context_is_ignored(nonsense: int) -> None:
    assert model_size(UNKNOWN, UNKNOWN_LIMITS, said(nonsense)).context_length == ASSUMED_CONTEXT
    assert model_size("gpt-4.1", UNKNOWN_LIMITS, said(nonsense)).context_length == 1_047_576


@pytest.mark.parametrize("nonsense", [0, -1, 1, 255, 10**30])
def test_an_impossible_output_limit_is_ignored(nonsense: int) -> None:
    assert model_size(UNKNOWN, UNKNOWN_LIMITS, said(100_000, nonsense)).max_output_tokens is None


# ---- reserve and output limit


@pytest.mark.parametrize(
    ("model", "configured", "offered", "reserved"),
    [
        (UNKNOWN, UNKNOWN_LIMITS, said(131_072, 131_072), 8_192),
        (UNKNOWN, UNKNOWN_LIMITS, said(16_384, 131_072), 4_096),
        (UNKNOWN, UNKNOWN_LIMITS, UNKNOWN_LIMITS, 4_096),
        ("claude-sonnet-4-5", UNKNOWN_LIMITS, UNKNOWN_LIMITS, 8_192),
        ("claude-sonnet-4-5", said(200_000), UNKNOWN_LIMITS, 8_192),
        ("claude-sonnet-4-5", said(200_000, 64_000), UNKNOWN_LIMITS, 64_000),
        ("claude-sonnet-4-5", said(None, 4_000), UNKNOWN_LIMITS, 4_000),
        (UNKNOWN, said(100_000, 95_000), UNKNOWN_LIMITS, 95_000),
        (UNKNOWN, said(None, 95_000), said(100_000), 50_000),
    ],
)
def test_the_reserve_does_not_grow_with_the_models_output_limit(
    model: str, configured: ModelLimits, offered: ModelLimits, reserved: int
) -> None:
    assert model_size(model, configured, offered).reserved_output == reserved


@pytest.mark.parametrize(
    ("model", "configured", "prompt", "limit"),
    [
        ("claude-sonnet-4-5", UNKNOWN_LIMITS, 1_000, 32_000),
        ("claude-sonnet-4-5", UNKNOWN_LIMITS, 170_000, 21_500),
        ("claude-sonnet-4-5", UNKNOWN_LIMITS, 199_000, 1_024),
        ("claude-sonnet-4-5", said(200_000, 64_000), 120_000, 64_000),
        ("claude-sonnet-4-5", said(None, 500), 1_000, 500),
        ("gpt-4o", UNKNOWN_LIMITS, 1_000, 16_384),
        ("o3", UNKNOWN_LIMITS, 1_000, 32_000),
        (UNKNOWN, UNKNOWN_LIMITS, 1_000, 31_512),
        (UNKNOWN, said(8_192), 6_000, 1_892),
        (UNKNOWN, said(4_096), 3_900, 1_024),
        (UNKNOWN, said(2_731), 2_700, 682),
    ],
)
def test_output_limits_are_configured_or_free_room(
    model: str, configured: ModelLimits, prompt: int, limit: int
) -> None:
    size = model_size(model, configured)
    assert size.output_beside(EstimatedTokens(prompt), size.context_length) == limit


@pytest.mark.parametrize(
    ("configured", "offered", "context", "bound"),
    [
        (UNKNOWN_LIMITS, UNKNOWN_LIMITS, 400_000, 272_000),
        (said(None, 8_192), UNKNOWN_LIMITS, 400_000, 272_000),
        (said(None, 8_192), said(400_000, 128_000), 400_000, 272_000),
        (said(400_000), UNKNOWN_LIMITS, 400_000, 272_000),
        (UNKNOWN_LIMITS, said(200_000, 8_192), 200_000, None),
        (said(100_000, 8_192), UNKNOWN_LIMITS, 100_000, None),
        (said(500_000, 8_192), UNKNOWN_LIMITS, 500_000, None),
    ],
)
def test_the_providers_prompt_limit_applies_unless_a_larger_window_is_configured(
    configured: ModelLimits, offered: ModelLimits, context: int, bound: int | None
) -> None:
    size = model_size("gpt-5-mini", configured, offered)
    assert (size.context_length, size.max_input_tokens) == (context, bound)


_any = st.one_of(st.none(), st.integers(-(10**12), 10**12), st.sampled_from([0, 1, 2_047, 2_048, 10**30]))
_contexts = st.one_of(st.none(), st.integers(2_731, 20_000_000))  # the configuration refuses smaller windows
_outputs = st.one_of(st.none(), st.integers(1, 10_000_000))


@given(
    model=st.sampled_from([UNKNOWN, "gpt-oss:20b", *(pattern.replace("*", "x") for pattern in SIZES)]),
    context=_contexts,
    output=_outputs,
    offered_context=_any,
    offered_output=_any,
    settings=st.builds(
        LimitSettings,
        threshold=st.floats(0.001, 1.0),
        hygiene_threshold=st.floats(0.85, 0.95),
        minimum_context_length=st.integers(0, 1_000_000),
    ),
    share=st.floats(0, 1),
)
def test_any_stated_sizes_leave_room_for_a_prompt(
    model: str,
    context: int | None,
    output: int | None,
    offered_context: int | None,
    offered_output: int | None,
    settings: LimitSettings,
    share: float,
) -> None:
    if context is not None and output is not None:
        output = min(output, context - MIN_INPUT)  # the configuration refuses other values
    capacity = model_size(model, said(context, output), said(offered_context, offered_output))
    assert (capacity.context_from is CONFIGURED) == (context is not None)
    assert capacity.context_length - capacity.reserved_output >= min(MIN_INPUT, capacity.context_length * 3 // 4)
    smaller = Tokens(MIN_INPUT + int((capacity.context_length - MIN_INPUT) * share))
    for window in (capacity.context_length, smaller):
        reserved = capacity.reserved_in(window)
        limits = limits_of(window, reserved, settings, capacity.max_input_tokens)
        assert 1 <= reserved <= capacity.reserved_output
        assert 1 <= limits.threshold <= limits.hygiene <= limits.urgent <= limits.input_window < window
        assert limits.input_window <= limits.longest_prompt <= window
        prompt = EstimatedTokens(int(limits.input_window * share))
        output = capacity.output_beside(prompt, window)
        assert 1 <= output <= max(capacity.usual_output, reserved)
        assert prompt + output <= window or output in (1_024, reserved)


# ---- the catalogue


@pytest.mark.parametrize("pattern", SIZES)
def test_listed_models_are_compressed_at_the_documented_thresholds(pattern: str) -> None:
    """At 50 and 85 % of the context, or less if the window is small or prompts are limited."""
    name = pattern.replace("[-.]", "-").replace("[1-3]", "2").replace("[1-9]", "5").replace("*", "")
    name = re.sub(r"\[(\d)-9\]", r"\1", name)
    known = known_model(name)
    context = known.context_length
    assert context is not None
    size = model_size(name, UNKNOWN_LIMITS)
    limits = limits_of(size.context_length, size.reserved_output, LimitSettings(), size.max_input_tokens)
    assert limits.context_length == context
    if known.max_input_tokens is not None:
        assert limits.input_window == known.max_input_tokens
        assert limits.hygiene == min(-(-context * 85 // 100), -(-known.max_input_tokens * 90 // 100))
    elif context >= 128_000:
        assert abs(limits.hygiene * 100 / context - 85) <= 1
    else:
        assert limits.hygiene == -(-(context - max(min(context // 4, 4_096), context // 8)) * 90 // 100)
    assert limits.threshold == context // 2
    assert (limits.hygiene - limits.threshold) * 100 >= 10 * limits.input_window


@pytest.mark.parametrize(
    ("name", "context", "output", "sees"),
    [
        ("gpt-4.1-mini", 1_047_576, 32_768, True),
        ("openai/gpt-4.1-mini-2025-04-14", 1_047_576, 32_768, True),
        ("GPT-5", 400_000, 128_000, True),
        ("gpt-5-2025-08-07", 400_000, 128_000, True),
        ("gpt-5-chat-latest", 128_000, 16_384, True),
        ("gpt-5.5", 1_050_000, 128_000, True),
        ("gpt-5.5-mini", 400_000, 128_000, True),
        ("gpt-6-sol", 1_050_000, 128_000, True),
        ("gpt-4o-2024-05-13", 128_000, 4_096, True),
        ("ft:gpt-4o-mini-2024-07-18:my-org::abc123", 128_000, 16_384, True),
        ("gpt-4-0613", 8_192, None, False),
        ("o3-mini", 200_000, 100_000, False),
        ("o3-2025-04-16", 200_000, 100_000, True),
        ("claude-sonnet-4-5-20250929", 200_000, 64_000, True),
        ("claude-sonnet-4-20250514", 200_000, 64_000, True),
        ("anthropic/claude-sonnet-4.6", 1_000_000, 64_000, True),
        ("claude-opus-4-1-20250805", 200_000, 32_000, True),
        ("claude-opus-5-5", 1_000_000, 128_000, True),
        ("claude-3-5-haiku-latest", 200_000, 8_192, True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000, 64_000, True),
        ("claude-sonnet-4-5@20250929", 200_000, 64_000, True),
        ("models/gemini-2.5-pro", 1_048_576, 65_536, True),
        ("google/gemini-2.0-flash-001", 1_048_576, 8_192, True),
        ("deepseek/deepseek-v4-flash", 1_000_000, 384_000, False),
        ("deepseek/deepseek-r1:free", 128_000, None, False),
        ("mistral-large-2411", 131_072, None, False),
        ("mistral-large-latest", 262_144, None, True),
        ("x-ai/grok-4.1-fast", 2_000_000, None, True),
        ("grok-4.20-reasoning", 1_000_000, None, True),
        ("grok-4", 256_000, None, True),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, None, False),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_192, None, False),
        ("qwen/qwen3-235b-a22b-instruct-2507", 262_144, None, False),
        ("qwen3-max", 262_144, 65_536, False),
    ],
)
def test_family_names_match_with_providers_and_dates(name: str, context: int, output: int | None, sees: bool) -> None:
    known = known_model(name)
    assert (known.context_length, known.max_output_tokens, known.sees_images) == (context, output, sees)


@pytest.mark.parametrize("name", ["", UNKNOWN, "llama3.1", "lab-128k", "my-claude", "gpt", "scripted", "offline"])
def test_unlisted_names_are_unknown(name: str) -> None:
    assert known_model(name) is None


@pytest.mark.parametrize("name", ["gpt-oss:20b", "deepseek-r1:8b", "mistral-nemo:12b-instruct-2407-q4_K_M"])
def test_windows_of_local_servers_are_not_in_the_catalogue(name: str) -> None:
    known = known_model(name)
    assert (known.context_length, known.max_output_tokens) == (None, None)
    assert model_size(name, UNKNOWN_LIMITS).context_from is ASSUMED


SEEING = ["gpt-4o-mini", "gpt-5", "o3", "openai/o4-mini", "claude-sonnet-4-5", "gemini-3-flash-preview", "pixtral-12b"]
SEEING += ["qwen2.5-vl-7b", "qwen2.5vl:7b", "Qwen/Qwen3-VL-8B-Instruct", "qwen-vl", "llama3.2-vision:11b", "llava:13b"]
SEEING += ["llama-3.2-11b-vision-instruct", "minicpm-v:8b", "gemma3:12b", "llama4:scout", "moondream"]
BLIND = ["llama-3.1-8b", "gpt-3.5-turbo", "deepseek-chat", "qwen3:8b", "o3-mini", "mixtral", "gpt-4", "vlad-7b"]


@pytest.mark.parametrize("name", [*SEEING, *BLIND])
def test_image_input_is_known_by_family_or_name(name: str) -> None:
    assert sees_images(name) is (name in SEEING)


def test_the_catalogue_is_dated_and_plausible() -> None:
    assert CATALOG.sizes_taken_on.count("-") == 1
    for pattern, known in SIZES.items():
        assert pattern == pattern.lower()
        assert known.context_length is not None
        assert known.context_length in range(8_192, 2_000_001), pattern
        assert known.max_output_tokens is None or known.max_output_tokens < known.context_length, pattern


def test_equally_long_patterns_agree_about_a_name() -> None:
    """The longest pattern wins, so the order would decide between two of the same length."""
    names = {pattern.replace("[-.]", "-").replace("*", "") for pattern in SIZES} | {"gpt-5-chat", "gpt-5.5-nano"}
    for name in names:
        claiming = [pattern for pattern in SIZES if fnmatchcase(name, pattern)]
        longest = [pattern for pattern in claiming if len(pattern) == max(map(len, claiming))]
        assert len({SIZES[pattern] for pattern in longest}) <= 1, name
