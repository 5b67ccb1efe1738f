"""Reasoning between tags in the text of a model: never shown, and never stored as text."""

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.reply_text import ThinkTagParser
from hermes_state.values import MessageBody
from tests.agent.conftest import Chat
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, ask, request, script
from tests.agent.model.ways import WAYS, Talk, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

PAIRS = [
    ("<think>", "</think>"),
    ("<THINK>", "</THINK>"),
    ("<think>", "</think >"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<antThinking>", "</antThinking>"),
    ("<REASONING_SCRATCHPAD>", "</REASONING_SCRATCHPAD>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|think|>", "<|/think|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>\n<|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"),
    ("<|channel>thought\n", "<channel|>"),
]
IN_CODE = [
    "`<think>` opens the block and `</think>` closes it.",
    "```xml\n<think>hm</think>\n```",
    "Models write <think>like this</think> at times.",
    "    <thinkers>of the world</thinkers>",
    "<b>bold</b> and <thinker>",
    "[think] about it [/think]",
    "[THINK TWICE] is the title",
    "The closing tag is </think>, the opening one <think>.",
    "The pattern is `.*?</think>` with a flag.",
    "```\ntext</think>\n```\nThat splits it.",
    "<|im_start|> is another token.",
    "a < b",
    "<",
    "<thin",
    "<|channel|>",
    "[",
    "◁",
    "  indented",
    "\n\nafter blank lines",
]


def parsed(*pieces: str) -> tuple[str, str]:
    """Return the answer and the reasoning of a text that arrives in pieces."""
    parser = ThinkTagParser()
    text = "".join(parser.feed(one) for one in pieces)
    return parser.finish(text)


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_reasoning_between_tags_is_removed_in_any_split(opening: str, closing: str, size: int) -> None:
    for before in ("", "\n", " \n\n"):
        written = f"{before}{opening}Is 1 < 2?\nYes.{closing}\n\nIt <i>is</i>."
        pieces = [written[start : start + size] for start in range(0, len(written), size)]
        text, thought = parsed(*pieces)
        assert (text, thought.strip()) == ("It <i>is</i>.", "Is 1 < 2?\nYes.")


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_unclosed_reasoning_is_not_an_answer(opening: str, closing: str) -> None:
    text, thought = parsed(opening, "hm, ", "let me see", closing[:3])
    assert text == ""
    assert "let me see" in thought


@pytest.mark.parametrize("written", IN_CODE)
@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_tags_inside_an_answer_are_text(written: str, size: int) -> None:
    pieces = [written[start : start + size] for start in range(0, len(written), size)]
    assert parsed(*pieces) == (written, "")


@pytest.mark.parametrize(
    ("written", "text", "thought"),
    [
        ("<think></think>\n\nhi", "hi", ""),
        ("<think>one</think>\n<think>two</think>hi", "hi", "one\n\ntwo"),
        ("</think>\n\nhi", "hi", ""),
        ("hm\n</think>\n\nhi", "hi", "hm"),
        (
            "Let me see. Write it.</think>The cause is a `<b>` tag.",
            "The cause is a `<b>` tag.",
            "Let me see. Write it.",
        ),
        ("<think>a <think> b</think>hi", "hi", "a <think> b"),
        ("<think>use `</thinking>`</think>hi", "hi", "use `</thinking>`"),
        ("<think>hm</think>Use <think>this</think> for it.", "Use <think>this</think> for it.", "hm"),
        ("<|channel|>final<|message|>hi<|return|>", "hi", ""),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hi<|end|>", "hi", "hm"),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>hi<|END_RESPONSE|>", "hi", "hm"),
        ("analysisThe user says hello. Greet.assistantfinalHello!", "Hello!", "The user says hello. Greet."),
        ("analysis of the assistantfinal token", "analysis of the assistantfinal token", ""),
    ],
)
def test_incomplete_tags_of_servers(written: str, text: str, thought: str) -> None:
    for size in (1, 4, 1_000):
        pieces = [written[start : start + size] for start in range(0, len(written), size)]
        found = parsed(*pieces)
        assert (found[0].strip(), found[1].strip()) == (text, thought)


_tokens = st.one_of(
    st.sampled_from([part for pair in PAIRS for part in pair]),
    st.text(alphabet="<>/|[]thinkTHIN◁▷ \n`a", max_size=12),
    st.just("x" * 100),
)


@given(
    pieces=st.lists(_tokens, max_size=8)
    .map("".join)
    .flatmap(
        lambda text: st.lists(st.integers(0, len(text))).map(
            lambda cuts: [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]
        )
    )
)
def test_the_result_does_not_depend_on_the_split(pieces: list[str]) -> None:
    assert parsed(*pieces) == parsed("".join(pieces))


