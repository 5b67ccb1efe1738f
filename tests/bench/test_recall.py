"""Recall bench: what it finds and shows, in a chat of four messages and in the real ones."""

import json
from pathlib import Path

import msgspec

from bench import recall
from bench.agent_month import virtual
from bench.policies import TITLES, Meter, StandIn, drop_oldest, keep_everything, simulate, tokens
from bench.recall_corpus import WHOLE, load

ROWS = [
    ("a1", "2026-01-05T08:00", "Ada", "I prefer the heron to the stork as our emblem. Can you draw it?"),
    ("a2", "2026-01-05T08:01", "assistant", "Here is a grey bird. Its beak took me the longest time."),
    ("a3", "2026-01-06T09:00", "Ada", "The rehearsal moved from Monday to Thursday."),
    ("a4", "2026-01-06T09:01", "assistant", "Thank you, I have noted the new day."),
]
QUESTIONS = [
    ("preference", "Which emblem does Ada prefer?", "the heron", ["a1"], []),
    ("update", "When is the rehearsal?", "on Thursday", ["a3"], ["a1"]),
    ("single fact", "Who repaired the telescope?", "nobody", ["a2"], []),
]


def test_a_tiny_chat_is_searched_and_its_prompts_are_measured(tmp_path: Path) -> None:
    (half := tmp_path / "blind").mkdir()
    rows = [dict(zip(("id", "at", "who", "text"), row, strict=True)) for row in ROWS]
    names = ("kind", "question", "answer", "evidence", "old")
    asked = [{"id": "q", "corpus": "chat"} | dict(zip(names, one, strict=True)) for one in QUESTIONS]
    for name, lines in (("chat", rows), ("questions", asked)):
        (half / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    [talk] = load(tmp_path, is_lengthened=False)

    found = {name: cells[32_768] for name, cells, _ in virtual(recall._searches([talk]))}
    assert found["found, chat (3): first 10 / 20"] == "67% / 67%"
    assert found["found, kind single fact (1): first 10 / 20"] == "0% / 0%"
    assert found["rows of other chats, 9 queries"] == "0"

    talk.rows = [*talk.rows, msgspec.structs.replace(talk.rows[0], id="a5", text="And now? " * 900)]
    for policy, needed, newest in ((keep_everything, [1, 1, 1, 1, 1], [1]), (drop_oldest, [1, 1, 0, 0, 0], [0])):
        meter = Meter(3, keep=recall._kept(talk))
        nothing = StandIn("nothing", ["All went well."] * len(TITLES))
        simulate(talk.script(), "You help.", 2_000, policy, nothing, meter)
        measured = recall._measured(talk, meter.kept)
        assert (measured["needed"], measured["newest"]) == (needed, newest)
    assert measured["typed"] == [1, 0]


def test_the_real_chats_are_as_long_as_they_should_be() -> None:
    talks = load()
    assert {(talk.half, talk.name) for talk in talks} == {
        (h, n) for h in ("blind", "own") for n in ("assistant", "pair")
    }
    assert sum(len(talk.questions) for talk in talks) > 300
    for talk in talks:
        assert {name for one in talk.questions for name in (*one.evidence, *one.old)} <= talk.typed.keys()
        if talk.name == "assistant":
            assert sum(tokens(row.text) for row in talk.rows) > WHOLE * 0.98
