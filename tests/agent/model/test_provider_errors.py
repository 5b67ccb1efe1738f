"""Error answers of real providers over every protocol: the sentence in the chat, and the number of attempts.

The texts are in tests/fixtures/provider_errors, one file per kind, each with its source and its expected kind. If the
expected kind differs from the file, `read` says why. Texts marked `blind` were collected and labelled after the
classifier was finished. Its first version classified 190 of 228 correctly. Nine of those texts, from a native API that
the gateway does not support, are left out.

Without `--protocol`, every third text runs over chat completions, streamed or whole. `make fuzz` runs all texts both
ways, and `make protocols` runs them over the other two protocols.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.base import ModelRequest
from agent.model.client import RetryPolicy
from agent.model.errors import remedy_for
from agent.model.errors.classifier import MIN_OUTPUT_ROOM, status_error, stream_error
from agent.model.wire import WireStyle
from hermes_state.errors import ContextOverflow, ImageRejected, OutputCapExceeded
from hermes_state.values import Image, MessageBody
from tests.agent.conftest import Chat
from tests.agent.context.contexts import chat_at
from tests.agent.context.rows import human
from tests.agent.model.ways import WAYS, Left, Talk, Way
from tests.e2e.protocols import CHAT_COMPLETIONS, OPTION
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.sampling import sample

Json = dict[str, Any]
FIXTURES = Path(__file__).parents[2] / "fixtures" / "provider_errors"
FILES = sorted(path.stem for path in FIXTURES.glob("*.json"))
READ_AS = {
    "access": ("auth", "The owner of this bot needs to ch"),
    "image": ("image", "Please try without the image"),
    "invalid": ("rejected", "should check this model's `name` and `base_url`."),
    "moderation": ("content_filtered", "content filter stopped this answer"),
    "money": ("quota", "is out of credit"),
    "not_found": ("not_offered", "does not offer this model at this address"),
    "output_cap": ("output_cap", "echo:"),
    "overflow": ("overflow", "no longer fits into the model's context window"),
    "rate": ("rate_limited", "is rate-limiting this bot"),
    "unavailable": ("unavailable", "is overloaded or cannot be reached"),
    "shape": ("shape", "/new"),
    "malformed": ("malformed", "Send /retry to try again"),
}
"""Outcome in the ledger, and a part of what the chat reads, by kind."""
IMPATIENT = RetryPolicy(first_pause=0.001, max_pause=0.002, max_retry_after=0.0)
"""Policy without pauses, so that the tests do not sleep."""
ATTEMPTS = {"rate": 4, "unavailable": 4, "shape": 2, "malformed": 3}
"""Number of attempts by kind, if the provider requests no pause. Otherwise, and for all other kinds: one attempt.

After a refused shape, stricter shapes are tried. Only the last of them changes a chat without calls.
"""


IMAGE = human("go", body=MessageBody(images=(Image(attachment_id=1, mime="image/png", path="a.png"),)))
REQUESTS = [
    ModelRequest(system="You are Hermes.", transcript=(human("go"),), max_output_tokens=1_000),
    ModelRequest(
        system="You are Hermes.",
        transcript=(IMAGE,),
        max_output_tokens=1_000,
        style=WireStyle(image_urls={1: "data:image/png;base64,AA=="}),
    ),
]
"""Requests without and with an image."""


def texts_of(name: str) -> list[Json]:
    found: list[Json] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


def fits(text: Json, way: Way) -> bool:
    """False for an event of another protocol, and for texts that only apply to images."""
    return text.get("protocol", way.protocol) == way.protocol and not text.get("has_image")


def script(text: Json, way: Way) -> Json:
    """Return the answer: an error status, or a 200 with the error instead of the reply or the first event."""
    body = text["body"]
    raw = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    if text["status"] >= 400:
        return {"status": text["status"], "raw": raw}
    if isinstance(body, str):
        raw = json.dumps({"error": body})
    if not way.streams:
        return {"raw": raw}
    name = "event: error\n" if way.protocol == "anthropic" else ""
    return {"raw": f"{name}data: {raw}\n\n", "content_type": "text/event-stream"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames:
        protocol = metafunc.config.getoption(OPTION) or CHAT_COMPLETIONS.name
        metafunc.parametrize("way", [way for way in WAYS if way.protocol == protocol], ids=str)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FILES)
async def test_provider_errors_are_classified(
    name: str, way: Way, chat: Chat, server: Server, llm: LLM, pytestconfig: pytest.Config
) -> None:
    wrong: list[str] = []
    step = sample(6, 1) if pytestconfig.getoption(OPTION) is None else 1
    for number, text in list(enumerate(texts_of(name)))[step // 2 * way.streams :: step]:
        if not fits(text, way):
            continue
        async with way.dialled(server.url, f"lab-{name}-{number}") as model:
            times = 1 if text["kind"] == "output_cap" else -1
            llm.scripts.append({"times": times, "reply": script(text, way)})
            left = await Talk(chat_at(chat, number), model, IMPATIENT).say("go")
            llm.scripts.clear()
        wrong += [f"{number} ({text['provider']}): {line}" for line in complaints(text, left, way)]
    assert not wrong, "\n".join(wrong)


def complaints(text: Json, left: Left, way: Way) -> Iterator[str]:
    """Return the deviations from the expectation."""
    outcome, sentence = READ_AS[text["kind"]]
    attempts = 1 if "wait_seconds" in text else ATTEMPTS.get(text["kind"], 1)
    if (text["kind"], way.protocol) == ("shape", "responses"):
        attempts = 1  # its system prompt is not a message, so a chat without calls is the same in every shape
    outcomes = [outcome] * attempts
    if text["kind"] == "output_cap" and text.get("cap", MIN_OUTPUT_ROOM) < MIN_OUTPUT_ROOM:
        sentence = "lower this model's `max_output_tokens`"  # would not be an error
    elif text["kind"] == "output_cap":
        outcomes.append("ok")
    if left.outcomes not in (outcomes, 2 * outcomes if is_put_otherwise(text) else outcomes):
        yield f"called {left.outcomes}, expected {outcomes}"
    [(_, told)] = left.told
    if sentence not in told:
        yield f"says {told!r}"


def is_put_otherwise(text: Json) -> bool:
    """True for a refusal of one part of the request, if the request has that part. The retry leaves it out."""
    words = json.dumps(text["body"])
    return any(part in words for part in ("max_completion_tokens", "enable_thinking", "thinking_blocks"))


@pytest.mark.parametrize("name", FILES)
def test_the_numbers_in_a_refusal_are_extracted(name: str) -> None:
    for text in texts_of(name):
        is_stream = text["status"] < 400
        seen = (text["body"], REQUESTS[text.get("has_image", False)])
        error = stream_error(*seen) if is_stream else status_error(text["status"], {"date": "now"}, *seen)
        assert remedy_for(error).outcome == READ_AS[text["kind"]][0], text
        if isinstance(error, ContextOverflow):
            assert (error.window, error.prompt_tokens) == (text.get("window"), text.get("prompt_tokens")), text
        if isinstance(error, ImageRejected) and "fault" in text:
            assert error.fault == text["fault"], text
        if isinstance(error, OutputCapExceeded):
            assert error.cap == text.get("cap"), text
        if "wait_seconds" in text:
            assert error.retry_after == text["wait_seconds"]


def test_every_text_has_a_source() -> None:
    texts = [text for name in FILES for text in texts_of(name)]
    assert len(texts) >= 500
    assert not [text for text in texts if not text["source"]]
