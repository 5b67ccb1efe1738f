"""Interface of every context engine, built in or plugin, and additional behaviour of the built-in engine."""

import copy
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.summary import HEADINGS
from agent.engines.compressor import ContextCompressor
from agent.engines.contract import ContextEngine
from agent.engines.lists import checked_list, text_of
from agent.handoff import END_MARKER, SUMMARY_PREFIX
from agent.model.base import FinishReason, ModelReply, ModelRequest
from hermes_state.errors import ModelUnavailable
from tests.agent.engines.examples import KeepNewest, messages
from tests.fakes.llm_legality import check_openai
from tests.sampling import examples as seen

MESSAGES = list[dict[str, Any]]


@pytest.fixture(params=[lambda: ContextCompressor(context_length=8_192), KeepNewest], ids=["compressor", "plugin"])
def engine(request: pytest.FixtureRequest) -> ContextEngine:
    made: ContextEngine = request.param()
    made.update_model("lab-8k", 8_192, "http://localhost/v1", "key", "lab")
    return made


# ---- every engine


def test_the_public_fields_have_their_defaults() -> None:
    class Least(ContextEngine):
        name = "least"

        def update_from_response(self, usage: dict[str, Any]) -> None: ...

        def should_compress(self, prompt_tokens: int | None = None) -> bool:
            return False

        def compress(
            self, messages: MESSAGES, current_tokens: int | None = None, focus_topic: str | None = None
        ) -> MESSAGES:
            return messages

    assert ContextEngine.__abstractmethods__ == {"name", "update_from_response", "should_compress", "compress"}
    least = Least()
    counts = ("last_prompt_tokens", "last_completion_tokens", "last_total_tokens", "threshold_tokens")
    assert [getattr(least, name) for name in (*counts, "context_length", "compression_count")] == [0] * 6
    assert (least.threshold_percent, least.protect_first_n, least.protect_last_n) == (0.75, 3, 6)
    assert least.should_compress_preflight([]) is False
    assert least.has_content_to_compress([]) is True
    assert least.get_tool_schemas() == []
    assert json.loads(least.handle_tool_call("nothing", {})) == {"error": "Unknown tool: nothing"}
    assert least.get_status()["usage_percent"] == 0
    least.on_session_start("s1", parent=None, reason="started")
    least.on_session_end("s1", [])
    least.update_model("m", 200_000)
    assert (least.context_length, least.threshold_tokens) == (200_000, 150_000)


