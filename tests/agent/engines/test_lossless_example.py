"""The example engine alone: its tree, and its tools with unexpected arguments."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.handoff import framed
from tests.fakes.llm_legality import check_openai

EXAMPLE = Path(__file__).parents[3] / "examples" / "lossless_engine"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from lossless_engine.engine import Lossless

    made = Lossless()
    made.on_session_start("s1", storage=str(tmp_path))
    made.update_model("lab", 8_192)
    yield made
    for name in [name for name in sys.modules if name.startswith("lossless_engine")]:
        del sys.modules[name]


class Talk:
    """A growing conversation that an engine compresses."""

    def __init__(self, engine: Any, answer: Any = lambda prompt: "## Done\n- something was looked at") -> None:
        self.engine, self.answer, self.asked = engine, answer, 0
        self.shown: list[dict[str, Any]] = []
        self.ids: list[list[str]] = []
        self.count = 0

    def say(self, turns: int) -> None:
        """Turns with a question, a call, its result and an answer."""
        for _ in range(turns):
            call_id = f"c{self.count}"
            call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
            self._add(role="user", content=self._words("question"))
            self._add(role="assistant", content=None, tool_calls=[call])
            self._add(role="tool", tool_call_id=call_id, content=self._words("result"))
            self._add(role="assistant", content=self._words("answer"))

    def _words(self, kind: str) -> str:
        return f"word{self.count + 1} {kind} {'and the boats came in with ropes, lamps and salt. ' * 6}"

    def _add(self, **message: Any) -> None:
        self.count += 1
        self.shown.append(message)
        self.ids.append([f"m{self.count}"])

    def compress(self) -> None:
        listed = self.engine.compress(list(self.shown), 6_000, None, message_ids=list(self.ids), call_model=self._ask)
        assert check_openai([*listed, {"role": "user", "content": "and now?"}]) == []
        start = len(self.shown) - len(listed) + 1
        self.shown = [{"role": "user", "content": framed(listed[0]["content"])}, *self.shown[start:]]
        self.ids = [[], *self.ids[start:]]

    def _ask(self, prompt: str) -> str:
        self.asked += 1
        return str(self.answer(prompt))

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        told = self.engine.handle_tool_call(name, arguments, messages=self.shown, message_ids=self.ids)
        return dict(json.loads(told))


def test_a_long_conversation_stays_bounded_and_every_message_is_in_the_tree(engine: Any) -> None:
    talk = Talk(engine)
    for _ in range(25):
        talk.say(6)
        talk.compress()
        tops = engine._view(talk.shown, talk.ids).tops
        gone = [f"m{number}" for number in range(1, talk.count + 1) if [f"m{number}"] not in talk.ids]
        assert [one for node in tops for one in node.covers] == gone
        nodes = engine.tree.below(tops)
        assert all(len(node.children) <= 4 for node in nodes)
        assert len(talk.shown[0]["content"]) < 8_000
    assert max(node.level for node in nodes) >= 2
    assert "word1 " in talk.call("lcm_expand", node="m1")["lines"][0]
    assert talk.call("lcm_grep", pattern="WORD1 boats")["lines"][1].startswith("m1 user in n")


def test_the_same_messages_are_not_summarised_twice(engine: Any) -> None:
    talk = Talk(engine)
    talk.say(12)
    before = list(talk.shown), list(talk.ids)
    talk.compress()
    asked = talk.asked
    talk.shown, talk.ids = before  # as after an undo
    talk.compress()
    assert talk.asked == asked > 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("lcm_grep", {"pattern": "(a+)+$", "regex": True}),
        ("lcm_grep", {"pattern": "(", "regex": True}),
        ("lcm_describe", {"node": "the first"}),
        ("lcm_expand", {"node": "m999"}),
        ("lcm_expand", {}),
    ],
)
def test_impossible_arguments_are_refused_quickly(engine: Any, name: str, arguments: dict[str, Any]) -> None:
    talk = Talk(engine)
    talk.say(1)
    talk.shown.append({"role": "user", "content": f"{'a' * 60}!"})
    talk.ids.append(["m100"])
    began = time.monotonic()
    assert list(talk.call(name, **arguments)) == ["error"]
    assert time.monotonic() - began < 20


def test_an_unknown_node_is_empty_and_an_unknown_tool_is_an_error(engine: Any) -> None:
    talk = Talk(engine)
    talk.say(1)
    assert talk.call("lcm_describe", node="n999")["lines"] == ["4 messages are kept, in 0 nodes"]
    assert "error" in talk.call("lcm_forget")


def test_words_are_found_in_any_case_and_order(engine: Any) -> None:
    talk = Talk(engine)
    talk.shown, talk.ids = [{"role": "user", "content": "The Heron lies at Pier 17."}], [["m1"]]
    assert talk.call("lcm_grep", pattern="PIER heron")["lines"][1] == "m1 user in view: The Heron lies at Pier 17."
    assert talk.call("lcm_grep", pattern="heron swims")["lines"] == ["0 found"]
    assert talk.call("lcm_grep", pattern=r"pier \d+", regex=True)["lines"][0] == "1 found"


def test_a_handoff_of_another_engine_is_kept_even_alone(engine: Any) -> None:
    talk = Talk(engine)
    talk.shown, talk.ids = [{"role": "user", "content": framed("They looked at PIER-17.")}], [[]]
    assert talk.call("lcm_grep", pattern="pier-17")["lines"] == ["0 found"]
    talk.say(8)
    talk.compress()
    assert talk.call("lcm_grep", pattern="pier-17")["lines"][1].partition(": ")[2] == "They looked at PIER-17."
