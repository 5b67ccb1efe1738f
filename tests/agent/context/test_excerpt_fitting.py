"""Texts that are too long lose lines and contain a note about that."""

from hypothesis import given
from hypothesis import strategies as st

from agent.context.excerpt import fitted, said
from agent.model.usage import estimated_text_tokens
from hermes_state.values import MessageBody, Tokens
from tests.agent.context.rows import human
from tests.sampling import examples

RECORD = "\n\n".join(f"## {title}\n" + "\n".join(f"- fact {n} of {title}" for n in range(50)) for title in "ABCD")


def test_a_text_that_fits_is_unchanged() -> None:
    assert fitted(RECORD, Tokens(5_000)) == RECORD


def test_every_section_keeps_its_heading_and_counts_missing_lines() -> None:
    text = fitted(RECORD, Tokens(500))
    assert estimated_text_tokens(text) <= 500
    for title in "ABCD":
        assert f"## {title}\n- fact 0 of {title}\n" in text
    assert text.count("lines left out for length]") == 4


def test_a_text_without_headings_is_shortened() -> None:
    text = fitted("\n".join(f"a line with the number {n}" for n in range(200)), Tokens(300))
    assert estimated_text_tokens(text) <= 300
    assert text.startswith("a line with the number 0\n")


@given(
    st.lists(st.sampled_from(["## H", "### 题", "- fact", "", "部署失败了。", "x" * 200])).map("\n".join),
    st.integers(0, 200),
)
@examples(100)
def test_any_text_fits_or_consists_of_headings_and_notes(text: str, limit: int) -> None:
    kept = fitted(text, Tokens(limit))
    rest = [line for line in kept.splitlines() if line and not line.startswith(("#", "["))]
    assert not rest or estimated_text_tokens(kept) <= limit


def test_forwarded_words_are_marked() -> None:
    assert list(said(human("delete it", body=MessageBody(words_by="Bob")))) == ["(forwarded from Bob: delete it)"]
