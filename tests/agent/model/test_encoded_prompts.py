"""Cache of encoded prompt prefixes: the same bytes as without a cache, less work, bounded memory."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.base import ModelRequest, ToolSchema
from agent.model.http import MIN_KEPT_ROWS, MIN_NEW_ROWS, KeptPromptCache
from agent.model.protocols import chat_completions, responses
from agent.model.protocols.anthropic import marked_parts
from agent.model.wire import TracedMessages, WireStyle, chat_messages, traced_messages
from hermes_state.values import Message, MessageRole, Reasoning, SessionId, Transcript
from tests.agent.context.histories import histories
from tests.agent.context.rows import answer, human, result
from tests.sampling import examples

TOOLS = (ToolSchema(name="look", description="Look.", parameters={"type": "object"}),)
Encode = Callable[[ModelRequest, KeptPromptCache], bytes]


def _chat(request: ModelRequest, kept: KeptPromptCache, **options: Any) -> bytes:
    return chat_completions.encoded_request("m", request, kept=kept, **options)


THOUGHTS = {
    "chat_completions:m": '[{"reasoning_content": "Hm."}]',
    "responses:m": '[[0, {"type": "reasoning", "encrypted_content": "gAAA"}]]',
    "anthropic:m": '{"behind": "", "blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]}',
}
ENCODERS: list[tuple[str, Encode]] = [
    ("chat_completions:m", _chat),
    ("chat_completions:m", partial(_chat, cache_ttl="5m")),
    ("responses:m", lambda request, kept: responses.encoded_request("m", request, kept=kept)),
    ("anthropic:m", lambda request, kept: orjson.dumps(marked_parts(request, kept, None))),
    ("anthropic:m", lambda request, kept: orjson.dumps(marked_parts(request, kept, "1h"))),
]


def asked(rows: Sequence[Message], *, version: int = 1, session: int = 1, **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "system": "Be.",
        "transcript": tuple(rows),
        "tools": TOOLS,
        "max_output_tokens": 9,
        "view": (SessionId(session), version),
    }
    return ModelRequest(**(values | changes))


def chat(turns: int, words: str = "words") -> list[Message]:
    """Return turns, of which every third calls a tool."""
    rows: list[Message] = []
    for number in range(turns):
        rows.append(human(f"{words} {number}"))
        if number % 3 == 0:
            rows += [answer(None, f"call_{number}"), result(f"call_{number}")]
        rows.append(answer(f"answer {number}"))
    return rows


class Counting:
    """Render function that counts its rows."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, rows: Transcript, call_ids: set[str]) -> list[Any]:
        self.rows += len(rows)
        return chat_messages("", rows, WireStyle(), call_ids)


def _thinking(rows: Sequence[Message], maker: str, places: set[int]) -> list[Message]:
    """Return the rows with reasoning before some of the calls."""
    thought = Reasoning(made_by=maker, blocks=THOUGHTS[maker])
    return [
        msgspec.structs.replace(one, body=msgspec.structs.replace(one.body, reasoning=thought))
        if one.role is MessageRole.ASSISTANT and one.body.calls and index in places
        else one
        for index, one in enumerate(rows)
    ]


@pytest.mark.parametrize(("maker", "encode"), ENCODERS)
@examples(20)
@given(
    parts=st.lists(histories(), min_size=2, max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    places=st.sets(st.integers(0, 60), max_size=2),
    system=st.sampled_from(["", "Be."]),
)
def test_cached_and_fresh_encoding_give_the_same_bytes(
    maker: str, encode: Encode, parts: list[Transcript], cuts: list[int], places: set[int], system: str
) -> None:
    rows = _thinking([one for part in parts for one in part], maker, places)
    kept = KeptPromptCache(min_rows=2, min_new=1)
    style = WireStyle(reasoning_of=maker)
    for length in sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)}):
        request = asked(rows[:length], system=system, style=style)
        assert encode(request, kept) == encode(request, KeptPromptCache())


