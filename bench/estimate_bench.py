"""Measure the error of our token estimates against a real tokenizer, and the cost of estimating.

Only this benchmark needs the tokenizer: `pip install --require-hashes -r requirements/bench.txt`. Without it, the
benchmark leaves out the errors and prints a line that says so.
"""

import random
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from statistics import fmean

from agent.context.estimate import Estimator
from agent.model.base import ModelRequest
from agent.model.usage import RowTokenCache, estimated_text_tokens
from bench.measure import Measure
from bench.passages import passages
from hermes_state.sessions import Session
from hermes_state.transcripts import EMPTY_BODY, View
from hermes_state.values import Message, MessageId, MessageRole, Millis, Origin, ReportedTokens, SessionId

COLD_BAR = 8.0
"""Maximum mean error in percent over all kinds of text, before the provider has reported any count."""
WARM_BAR = 3.0
"""Maximum mean error in percent after three reported counts."""
SPEED_BAR = 10.0
"""Minimum speed of estimating, in MB/s."""
MESSAGE_BAR = 0.2
"""Maximum milliseconds for a message of 4,000 characters, the longest that a chat platform accepts."""
_FRAME = 16

Count = Callable[[str], int]


def run() -> list[Measure]:
    """Return every figure of the estimator."""
    texts = passages()
    measures = _speed(texts)
    counts = {name: found for name in ("o200k_base", "cl100k_base") if (found := _tokenizer(name)) is not None}
    if "o200k_base" not in counts:
        print("No tokenizer is installed (requirements/bench.txt): the errors of estimates are left out.\n")
        return measures
    measures += _cold(texts, counts["o200k_base"])
    return measures + [_warm(texts, name, count) for name, count in counts.items()]


def _tokenizer(name: str) -> Count | None:
    try:
        encoding = import_module("bpe_openai").get_encoding(name)
    except (ImportError, ValueError, KeyError):
        return None
    return lambda text: len(encoding.encode_ordinary(text))


def _cold(texts: Mapping[str, list[str]], count: Count) -> list[Measure]:
    errors, rough = {}, {}
    for kind, samples in texts.items():
        errors[kind] = 100 * fmean(abs(estimated_text_tokens(text) / count(text) - 1) for text in samples)
        rough[kind] = 100 * fmean(abs(len(text) / 4 / count(text) - 1) for text in samples)
    print("Mean error of the text classes against o200k, percent (four characters a token beside it): ")
    print("; ".join(f"{kind} {error:.1f} ({rough[kind]:.0f})" for kind, error in errors.items()) + "\n")
    return [
        Measure(name="mean error of an estimate, cold", ours=fmean(errors.values()), unit="%", bar=COLD_BAR),
        Measure(
            name="the same, against four characters a token",
            ours=fmean(errors.values()),
            yardstick=fmean(rough.values()),
            unit="%",
            bar=0.25,
        ),
    ]


def _warm(texts: Mapping[str, list[str]], name: str, count: Count) -> Measure:
    """Measure the mean error for conversations of each kind of text and of mixed kinds.

    Each next prompt's estimate is compared with the tokenizer's count.
    """
    chance = random.Random(4)
    everything = [text for samples in texts.values() for text in samples]
    errors = []
    for samples in [*texts.values(), everything]:
        errors += _conversation([chance.choice(samples) for _ in range(24)], count)
    return Measure(
        name=f"mean error of the next prompt after three reports, {name}", ours=fmean(errors), unit="%", bar=WARM_BAR
    )


def _conversation(texts: list[str], count: Count) -> list[float]:
    estimator = Estimator(sizes=RowTokenCache())
    rows = tuple(_row(number, text) for number, text in enumerate(texts, 1))
    system = passages()["English"][0]
    true = [count(system)]
    for text in texts:
        true.append(true[-1] + count(text) + _FRAME)
    view = View(session=_session(None, None), transcript=rows[:1])
    errors = []
    for end in range(1, len(rows), 2):
        request = ModelRequest(system=system, transcript=rows[:end], max_output_tokens=100)
        if end > 6:
            errors.append(100 * abs(estimator.prompt(view, request) / true[end] - 1))
        estimator.learn(request, ReportedTokens(true[end]), view)
        view = View(session=_session(true[end], end), transcript=rows[: end + 2])
    return errors


def _speed(texts: Mapping[str, list[str]]) -> list[Measure]:
    samples = [text for kind in texts.values() for text in kind]
    size = sum(len(text.encode()) for text in samples) / 1e6
    seconds = _best(lambda: [estimated_text_tokens(text) for text in samples])
    message = (" ".join(texts["English"]) * 4)[:4_000]
    rows = [_row(number, text) for number, text in enumerate(samples * 40, 1)]
    sizes = RowTokenCache()
    request = ModelRequest(system="", transcript=tuple(rows), max_output_tokens=100)
    known = Estimator(sizes=sizes)
    known.whole(request)
    return [
        Measure(name="speed of an estimate", ours=size / seconds, unit="MB/s", bar=SPEED_BAR, at_least=True),
        Measure(
            name="a message of 4,000 characters is measured",
            ours=_best(lambda: [estimated_text_tokens(message)]) * 1_000,
            unit="ms",
            bar=MESSAGE_BAR,
        ),
        Measure(
            name="a known row is looked up",
            ours=_best(lambda: [known.whole(request)]) / len(rows) * 1e6,
            unit="µs",
            bar=5,
        ),
    ]


def _best(work: Callable[[], object]) -> float:
    took = []
    for _ in range(15):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def _row(number: int, text: str) -> Message:
    return Message(
        id=MessageId(number),
        session_id=SessionId(1),
        seq=number,
        role=MessageRole.USER if number % 2 else MessageRole.ASSISTANT,
        origin=Origin.HUMAN if number % 2 else Origin.ASSISTANT,
        text=text,
        body=EMPTY_BODY,
        sender_ref="telegram:1",
        sender_name="Ada",
        turn_id=None,
        tool_call_id=None,
        tool_name=None,
        created_at=Millis(1_700_000_000_000),
    )


def _session(reported: int | None, at_seq: int | None) -> Session:
    nothing = dict.fromkeys(Session.__struct_fields__)
    return Session(**{**nothing, "id": SessionId(1), "reported_prompt_tokens": reported, "reported_at_seq": at_seq})  # type: ignore[arg-type]  # the estimator reads these three