def test_plugins_may_import_the_interface_from_agent_context() -> None:
    code = """
import agent.context.engine as address
from agent.context.engine import ContextCompressor, ContextEngine
import agent.engines
assert ContextEngine is agent.engines.ContextEngine
assert issubclass(ContextCompressor, ContextEngine)
assert not hasattr(address, "ContextEngines")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3], timeout=60)


SIGNATURES = {
    "update_from_response": ["usage"],
    "should_compress": ["prompt_tokens"],
    "compress": ["messages", "current_tokens", "focus_topic"],
    "should_compress_preflight": ["messages"],
    "has_content_to_compress": ["messages"],
    "on_session_start": ["session_id", "kwargs"],
    "on_session_end": ["session_id", "messages"],
    "on_session_reset": [],
    "get_tool_schemas": [],
    "handle_tool_call": ["name", "args", "kwargs"],
    "get_status": [],
    "update_model": ["model", "context_length", "base_url", "api_key", "provider"],
}


def test_the_name_and_the_signatures_match_the_interface(engine: ContextEngine) -> None:
    assert engine.name == str(engine.name) != ""
    assert {name: list(inspect.signature(getattr(engine, name)).parameters) for name in SIGNATURES} == SIGNATURES


def test_the_next_decision_uses_the_last_reported_prompt(engine: ContextEngine) -> None:
    engine.update_from_response({"prompt_tokens": 5, "completion_tokens": 90_000, "total_tokens": 90_005})
    assert (engine.last_prompt_tokens, engine.last_completion_tokens, engine.last_total_tokens) == (5, 90_000, 90_005)
    assert not engine.should_compress()
    assert engine.should_compress(engine.threshold_tokens)
    assert not engine.should_compress(engine.threshold_tokens - 1)
    engine.update_from_response({"prompt_tokens": 8_000, "completion_tokens": 2, "total_tokens": 8_002})
    assert engine.should_compress()


def test_the_status_has_five_figures_and_at_most_100_percent(engine: ContextEngine) -> None:
    engine.update_from_response({"prompt_tokens": 90_000, "completion_tokens": 0, "total_tokens": 90_000})
    figures = {"last_prompt_tokens": 90_000, "threshold_tokens": engine.threshold_tokens, "context_length": 8_192}
    assert engine.get_status() == figures | {"usage_percent": 100, "compression_count": 0}


def test_another_model_changes_the_threshold(engine: ContextEngine) -> None:
    before = engine.threshold_tokens
    engine.update_model("lab-200k", 200_000, "", "", "")
    assert engine.context_length == 200_000 > engine.threshold_tokens > before


def test_a_compression_returns_a_valid_shorter_list_and_keeps_its_input(engine: ContextEngine) -> None:
    given_messages = messages(30)
    before = copy.deepcopy(given_messages)
    compressed = engine.compress(given_messages, current_tokens=20_000)
    assert given_messages == before
    assert len(compressed) < len(given_messages)
    assert not [found for found in check_openai(checked_list(compressed)) if found["severity"] == "error"]
    assert compressed[0] == before[0]
    assert before[-4]["content"] in text_of(compressed[-4]["content"])
    assert (compressed[-3:], engine.compression_count) == (before[-3:], 1)


def test_a_short_list_is_unchanged(engine: ContextEngine) -> None:
    given_messages = messages(1, filler="")
    assert (engine.compress(given_messages), engine.compression_count) == (messages(1, filler=""), 0)


def test_a_reset_clears_the_counts(engine: ContextEngine) -> None:
    engine.update_from_response({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10})
    engine.compress(messages(30))
    engine.request_compression("soon")
    engine.on_session_reset()
    status = engine.get_status()
    assert (status["last_prompt_tokens"], status["compression_count"]) == (0, 0)
    assert engine.take_request() is None


def test_a_request_is_returned_once(engine: ContextEngine) -> None:
    assert engine.take_request() is None
    engine.request_compression("a chapter ends", focus_topic="schema")
    wish = engine.take_request()
    assert (wish.reason, wish.focus, engine.take_request()) == ("a chapter ends", "schema", None)


def test_an_unknown_tool_is_an_error_in_json(engine: ContextEngine) -> None:
    assert set(json.loads(engine.handle_tool_call("no_such_tool", {}, session_id="s"))) == {"error"}


# ---- the built-in engine


def compressor(**changes: Any) -> ContextCompressor:
    return ContextCompressor(context_length=8_192, **changes)


def summary_of(request: ModelRequest) -> ModelReply:
    text = "\n\n".join(f"## {title}\nThe record says something here." for title in HEADINGS)
    return ModelReply(text=text, finish=FinishReason.STOP, usage=None)


Recorded: TypeAlias = tuple[list[str], Callable[[ModelRequest], ModelReply]]


@pytest.fixture
def recorded() -> Recorded:
    """Requests for summaries, and the model that answers them."""
    asked: list[str] = []

    def summarise(request: ModelRequest) -> ModelReply:
        asked.append(request.transcript[0].text or "")
        return summary_of(request)

    return asked, summarise


def handoffs(found: MESSAGES) -> list[str]:
    return [text for text in (text_of(message.get("content")) for message in found) if SUMMARY_PREFIX in text]


def test_a_subclass_of_the_built_in_engine_sets_sizes_as_attributes() -> None:
    class Early(ContextCompressor):
        threshold_percent = 0.25
        protect_last_n = 6

    built_in, early = ContextCompressor(context_length=200_000), Early("model", 100_000)
    assert (built_in.threshold_percent, built_in.protect_first_n, built_in.protect_last_n) == (0.50, 3, 20)
    assert (built_in.name, built_in.threshold_tokens) == ("compressor", 100_000)
    assert (early.threshold_percent, early.protect_first_n, early.protect_last_n) == (0.25, 3, 6)
    assert early.threshold_tokens == 25_000


def test_a_model_writes_the_summary_with_the_focus_and_without_dead_ids(recorded: Recorded) -> None:
    asked, summarise = recorded
    given_messages = messages(30)
    for message in given_messages[2:60]:
        if message["role"] == "tool":
            message["content"] = "the same result " * 40
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps({"text": "long " * 200})
    [handoff] = handoffs(compressor(summarise=summarise).compress(given_messages, focus_topic="the schema"))
    assert "## Critical Context" in handoff
    for part in ("the schema", "[pruned: the same result, which came later]", "[pruned: 1,000 characters]"):
        assert part in asked[0]
    assert not re.search(r"\[(pruned )?m|history_open", asked[0])


def test_without_a_model_the_handoff_is_made_by_rule() -> None:
    def broken(request: ModelRequest) -> ModelReply:
        raise ModelUnavailable("nobody there")

    for summarise in (None, broken):
        [handoff] = handoffs(compressor(summarise=summarise).compress(messages(30)))
        assert "No summary could be made" in handoff
        assert "(m" not in handoff


def test_the_next_compression_includes_the_last_handoff(recorded: Recorded) -> None:
    asked, summarise = recorded
    built_in = compressor(summarise=summarise)
    once = built_in.compress(messages(30))
    more = [*once, *messages(30)[1:]]
    twice = built_in.compress(more)
    assert len(handoffs(twice)) == 1
    assert "<earlier_record>" in asked[1]
    assert END_MARKER not in asked[1].split("<conversation>")[1]


@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_persons_words_after_a_handoff_are_not_part_of_the_summary(is_in_parts: bool, recorded: Recorded) -> None:
    asked, summarise = recorded
    built_in = compressor(summarise=summarise)
    [handoff] = handoffs(built_in.compress(messages(30)))
    said = "the words of a person"
    parts = [{"type": "text", "text": text} for text in (handoff, said)]
    joined = {"role": "user", "content": parts if is_in_parts else f"{handoff}\n\n{said}"}
    twice = built_in.compress([joined, {"role": "assistant", "content": "so be it"}, *messages(30)[1:]])
    assert len(handoffs(twice)) == 1
    earlier, conversation = asked[1].split("<conversation>")
    assert (said in earlier, said in conversation) == (False, True)


@pytest.mark.parametrize("blank", ["", " \n", None, [], [{"type": "text", "text": ""}]])
def test_a_blank_message_is_not_the_newest_request(blank: object) -> None:
    request, looking = {"role": "user", "content": "which boat?"}, {"role": "assistant", "content": "looking " * 100}
    given_messages = [*messages(30), request, *[dict(looking) for _ in range(40)]]
    shorter = compressor().compress([*given_messages, {"role": "user", "content": blank}])
    assert len(shorter) < 40
    assert request in shorter


def test_unknown_content_parts_do_not_break_a_compression() -> None:
    odd = [{"role": "user", "content": ["a bare string", {"type": "text", "text": None}, {"type": "image_url"}, 7]}]
    compressed = compressor().compress([*messages(30)[:1], *odd, *messages(30)[1:]])
    assert len(handoffs(compressed)) == 1


def test_a_list_with_a_middle_has_content_to_compress() -> None:
    built_in = compressor()
    assert built_in.has_content_to_compress(messages(30))
    assert not built_in.has_content_to_compress(messages(1))
    assert built_in.should_compress_preflight(messages(60))
    assert not built_in.should_compress_preflight(messages(1))


@st.composite
def lists(draw: st.DrawFn) -> MESSAGES:
    """Lists as gateways store them: several people, parallel calls, parts, lost results and lost calls."""
    found: MESSAGES = [{"role": "system", "content": "You help."}] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(0, 14))):
        number += 1
        text = f"message {number} " + "word " * draw(st.integers(0, 400))
        kind = draw(st.sampled_from(["user", "user", "assistant", "tools", "orphan"]))
        if kind == "user":
            parts = [{"type": "text", "text": text}]
            found.append({"role": "user", "content": parts if draw(st.booleans()) else text})
        elif kind == "assistant":
            found.append({"role": "assistant", "content": text})
        elif kind == "orphan" and draw(st.booleans()):
            found.append({"role": "tool", "tool_call_id": f"lost{number}", "content": text})
        else:
            count = draw(st.integers(1, 3))
            calls = [
                {"id": f"c{number}_{at}", "type": "function", "function": {"name": "look", "arguments": "{not json"}}
                for at in range(count)
            ]
            found.append({"role": "assistant", "content": draw(st.sampled_from([None, text])), "tool_calls": calls})
            answered = draw(st.integers(0, count))
            found += [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls[:answered]]
    found.append({"role": "user", "content": f"the newest request {number}"})
    return found


@seen(50)
@given(given_messages=lists())
def test_any_list_gives_a_valid_compression_with_the_newest_request(given_messages: MESSAGES) -> None:
    before = copy.deepcopy(given_messages)
    built_in = ContextCompressor(context_length=2_600)
    built_in.protect_last_n = 3
    compressed = built_in.compress(given_messages)
    assert given_messages == before
    newest = before[-1]["content"]
    assert any(text_of(message.get("content")).endswith(newest) for message in compressed)
    if built_in.compression_count:
        assert not [found for found in check_openai(compressed) if found["severity"] == "error"]
        assert len(handoffs(compressed)) == 1
        assert compressed[1 if compressed[0]["role"] == "system" else 0]["role"] == "user"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("agent.context_engine", ["ContextEngine"]),
        ("agent.context_compressor", ["ContextCompressor", "SUMMARY_PREFIX"]),
        ("agent.context.engine", ["ContextEngine", "ContextCompressor"]),
        ("agent.engines", ["ContextEngine", "ContextCompressor", "ModelError", "estimated_text_tokens", "text_of"]),
        ("agent.trajectories", ["TrajectoryCompressor", "TrajectoryMetrics", "TrajectorySettings"]),
        ("agent.handoff", ["SUMMARY_PREFIX"]),
        ("agent.model.usage", ["CanonicalUsage", "normalize_usage"]),
        ("agent.context.job", ["summarize_manual_compression"]),
        ("agent.model.protocols.caching", ["apply_anthropic_cache_control"]),
        ("hermes_state.sessions", ["get_compression_tip"]),
    ],
)
def test_public_names_can_be_imported_from_their_modules(module: str, names: list[str]) -> None:
    assert all(hasattr(importlib.import_module(module), name) for name in names)
