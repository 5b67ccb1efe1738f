import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.handoff import framed
from agent.model.base import ToolSchema
from agent.model.usage import (
    BLOCK_TOKENS,
    MESSAGE_TOKENS,
    RowTokenCache,
    estimated_schema_tokens,
    estimated_text_tokens,
    rows_size,
)
from agent.model.wire import WireStyle
from hermes_state.values import Document, Image, Message, MessageBody, Origin, Quote, Reasoning, ToolCall
from tests.agent.context.rows import answer, human, result

LIMIT = 1_000


def size(row: Message, sizes: RowTokenCache | None = None, *, seen_images: Collection[int] = (), **changes: Any) -> int:
    """Return the tokens of a row, with 800 per image. `changes`: fields of the wire style."""
    style = WireStyle(max_result_characters=LIMIT, image_urls=dict.fromkeys(seen_images, ""))
    found = rows_size((row,), msgspec.structs.replace(style, **changes), RowTokenCache() if sizes is None else sizes)
    return found.text + 800 * found.images


@pytest.mark.parametrize(
    ("text", "tokens"),
    [  # token counts of the o200k vocabulary
        ("The backup ran at night, and nobody noticed that the disk was nearly full until Monday morning.", 19),
        ("def load(path: Path) -> dict[str, int]:\n    return json.loads(path.read_text())\n", 20),
        ('{"id": 48213, "name": "invoice", "paid": false, "total": 129.50}', 24),
        ("数据库的备份昨天晚上失败了，因为磁盘空间不够。", 16),
        ("バックアップは昨日の夜に失敗しました。", 12),
        ("Резервное копирование вчера не удалось: на диске не было места.", 18),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", 40),
    ],
    ids=["English", "Python", "JSON", "Chinese", "Japanese", "Russian", "hex"],
)
def test_estimates_are_within_a_third_of_a_tokenizer(text: str, tokens: int) -> None:
    assert estimated_text_tokens(text) == pytest.approx(tokens, rel=0.34)


def test_empty_broken_and_dense_texts_are_measured() -> None:
    assert estimated_text_tokens("") == 0 < estimated_text_tokens("\ud83d")
    assert estimated_text_tokens("7" * 3_000) > 700


@given(st.text(max_size=2_000))
def test_a_text_has_at_least_one_and_at_most_two_tokens_per_byte(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert size / 20 <= estimated_text_tokens(text) <= 2 * size + 2


@given(st.text(max_size=500), st.text(max_size=500))
def test_estimates_are_roughly_additive(first: str, second: str) -> None:
    apart = estimated_text_tokens(first) + estimated_text_tokens(second)
    assert abs(estimated_text_tokens(first + second) - apart) <= 8


def test_everything_that_a_row_shows_the_model_counts() -> None:
    bare = human("look")
    parts = MessageBody(
        documents=(Document(name="notes.txt", text="word " * 100),),
        quote=Quote(message_ref="1", author="Ann", text="said " * 50),
        notes=("A voice message could not be read.",),
    )
    full = human("look", body=parts)
    inside = sum(
        estimated_text_tokens(text) for text in ("word " * 100, "said " * 50, "A voice message could not be read.")
    )
    assert size(full) - size(bare) >= inside + 2 * BLOCK_TOKENS


def test_a_row_without_text_has_its_frame_and_its_calls() -> None:
    assert size(answer(None)) == MESSAGE_TOKENS
    calls = MessageBody(calls=(ToolCall(id="1", name="look", arguments='{"at": "the harbour"}'),))
    assert size(answer(None, body=calls)) > MESSAGE_TOKENS + 10


def test_stamps_of_people_count() -> None:
    assert size(human("yes")) - size(answer("yes")) == 12


def test_names_count_in_shared_chats() -> None:
    row = human("yes", sender_name="Anastasia Konstantinopolskaya")
    sizes = RowTokenCache()
    alone = size(row, sizes)
    assert size(row, sizes, is_shared=True) > alone
    assert size(row, sizes) == alone


def test_a_long_result_counts_up_to_its_cut() -> None:
    row = result("1", "word " * 1_000)
    sizes = RowTokenCache()
    cut, whole = size(row, sizes), size(row, sizes, max_result_characters=10_000)
    assert cut * 4 < whole
    assert size(row, sizes) == cut


def test_an_image_counts_as_tokens_or_as_a_note() -> None:
    images = tuple(Image(attachment_id=number, mime="image/png", path="x") for number in (1, 2))
    bare, row = human("look"), human("look", body=MessageBody(images=images))
    assert size(row, seen_images={1}) == size(bare) + 800 + BLOCK_TOKENS


def test_a_row_is_measured_once() -> None:
    sizes = RowTokenCache()
    row = human("hello")
    assert (size(row, sizes), len(sizes)) == (size(row, sizes), 1)


def test_a_shortened_row_with_the_same_id_is_measured_again() -> None:
    sizes = RowTokenCache()
    long = result("1", "word " * 100)
    short = result("1", "[stub]")
    short = Message(**{name: getattr(short, name) for name in Message.__struct_fields__} | {"id": long.id})
    assert size(short, sizes) < size(long, sizes)
    assert size(short, sizes) == size(short)


@given(st.lists(st.integers(0, 200), max_size=300))
def test_the_cache_of_row_sizes_is_bounded(picks: list[int]) -> None:
    rows = [human(f"row {number} " * (number % 7 + 1)) for number in range(201)]
    sizes = RowTokenCache(kept=16)
    for pick in picks:
        assert size(rows[pick], sizes) == size(rows[pick])
        assert len(sizes) <= 32


def test_a_schema_counts_with_all_its_words() -> None:
    small = ToolSchema(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
    words = " ".join(random.Random(1).choices(["place", "harbour", "weather", "time"], k=200))
    large = replace(small, description=words, parameters={"type": "object", "properties": {"at": {"type": "string"}}})
    assert estimated_schema_tokens(large) - estimated_schema_tokens(small) > 190


def test_the_words_around_a_handoff_count() -> None:
    stored = "## Goal\nShip it.\n\n[Stands for 2 messages, m1 to m2.]"
    row = human(stored, origin=Origin.SUMMARY, sender_name=None)
    assert abs(size(row) - estimated_text_tokens(framed(stored))) <= 10


def test_reasoning_counts_only_if_it_is_sent() -> None:
    plain = answer(None, "a")
    blocks = f'[{{"encrypted_content": "{"gAAAAB" * 600}"}}]'
    thought = Reasoning(made_by="responses:m", blocks=blocks)
    thoughtful = msgspec.structs.replace(plain, body=msgspec.structs.replace(plain.body, reasoning=thought))
    assert size(thoughtful) == size(thoughtful, reasoning_of="responses:n") == size(plain)
    assert size(thoughtful, reasoning_of="responses:m") - size(plain) == len(blocks) // 4


def test_reasoning_without_spaces_counts_like_text() -> None:
    thought = Reasoning(made_by="chat_completions:m", blocks='[{"reasoning_content": "' + "数据库的备份" * 100 + '"}]')
    body = msgspec.structs.replace(answer(None, "a").body, reasoning=thought)
    row = answer(None, body=body)
    assert size(row, reasoning_of="chat_completions:m") - size(row) > 300
