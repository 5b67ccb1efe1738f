"""One shape for what a call used."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.usage import normalize_usage
from hermes_state.values import CanonicalUsage


def test_cached_tokens_are_taken_out_of_the_input() -> None:
    usage = {
        "prompt_tokens": 81_000,
        "completion_tokens": 500,
        "prompt_tokens_details": {"cached_tokens": 60_000},
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    found = normalize_usage(usage)
    assert found == CanonicalUsage(input=21_000, output=500, cache_read=60_000, reasoning=300)
    assert found.prompt == 81_000


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, {"completion_tokens": 3}])
def test_no_prompt_count_is_no_usage(usage: Any) -> None:
    assert normalize_usage(usage) is None


_counts = st.one_of(st.none(), st.integers(-5, 10**7), st.text(max_size=3))
_details = st.one_of(st.none(), st.dictionaries(st.sampled_from(["cached_tokens", "cache_write_tokens", "x"]), _counts))


@given(prompt=st.integers(0, 10**7), output=_counts, details=_details)
def test_the_parts_add_up_to_what_was_reported_and_are_never_negative(prompt: int, output: Any, details: Any) -> None:
    found = normalize_usage({"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details})
    assert found is not None
    assert found.prompt == prompt
    assert min(found.input, found.output, found.cache_read, found.cache_write) >= 0


def test_a_count_that_cannot_be_one_is_none() -> None:
    assert normalize_usage({"prompt_tokens": 2**62}) is None
    found = normalize_usage({"prompt_tokens": 5, "completion_tokens": 2**70})
    assert found is not None
    assert found.output <= 2**32
