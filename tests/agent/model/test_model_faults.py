"""All faults of model calls, over every protocol, with and without streaming.

For each fault, a table has the sentence in the chat, the number of requests and the outcomes in the ledger. The tests
also check the stored rows, and that the chat continues afterwards.

`make test` runs half of the table: each fault over every protocol, either streamed or whole. Providers that fall silent
are tested by `test_patience`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from agent.model.errors import REMEDIES
from tests.agent.conftest import Chat
from tests.agent.model.ways import ASKED, MIXED_WAYS, Talk, Way
from tests.fakes import fake_llm
from tests.fakes.labkit import Server
from tests.sampling import crossed

Json = dict[str, Any]

STAMP = "[2026-01-01 00:00]"
HALF = "half of an answer that never comes"
CALL = {"name": "note", "arguments": {"text": "half of a call that never comes"}}
FLAGGED = {"reasons": ["violence"], "flagged_input": "go", "provider_name": "lab", "model_slug": "lab/lab-128k"}
PAGE = "<html><title>Bad gateway</title></html>"


def always(way: Way) -> bool:
    return True


def never(way: Way) -> bool:
    return False


def until_its_end(way: Way) -> bool:
    """Usage is only at the end of a streamed response."""
    return str(way) != "responses streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and its expected consequences."""

    does: Json | Callable[[Way], Json]
    """Behaviour of the server, as a script."""
    says: str
    """End of the sentence in the chat."""
    calls: tuple[str, ...]
    """Outcomes in the ledger, one per request."""
    whole: tuple[str, str, int] | None = None
    """Expectations without streaming, if they differ."""
    begins: bool = False
    """True if a streamed reply begins before it fails. Anthropic has then already reported the prompt's usage."""
    shows: bool = False
    """True if some text arrives, which has a cost."""
    reports: Callable[[Way], bool] = never
    """True for a way over which the failed reply reports its usage."""

    def script(self, way: Way) -> Json:
        return self.does(way) if callable(self.does) else dict(self.does)

    def expected(self, way: Way) -> tuple[list[tuple[str, str]], str]:
        """Return the rows of the ledger and the end of the sentence."""
        calls, says = self.calls, self.says
        if self.whole is not None and not way.streams:
            outcome, says, times = self.whole
            calls = (outcome,) * times
        return [(outcome, self._usage(way)) for outcome in calls], says

    def _usage(self, way: Way) -> str:
        if self.reports(way) or (self.begins and way.streams and way.protocol == "anthropic"):
            return "reported"
        return "estimated" if self.shows and way.streams else "unknown"


def error(kind: str, **more: Any) -> Json:
    """Return the script of an error answer."""
    return {"error": {"kind": kind, **more}}


def at_once(how: str, **more: Any) -> Callable[[Way], Json]:
    """Return the script of a stream that fails before any text."""
    return lambda way: {"text": HALF, how: way.before_text, **more}


def in_text(how: str, **more: Any) -> Callable[[Way], Json]:
    """Return the script of a stream that fails after two pieces of text."""
    return lambda way: {"text": HALF, "chunk_chars": 6, how: way.before_text + 2, **more}


def in_call(how: str, **more: Any) -> Callable[[Way], Json]:
    """Return the script of a stream that fails after two pieces of a tool call's arguments."""
    return lambda way: {"tool_calls": [CALL], "chunk_chars": 6, how: way.before_arguments + 2, **more}


NO_KEY = "rejected the API key. The owner of this bot needs to check this model's `api_key`."
NO_CREDIT = "is out of credit. The owner of this bot needs to top it up."
NOT_NOW = "or cannot be reached. Please send /retry in a minute."
BROKEN = "arrived broken or empty. Send /retry to try again."
FILTERED = "content filter stopped this answer. Please word your request differently."
UNREACHED = ("unavailable", NOT_NOW, 4)


def down(does: Json | Callable[[Way], Json], says: str = NOT_NOW, **more: Any) -> Fault:
    return Fault(does=does, says=says, **({"calls": ("unavailable",) * 4} | more))


def broken(does: Json | Callable[[Way], Json], times: int = 2, **more: Any) -> Fault:
    return Fault(does=does, says=BROKEN, calls=("malformed",) * times, **more)


def filtered(does: Json, **more: Any) -> Fault:
    return Fault(does=does, says=FILTERED, calls=("content_filtered",), **more)


def limited(says: str, times: int = 4, **more: Any) -> Fault:
    return Fault(does=error("429", **more), says=f"Please send /retry in {says}.", calls=("rate_limited",) * times)


