"""How large a model is: whoever says so, prompts have room in what comes of it."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.limits import LimitSettings, limits_of
from agent.model.base import ModelLimits
from agent.model.catalog import known_model, load_catalog, sees_images
from agent.model.sizes import ASSUMED_CONTEXT, MIN_INPUT, UNKNOWN_LIMITS, ModelSize, SizeSource, model_size
from hermes_state.values import Tokens

UNKNOWN = "a-model-of-my-own"
CATALOG = load_catalog()
SIZES = CATALOG.sizes


def said(context: int | None = None, output: int | None = None) -> ModelLimits:
    return ModelLimits(
        context_length=None if context is None else Tokens(context),
        max_output_tokens=None if output is None else Tokens(output),
    )


def figures(capacity: ModelSize) -> tuple[int, SizeSource, int, SizeSource]:
    return capacity.context_length, capacity.context_from, capacity.max_output_tokens, capacity.output_from


# ---- the order


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
        (UNKNOWN, said(100_000), UNKNOWN_LIMITS, (100_000, CONFIGURED, 8_192, ASSUMED)),
        (UNKNOWN, UNKNOWN_LIMITS, said(16_384), (16_384, OFFERED, 4_096, ASSUMED)),
        (UNKNOWN, UNKNOWN_LIMITS, UNKNOWN_LIMITS, (32_768, ASSUMED, 8_192, ASSUMED)),
    ],
)
def test_configuration_comes_before_the_provider_and_that_before_the_catalogue(
    model: str, configured: ModelLimits, offered: ModelLimits, expected: tuple[int, SizeSource, int, SizeSource]
) -> None:
    assert figures(model_size(model, configured, offered)) == expected


@pytest.mark.parametrize("nonsense", [0, -1, 1, 2_047, 20_000_001, 10**30])
def test_a_context_that_cannot_be_is_taken_as_not_said(nonsense: int) -> None:
    assert model_size(UNKNOWN, UNKNOWN_LIMITS, said(nonsense)).context_length == ASSUMED_CONTEXT
    assert model_size("gpt-4.1", UNKNOWN_LIMITS, said(nonsense)).context_length == 1_047_576


@pytest.mark.parametrize("nonsense", [0, -1, 1, 255, 10**30])
def test_an_output_that_cannot_be_is_taken_as_not_said(nonsense: int) -> None:
    assert model_size(UNKNOWN, UNKNOWN_LIMITS, said(100_000, nonsense)).max_output_tokens == 8_192


def test_an_answer_that_may_fill_the_context_leaves_prompts_two_thirds_of_it() -> None:
    capacity = model_size(UNKNOWN, UNKNOWN_LIMITS, said(131_072, 131_072))
    assert capacity.max_output_tokens == 131_072 // 3
    limits = limits_of(capacity.context_length, capacity.max_output_tokens, LimitSettings())
    assert limits.threshold == 131_072 // 2, "half of the context, as configured"


def test_only_what_is_configured_as_a_whole_is_taken_as_it_is() -> None:
    assert model_size(UNKNOWN, said(100_000, 95_000)).max_output_tokens == 95_000
    assert model_size(UNKNOWN, said(None, 95_000), said(100_000)).max_output_tokens == 50_000


@pytest.mark.parametrize(
    ("configured", "offered", "context", "output"),
    [
        (UNKNOWN_LIMITS, UNKNOWN_LIMITS, 400_000, 128_000),
        (said(None, 8_192), UNKNOWN_LIMITS, 272_000 + 8_192, 8_192),
        (said(None, 8_192), said(400_000, 128_000), 272_000 + 8_192, 8_192),
        (UNKNOWN_LIMITS, said(200_000, 8_192), 200_000, 8_192),
        (said(400_000, 8_192), UNKNOWN_LIMITS, 400_000, 8_192),
    ],
)
def test_a_prompt_is_not_longer_than_its_provider_takes_whatever_is_reserved(
    configured: ModelLimits, offered: ModelLimits, context: int, output: int
) -> None:
    size = model_size("gpt-5-mini", configured, offered)
    assert (size.context_length, size.max_output_tokens) == (context, output)


_any = st.one_of(st.none(), st.integers(-(10**12), 10**12), st.sampled_from([0, 1, 2_047, 2_048, 10**30]))
_contexts = st.one_of(st.none(), st.integers(2_731, 20_000_000))  # a smaller one is refused in the configuration
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
def test_whoever_says_what_all_lines_are_in_order_and_a_prompt_has_room(
    model: str,
    context: int | None,
    output: int | None,
    offered_context: int | None,
    offered_output: int | None,
    settings: LimitSettings,
    share: float,
) -> None:
    if context is not None and output is not None:
        output = min(output, context - MIN_INPUT)  # the configuration refuses others
    capacity = model_size(model, said(context, output), said(offered_context, offered_output))
    assert (capacity.context_from is CONFIGURED) == (context is not None)
    assert capacity.context_length - capacity.max_output_tokens >= min(MIN_INPUT, capacity.context_length * 3 // 4)
    smaller = Tokens(MIN_INPUT + int((capacity.context_length - MIN_INPUT) * share))
    for window in (capacity.context_length, smaller):
        reserved = capacity.output_in(window)
        limits = limits_of(window, reserved, settings)
        assert 1 <= reserved <= capacity.max_output_tokens
        assert 1 <= limits.threshold <= limits.hygiene <= limits.urgent <= limits.input_window < window


# ---- the catalogue


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
def test_families_are_known_with_their_providers_and_dates(
    name: str, context: int, output: int | None, sees: bool
) -> None:
    known = known_model(name)
    assert known is not None
    assert (known.context_length, known.max_output_tokens, known.sees_images) == (context, output, sees)


@pytest.mark.parametrize("name", ["", UNKNOWN, "llama3.1", "lab-128k", "my-claude", "gpt", "scripted", "offline"])
def test_other_names_are_not_known(name: str) -> None:
    assert known_model(name) is None


@pytest.mark.parametrize("name", ["gpt-oss:20b", "deepseek-r1:8b", "mistral-nemo:12b-instruct-2407-q4_K_M"])
def test_what_a_server_of_ones_own_holds_is_not_in_the_catalogue(name: str) -> None:
    known = known_model(name)
    assert known is not None
    assert (known.context_length, known.max_output_tokens) == (None, None)
    assert model_size(name, UNKNOWN_LIMITS).context_from is ASSUMED


@pytest.mark.parametrize(
    "name",
    [
        *("gpt-4o-mini", "gpt-5", "o3", "openai/o4-mini", "claude-sonnet-4-5", "gemini-3-flash-preview", "pixtral-12b"),
        *("qwen2.5-vl-7b", "qwen2.5vl:7b", "Qwen/Qwen3-VL-8B-Instruct", "qwen-vl", "llama3.2-vision:11b", "llava:13b"),
        *("llama-3.2-11b-vision-instruct", "minicpm-v:8b", "gemma3:12b", "llama4:scout", "moondream"),
    ],
)
def test_what_sees_images_is_known_by_family_or_name(name: str) -> None:
    assert sees_images(name)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt-3.5-turbo", "deepseek-chat", "qwen3:8b", "o3-mini", "mixtral", "gpt-4", "vlad-7b"]
)
def test_other_models_are_taken_for_blind(name: str) -> None:
    assert not sees_images(name)


def test_the_catalogue_is_dated_and_holds_believable_figures() -> None:
    assert CATALOG.sizes_taken_on.count("-") == 1
    for pattern, known in SIZES.items():
        assert pattern == pattern.lower()
        assert known.context_length is not None
        assert known.context_length in range(8_192, 2_000_001), pattern
        assert known.max_output_tokens is None or known.max_output_tokens < known.context_length, pattern


def test_no_two_patterns_of_one_length_disagree_about_a_name() -> None:
    """The longest wins, so two of the same length would be told apart by their order alone."""
    names = {pattern.replace("[-.]", "-").replace("*", "") for pattern in SIZES} | {"gpt-5-chat", "gpt-5.5-nano"}
    for name in names:
        claiming = [pattern for pattern in SIZES if fnmatchcase(name, pattern)]
        longest = [pattern for pattern in claiming if len(pattern) == max(map(len, claiming))]
        assert len({SIZES[pattern] for pattern in longest}) <= 1, name
