"""Records in the formats that models use: records are accepted, and everything else is refused."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from agent.context.summary import HEADINGS, SummaryError, checked_summary, reformed
from agent.model.base import FinishReason, ModelReply
from tests.agent.context.test_summary import task

FORMS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "fixtures" / "outside" / "summaries.jsonl").read_text("utf-8").splitlines()
]
"""Formats found in public sources, filled with our words. Each has a `source`."""


def sections_of(record: str) -> dict[str, str]:
    """Text of each section by its heading."""
    pieces = re.split(rf"^## ({'|'.join(map(re.escape, HEADINGS))})$", record, flags=re.MULTILINE)
    assert not pieces[0].strip(), "no text before the first heading"
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def refused(form: dict[str, Any], finish: FinishReason = FinishReason.STOP) -> str:
    with pytest.raises(SummaryError) as raised:
        checked_summary(ModelReply(text=form["text"], finish=finish, usage=None), task(), str)
    return raised.value.outcome


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
def test_formats_from_public_sources_are_accepted_or_refused(form: dict[str, Any]) -> None:
    assert refused(form, FinishReason.LENGTH) == "truncated"
    if "outcome" in form:
        assert refused(form) == form["outcome"]
        return
    reply = ModelReply(text=form["text"], finish=FinishReason.STOP, usage=None)
    found = sections_of(checked_summary(reply, task(), str))
    assert [title for title in found if title in form["sections"]] == list(form["sections"]), "in order"
    for title, text in form["sections"].items():
        assert text in found[title]
    for title, text in found.items():
        assert all(other not in text for name, other in form["sections"].items() if name != title)


PIECES = ["-", "<a>", "<a></a>", "{", '{"a":', "[", "| ", "# ", "**", "* ", "1. ", "1.", "_", "a_", "goal: ", ",", ", "]


@pytest.mark.parametrize("piece", [*PIECES, "\n| ", "\n# "])
def test_endless_repetitions_of_a_model_are_checked_quickly(piece: str) -> None:
    started = time.process_time()
    repeated = piece * (100_000 // len(piece))
    for text in (repeated, f"| a |{repeated}x", f"**{repeated}x", f"<a {repeated}x", f"{{{repeated}x}}"):
        assert reformed(text, HEADINGS) is None
    assert time.process_time() - started < 3
