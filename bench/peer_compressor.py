"""Measure hermes-agent's compressions of given conversations. Run by an interpreter that has hermes-agent.

`python peer_compressor.py ROUNDS WINDOW:FILE…`: each file has a Chat Completions list, which is compressed for a model
with a context window of this many tokens. Prints a JSON list with the median milliseconds of CPU time for each. It
imports nothing of our code. The stand-in below replaces the model.
"""

import importlib
import json
import statistics
import sys
import time
from pathlib import Path
from textwrap import wrap
from types import SimpleNamespace
from typing import Any

MODEL = "bench"
TITLES = ("Active Task", "Goal", "Completed Actions", "Active State", "Key Decisions", "Remaining Work")
PIECE_CHARACTERS = 400


def extract(prompt: str) -> str:
    """Return a stand-in for a model's summary: whole words from the prompt at equal distances, under headings.

    The lines are short like a model's. An audit removes whole lines.
    """
    indexes = [len(prompt) * number // len(TITLES) for number in range(len(TITLES))]
    pieces = [" ".join(prompt[index : index + PIECE_CHARACTERS].split()[1:-1]) for index in indexes]
    lists = ["\n".join(f"- {line}" for line in wrap(piece, 80)) for piece in pieces]
    return "\n\n".join(f"## {title}\n{lines}" for title, lines in zip(TITLES, lists, strict=True))


class _StandIn:
    """Stand-in for the model that measures its own CPU time."""

    spent = 0.0
    asked = 0

    def __call__(self, **call: Any) -> Any:
        began = time.process_time()
        self.asked += 1
        text = extract("".join(str(message["content"]) for message in call["messages"]))
        reply = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))], usage=None)
        self.spent += time.process_time() - began
        return reply


def _cost(engine: Any, window: int, text: str, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        messages = json.loads(text)
        compressor = engine.ContextCompressor(MODEL, quiet_mode=True, config_context_length=window)
        stand_in = _StandIn()
        engine.call_llm = stand_in
        began = time.process_time()
        estimated = engine.estimate_messages_tokens_rough(messages)
        compressed = compressor.compress(messages, current_tokens=estimated)
        times.append(time.process_time() - began - stand_in.spent)
        if stand_in.asked != 1 or len(compressed) >= len(messages):
            raise SystemExit("nothing was compressed")
    return statistics.median(times) * 1_000


def main() -> None:
    engine = importlib.import_module("agent.context_compressor")
    jobs = [argument.split(":", 1) for argument in sys.argv[2:]]
    texts = [(int(window), Path(name).read_text(encoding="utf-8")) for window, name in jobs]
    _cost(engine, *texts[0], 2)
    print(json.dumps([_cost(engine, *text, int(sys.argv[1])) for text in texts]))


if __name__ == "__main__":
    main()