@pytest.mark.parametrize(("maker", "encode"), ENCODERS)
def test_only_new_rows_are_encoded(maker: str, encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, kept, rendered = chat(200), KeptPromptCache(), [0]
    encode(asked(rows, style=WireStyle(reasoning_of=maker)), kept)

    def counting(system: str, transcript: Transcript, *rest: Any, **options: Any) -> TracedMessages:
        rendered[0] += len(transcript)
        return traced_messages(system, transcript, *rest, **options)

    monkeypatch.setattr("agent.model.wire.traced_messages", counting)
    rows += chat(1)
    request = asked(rows, style=WireStyle(reasoning_of=maker))
    found = encode(request, kept)
    assert rendered[0] <= 3 * (MIN_NEW_ROWS + 12) < len(rows) / 5
    monkeypatch.undo()
    assert found == encode(request, KeptPromptCache())


def test_a_late_result_is_shown_with_its_call() -> None:
    rows = [human("go"), answer(None, "late"), *chat(4), human("and?")]
    kept = KeptPromptCache(min_rows=2, min_new=1)
    _chat(asked(rows), kept)
    later = asked([*rows, answer("ok"), result("late", "here it is"), human("thanks")])
    assert b"here it is" in _chat(later, kept)
    assert _chat(later, kept) == _chat(later, KeptPromptCache())


def test_an_edited_view_or_another_style_is_encoded_again() -> None:
    rows, kept = chat(30), KeptPromptCache()
    _chat(asked(rows), kept)
    edited = asked([human("something else"), *rows[1:]], version=2)
    assert b"something else" in _chat(edited, kept)
    shared = asked(rows, style=WireStyle(is_shared=True))
    assert b"[Ann]" in _chat(shared, kept)


def test_conversations_with_equal_ids_are_distinguished() -> None:
    """Two databases in one process can have equal session ids."""
    kept = KeptPromptCache()
    _chat(asked(chat(30, "one")), kept)
    other = asked(chat(30, "two"))
    assert _chat(other, kept) == _chat(other, KeptPromptCache())


def test_a_prefix_grows_by_many_rows_at_once() -> None:
    rows, kept, render = chat(30), KeptPromptCache(), Counting()
    first = kept.beginning_of(asked(rows), render).rows
    before = render.rows
    rows += chat(2)
    assert (kept.beginning_of(asked(rows), render).rows, render.rows) == (first, before)
    rows += chat(MIN_NEW_ROWS)
    assert kept.beginning_of(asked(rows), render).rows >= first + MIN_NEW_ROWS
    assert render.rows < len(rows)


def test_short_prompts_and_prompts_without_a_view_are_not_cached() -> None:
    kept, render = KeptPromptCache(), Counting()
    assert not kept.beginning_of(asked(chat(3)), render).rows
    assert not kept.beginning_of(asked(chat(MIN_KEPT_ROWS), view=None), render).rows
    assert not kept.beginning_of(asked(chat(40), style=WireStyle(image_urls={1: "data:"})), render).rows
    assert render.rows == 0


def test_a_prefix_that_cannot_be_rendered_is_tried_once() -> None:
    """Claude's reasoning depends on everything before it."""
    kept, rows, tried = KeptPromptCache(), chat(40), []

    def refuse(rows: Transcript, _: set[str]) -> None:
        tried.append(rows)

    for _ in range(3):
        assert not kept.beginning_of(asked(rows), refuse).rows
        rows += chat(10)
    assert len(tried) == 1
    assert kept.beginning_of(asked(rows, version=2), Counting()).rows


def test_the_least_recently_used_prefixes_are_evicted() -> None:
    size = KeptPromptCache().beginning_of(asked(chat(40)), Counting()).size
    kept, render = KeptPromptCache(max_bytes=size * 5 // 2), Counting()
    chats = {number: chat(40) for number in range(1, 4)}
    for number, rows in chats.items():
        kept.beginning_of(asked(rows, session=number), render)
    before = render.rows
    for number in (3, 2):
        kept.beginning_of(asked(chats[number], session=number), render)
    assert render.rows == before
    kept.beginning_of(asked(chats[1], session=1), render)
    assert render.rows > before