BEGUN = {"begins": True, "shows": True}
MODERATED = {"error": {"code": 403, "message": "no", "metadata": FLAGGED}}
CHECK = "refused the request. The owner of this bot should check this model's `name` and `base_url`."
VAGUE = {"error": {"status": 400, "body": {"error": {"message": "Error"}}}}
FAULTS: Mapping[str, Fault] = {
    # ---- problems of the account
    "the key is wrong": Fault(does=error("401"), says=NO_KEY, calls=("auth",)),
    "payment is due": Fault(does=error("402"), says=NO_CREDIT, calls=("quota",)),
    "the quota is used up": Fault(does=error("quota"), says=NO_CREDIT, calls=("quota",)),
    "no such model": Fault(
        does=error("404"), says="needs to check this model's `name` and `base_url`.", calls=("not_offered",)
    ),
    # ---- temporary failures
    "rate limit": limited("a minute"),
    "rate limit for a moment": limited("a second", retry_after=0.05),
    "rate limit with too long a pause": limited("10 minutes", 1, retry_after=600),
    "server error": down(error("500")),
    "overload 503": down(error("503")),
    "overload 529": down(error("529")),
    "overload for a moment": down(
        error("503", retry_after=0.05), "or cannot be reached. Please send /retry in a second."
    ),
    "overload with too long a pause": down(
        error("529", retry_after=600), "or cannot be reached. Please send /retry in 10 minutes.", calls=("unavailable",)
    ),
    "a proxy's error page": down({"error": {"status": 502, "body": PAGE}}),
    # ---- refusals
    "the prompt is filtered": filtered(error("content_filter")),
    "the answer is filtered": filtered({"text": HALF, "finish": "content_filter"}, reports=always),
    "the prompt is flagged by a moderator": filtered({"error": {"status": 403, "body": MODERATED}}),
    "refused without a reason": Fault(does=VAGUE, says=CHECK, calls=("rejected",)),
    # ---- malformed replies
    "malformed": broken(in_text("malformed"), **BEGUN),
    "a page instead of a reply": broken({"raw": PAGE, "content_type": "text/html"}),
    "nothing instead of a reply": broken({"raw": ""}),
    "an empty answer": broken({"text": " \n"}, reports=always),
    # ---- interrupted replies
    "the stream ends before text": broken(at_once("truncate"), 3, whole=UNREACHED, begins=True),
    "the stream ends after text": broken(in_text("truncate"), whole=UNREACHED, **BEGUN),
    "the stream ends in a call": broken(in_call("truncate"), 3, whole=UNREACHED, begins=True),
    "no finish reason": broken({"text": HALF, "finish": None}, shows=True, reports=until_its_end),
    "an error inside the stream": down(in_text("error_mid"), **BEGUN),
    # ---- the network
    "reset before anything": down({"reset": True}),
    "reset after text": down(in_text("truncate", truncate_how="reset"), **BEGUN),
    "reset in a call": down(in_call("truncate", truncate_how="reset"), begins=True),
}

Cell = tuple[Fault, Way]
CELLS = {f"{name}, {way}": (fault, way) for (name, fault), way in crossed(2, FAULTS.items(), MIXED_WAYS)}


def passing(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Faults after which the client retries."""
    return {name: (fault, way) for name, (fault, way) in cells.items() if len(fault.expected(way)[0]) > 1}


def each(cells: Mapping[str, Cell]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("fault", "way"), cells.values(), ids=cells)


@asynccontextmanager
async def faulty(fault: Fault, way: Way, chat: Chat, server: Server, times: int) -> AsyncIterator[Talk]:
    """Chat whose provider fails `times` times; -1: always."""
    server.app[fake_llm.LLM_KEY].scripts.append({"times": times, "reply": fault.script(way)})
    async with way.dialled(server.url) as model:
        yield Talk(chat, model)


@pytest.mark.fuzz
@each(CELLS)
async def test_a_lasting_fault_fails_the_turn_not_the_chat(fault: Fault, way: Way, chat: Chat, server: Server) -> None:
    calls, says = fault.expected(way)
    llm = server.app[fake_llm.LLM_KEY]
    async with faulty(fault, way, chat, server, times=-1) as talk:
        left = await talk.say("go")
        assert left.calls == calls
        assert len(llm.requests.rows) == len(calls), "no further retries, neither by the SDK"
        assert left.rows == [ASKED], "a partial answer is not stored"
        assert left.state == "failed"
        [(kind, sentence)] = left.told
        assert kind == "error"
        assert sentence.endswith(says)
        assert HALF not in sentence
        assert talk.noted == [], "a partial call is not run"

    llm.scripts.clear()
    async with way.dialled(server.url) as patient:
        again = await Talk(chat, patient).say("and now?")
        assert again.told == [("final", f"echo: {STAMP} go\n\n{STAMP} and now?")], "earlier messages are not lost"
        assert again.calls == [("ok", "reported")]


@pytest.mark.fuzz
@each(passing(CELLS))
async def test_a_temporary_fault_is_not_noticed(fault: Fault, way: Way, chat: Chat, server: Server) -> None:
    (first, *_), _ = fault.expected(way)
    async with faulty(fault, way, chat, server, times=1) as talk:
        left = await talk.say("go")
        assert (left.told, left.calls) == ([("final", f"echo: {STAMP} go")], [first, ("ok", "reported")])
        assert (left.rows, left.state) == ([ASKED, ("assistant", f"echo: {STAMP} go")], "finished")
        assert (talk.shown[-1], talk.noted) == (f"echo: {STAMP} go", [])


def test_every_remedy_is_covered_by_a_test() -> None:
    shown = {outcome for fault in FAULTS.values() for outcome in fault.calls}
    elsewhere = {
        "overflow",
        "output_cap",
        "image",
        "capped",
        "unpriced",
        "shape",
        "timeout",
    }
    assert {remedy.outcome for remedy in REMEDIES.values()} == shown | elsewhere
