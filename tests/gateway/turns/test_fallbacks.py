"""Fallback models: order, number of calls, notices, and when fallbacks end."""

from collections.abc import Callable

import pytest

from agent.model.base import ModelReply, ModelRequest
from agent.model.client import MAX_FAILURES
from agent.model.errors import REMEDIES, sentence_for
from gateway.turns.runner import DEADLINE_SENTENCE
from hermes_state.errors import (
    AuthRejected,
    ContentRejected,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelUnavailable,
    OutputCapExceeded,
    SpendingCapExceeded,
)
from tests.gateway.helpers import GROUP, Hang, Respond, ScriptedModel, Serve, answer

TWO = {"name": "scripted", "fallbacks": ["spare"]}
THREE = {"name": "scripted", "fallbacks": ["spare", "last"]}
OF_THE_ROUTE = [kind for kind, remedy in REMEDIES.items() if remedy.trouble is not None]
NOT_OF_THE_ROUTE = [ContextOverflow, OutputCapExceeded, ContentRejected, SpendingCapExceeded]


def always(error: Exception) -> Respond:
    async def fail(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        raise error

    return fail


def broken(error: Exception) -> ScriptedModel:
    model = ScriptedModel()
    model.respond = always(error)
    return model


def saying(text: str) -> ScriptedModel:
    model = ScriptedModel()

    async def say(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        return answer(text)

    model.respond = say
    return model


@pytest.mark.parametrize("kind", OF_THE_ROUTE, ids=lambda kind: kind.__name__)
async def test_a_failed_route_hands_the_turn_to_the_next_fallback(serve: Serve, kind: type[ModelError]) -> None:
    model, spare = broken(kind("x")), saying("from the spare one")
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        said = await gateway.ask("q")
        text, notice = said.split("\n\n")
        assert text == "from the spare one"
        assert notice.startswith("_`spare` answers for now because `scripted` ")
        assert await gateway.rows("SELECT text FROM messages WHERE role = 'assistant'") == [("from the spare one",)]
        assert await gateway.turns_of() == [("finished", "q")]


@pytest.mark.parametrize("kind", NOT_OF_THE_ROUTE, ids=lambda kind: kind.__name__)
async def test_an_error_caused_by_the_request_is_reported_without_fallback(
    serve: Serve, kind: type[ModelError]
) -> None:
    spare = saying("no")
    async with serve(chat_model=broken(kind("x")), others={"spare": spare}, model=TWO) as gateway:
        assert await gateway.ask("q") == sentence_for(kind("x"))
        assert spare.requests == []


async def test_a_refusal_without_a_reason_tries_a_fallback_and_opens_no_circuit(serve: Serve) -> None:
    model, spare = broken(ModelError("x")), saying("from the spare one")
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        notice = "_`spare` answers for now because `scripted` refused this request._"
        assert await gateway.ask("q") == f"from the spare one\n\n{notice}"
        for _ in range(MAX_FAILURES):
            await gateway.ask("again")
        model.respond = saying("mine again").respond
        assert (await gateway.ask("now")).startswith("mine again")


async def test_a_fallback_and_the_return_are_each_announced_once(serve: Serve) -> None:
    model, spare = broken(AuthRejected("x")), saying("spare")
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        assert "answers for now" in await gateway.ask("one")
        assert await gateway.ask("two") == "spare"
        model.respond = model.echo
        assert await gateway.ask("three") == "echo: three\n\n_`scripted` answers again._"
        assert await gateway.ask("four") == "echo: four"
        assert not any("answers" in (row.text or "") for row in model.requests[-1].transcript), "never in a prompt"


async def test_status_shows_the_fallback_and_the_failure(serve: Serve) -> None:
    model, spare = broken(AuthRejected("x")), saying("spare")
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        for number in range(MAX_FAILURES):
            await gateway.ask(f"q{number}")
        said = await gateway.ask("/status")
        assert said.splitlines()[0] == "- Model: scripted"
        assert len(said.splitlines()) <= 6
        assert "scripted rejects our API key; paused for 30 s" in said
        assert "The last answer came from spare because scripted failed" in said


async def test_a_turn_skips_a_route_with_an_open_circuit(serve: Serve) -> None:
    model, spare = broken(AuthRejected("x")), saying("spare")
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        for number in range(MAX_FAILURES + 3):
            assert (await gateway.ask(f"q{number}")).startswith("spare")
        assert (len(model.requests), len(spare.requests)) == (MAX_FAILURES, MAX_FAILURES + 3)


async def test_without_a_fallback_an_open_circuit_is_tried_once_a_turn(serve: Serve) -> None:
    model = broken(ModelUnavailable("x"))
    async with serve(chat_model=model) as gateway:
        for number in range(MAX_FAILURES):
            await gateway.ask(f"q{number}")
        asked = len(model.requests)
        assert asked > MAX_FAILURES, "each call was repeated"
        assert await gateway.ask("again") == sentence_for(ModelUnavailable("x"))
        assert len(model.requests) == asked + 1
        model.respond = model.echo
        assert (await gateway.ask("now")).endswith(" | now")


async def test_each_fallback_is_tried_once_and_the_first_failure_is_reported(serve: Serve) -> None:
    model, spare, last = broken(AuthRejected("x")), broken(ModelNotFound("x")), broken(ContextOverflow("x"))
    async with serve(chat_model=model, others={"spare": spare, "last": last}, model=THREE) as gateway:
        assert await gateway.ask("q") == f"{sentence_for(AuthRejected('x'))} The 2 fallback models also failed."
        assert [len(one.requests) for one in (model, spare)] == [1, 1]
        assert last.requests
        [(error,)] = await gateway.rows("SELECT error FROM turns")
        assert error == "AuthRejected"


async def test_with_all_circuits_open_the_chosen_model_is_tried_and_named_first(serve: Serve) -> None:
    model, spare = broken(AuthRejected("x")), broken(ModelNotFound("x"))
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        for number in range(MAX_FAILURES + 1):
            said = await gateway.ask(f"q{number}")
        assert said == f"{sentence_for(AuthRejected('x'))} The fallback model also failed."
        assert len(model.requests) == len(spare.requests) == MAX_FAILURES + 1
        model.respond = model.echo
        assert (await gateway.ask("now")).endswith(" | now")


async def test_a_spending_cap_or_content_filter_ends_the_fallbacks(serve: Serve) -> None:
    for error in (SpendingCapExceeded("x"), ContentRejected("x")):
        model, spare, last = broken(AuthRejected("x")), broken(error), saying("no")
        others = {"spare": spare, "last": last}
        async with serve(chat_model=model, others=others, model=THREE) as gateway:
            assert sentence_for(error) in (await gateway.ask("q"))
            assert last.requests == []
            await gateway.ask("/new")


async def test_a_turn_stopped_between_two_models_keeps_no_text_of_the_first(serve: Serve) -> None:
    model, hang = ScriptedModel(), Hang()

    async def begin(_request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        on_text("Half of a")
        raise AuthRejected("x")

    model.respond = begin
    spare = ScriptedModel()
    spare.respond = hang
    async with serve(chat_model=model, others={"spare": spare}, model=TWO) as gateway:
        await gateway.say("q")
        await hang.begun.wait()
        await gateway.tell("/stop")
        assert await gateway.rows("SELECT text FROM messages WHERE role = 'assistant'") == []


async def test_all_fallbacks_share_the_deadline_of_one_turn(serve: Serve) -> None:
    model, spare = broken(AuthRejected("x")), ScriptedModel()
    spare.respond = Hang()
    settings = {**TWO, "turn_seconds": 1}
    async with serve(chat_model=model, others={"spare": spare}, model=settings) as gateway:
        assert await gateway.ask("q") == DEADLINE_SENTENCE


async def test_circuits_of_two_routes_are_independent(serve: Serve) -> None:
    model, other = broken(ModelRateLimited("x", retry_after=60)), saying("other")
    settings = {"name": "scripted", "aliases": {"other": "other"}}
    async with serve(chat_model=model, others={"other": other}, model=settings) as gateway:
        await gateway.ask("/model other")
        for number in range(MAX_FAILURES):
            await gateway.ask(f"q{number}", chat=GROUP)
        assert gateway.live.models.configured.client.breaker.open is not None
        assert await gateway.ask("q") == "other"
        assert (await gateway.ask("/status")).count("paused for") == 0


async def test_a_fallback_equal_to_the_chosen_model_is_not_tried_twice(serve: Serve) -> None:
    spare = broken(AuthRejected("x"))
    async with serve(others={"spare": spare}, model=TWO) as gateway:
        await gateway.ask("/model spare")
        assert await gateway.ask("q") == sentence_for(AuthRejected("x"))
        assert len(spare.requests) == 1
