"""Tools of the example engine with unexpected arguments. The end-to-end tests use the engine in conversations."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


def call(engine: Any, name: str, text: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool in a conversation of one message."""
    shown, ids = [{"role": "user", "content": text}], [["m1"]]
    return dict(json.loads(engine.handle_tool_call(name, arguments, messages=shown, message_ids=ids)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("lcm_grep", {"pattern": "(a+)+$", "regex": True}),
        ("lcm_grep", {"pattern": "(", "regex": True}),
        ("lcm_describe", {"node": "the first"}),
        ("lcm_expand", {"node": "m999"}),
        ("lcm_expand", {}),
        ("lcm_forget", {}),
    ],
)
def test_impossible_arguments_are_refused_quickly(engine: Any, name: str, arguments: dict[str, Any]) -> None:
    began = time.monotonic()
    assert list(call(engine, name, f"{'a' * 60}!", **arguments)) == ["error"]
    assert time.monotonic() - began < 20


def test_words_are_found_in_any_case_and_order(engine: Any) -> None:
    text = "The Heron lies at Pier 17."
    assert call(engine, "lcm_grep", text, pattern="PIER heron")["lines"][1] == f"m1 user in view: {text}"
    assert call(engine, "lcm_grep", text, pattern="heron swims")["lines"] == ["0 found"]
    assert call(engine, "lcm_grep", text, pattern=r"pier \d+", regex=True)["lines"][0] == "1 found"
    assert call(engine, "lcm_describe", text, node="n999")["lines"] == ["1 messages are kept, in 0 nodes"]