@given(st.text(max_size=200).filter(lambda text: "<" not in text and "[" not in text and "◁" not in text))
def test_text_without_tags_is_unchanged(text: str) -> None:
    if not text.startswith("analysis"):
        assert parsed(*text) == (text, "")


def test_text_after_a_call_may_begin_with_reasoning() -> None:
    parser = ThinkTagParser()
    shown = parser.feed("Looking.")
    parser.restart()
    shown += parser.feed("<think>it is there</think>")
    shown += parser.feed("Found it.")
    assert parser.finish(shown) == ("Looking.\n\nFound it.", "it is there")


@pytest.mark.parametrize("first", ["", "<think>", "<think>hm</think>x", "<think "])
@pytest.mark.parametrize("rest", ["x", " ", "<", "</think", "<|end|> ", "`</think>"])
def test_parsing_time_is_linear(first: str, rest: str) -> None:
    began = time.process_time()
    parser = ThinkTagParser()
    pieces = [parser.feed(one) for one in (first, *[rest] * 50_000, "x")]
    parser.finish("".join(pieces))
    parsed(first + rest * 50_000 + "x")
    assert time.process_time() - began < 5, "it takes a few tenths of a second"


def test_long_reasoning_is_kept_whole() -> None:
    thinking = ThinkTagParser()
    thinking.feed("<think>")
    for _ in range(200_000):
        thinking.feed("x")
    assert thinking.finish("") == ("", "x" * 200_000)


# ---- over the protocols

THOUGHT = "SECRETLY 1 < 2"
WRITTEN = f"<think>\n{THOUGHT}\n</think>\n\nIt is."


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("chunk", [1, 4, 1_000])
async def test_the_answer_follows_the_reasoning(server: Server, llm: LLM, chat: Chat, way: Way, chunk: int) -> None:
    script(llm, text=WRITTEN, chunk_chars=chunk)
    async with way.dialled(server.url) as model:
        talk = Talk(chat, model)
        left = await talk.say("go")
    assert (left.rows[-1], left.told) == (("assistant", "It is."), [("final", "It is.")])
    assert "SECRETLY" not in "".join(talk.shown)
    assert left.outcomes == ["ok"]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_an_answer_that_is_only_reasoning_is_empty(server: Server, llm: LLM, chat: Chat, way: Way) -> None:
    llm.scripts.append({"times": 1, "reply": {"text": f"<think>\n{THOUGHT}", "chunk_chars": 3}})
    async with way.dialled(server.url) as model:
        talk = Talk(chat, model)
        left = await talk.say("go")
    assert left.outcomes == ["malformed", "ok"]
    assert "SECRETLY" not in json.dumps([left.rows, left.told, talk.shown])


@pytest.mark.parametrize("way", [way for way in WAYS if way.protocol == "chat_completions"], ids=str)
@pytest.mark.parametrize("written", [WRITTEN, f"<think>{THOUGHT}", f"<think>{THOUGHT}</think>"])
async def test_reasoning_before_calls_is_sent_back(server: Server, llm: LLM, way: Way, written: str) -> None:
    script(llm, text=written, tool_calls=[{"id": "a", "name": "look"}], chunk_chars=5)
    async with way.dialled(server.url) as model:
        reply, shown = await ask(model, request(tools=(TOOL,)))
        assert "SECRETLY" not in "".join([reply.text, *shown])
        row = answer(reply.text or None, body=MessageBody(calls=reply.calls, reasoning=reply.reasoning))
        script(llm, text="done")
        await ask(model, request(transcript=(human("go"), row, result("a")), tools=(TOOL,)))
    sent = [one for one in llm.requests.rows[-1]["body"]["messages"] if one["role"] == "assistant"]
    assert [one["reasoning_content"].strip() for one in sent] == [THOUGHT]
    assert "SECRETLY" not in json.dumps([one["content"] for one in sent])


async def test_reasoning_from_the_server_overrides_tags(server: Server, llm: LLM) -> None:
    (way, *_) = WAYS
    script(llm, reasoning="let me see", text=WRITTEN, tool_calls=[{"id": "a", "name": "look"}])
    async with way.dialled(server.url) as model:
        reply, _ = await ask(model, request(tools=(TOOL,)))
    assert json.loads(reply.reasoning.blocks) == [{"reasoning_content": "let me see"}]


@pytest.mark.parametrize("text", [WRITTEN, "<think>", ""])
async def test_calls_keep_their_text_with_any_reasoning(server: Server, llm: LLM, text: str) -> None:
    calls: list[dict[str, Any]] = [{"id": "a", "name": "look"}]
    for way in WAYS:
        script(llm, text=text, tool_calls=calls)
        async with way.dialled(server.url) as model:
            reply, _ = await ask(model, request(tools=(TOOL,)))
        assert [call.name for call in reply.calls] == ["look"]
