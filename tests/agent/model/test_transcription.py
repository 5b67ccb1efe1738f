"""What a transcription endpoint answers, and what becomes of its refusals."""

from collections.abc import AsyncIterator

import pytest

from agent.model.base import Endpoint, Payer
from agent.model.bodies import MAX_BODY_BYTES
from agent.model.transcription import TranscriptionClient, TranscriptionModel
from hermes_state.errors import (
    AuthRejected,
    ModelError,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    ReplyMalformed,
)
from hermes_state.values import CanonicalUsage
from tests.clients import RecordedCalls
from tests.fakes import fake_llm, labkit


@pytest.fixture
async def model(server: labkit.Server) -> AsyncIterator[TranscriptionModel]:
    model = TranscriptionModel(Endpoint(model="lab-transcribe", api_key="lab-key", base_url=f"{server.url}/v1"))
    yield model
    await model.close()


async def test_words_and_their_tokens_come_back(model: TranscriptionModel) -> None:
    text, usage = await model.transcribe(b"OggS SAYS: good morning ", "recording.ogg")
    assert text == "good morning"
    assert usage == CanonicalUsage(input=10, output=2)


async def test_a_model_that_counts_seconds_reports_no_tokens(server: labkit.Server) -> None:
    model = TranscriptionModel(Endpoint(model="whisper-1", api_key="lab-key", base_url=f"{server.url}/v1"))
    assert await model.transcribe(b"SAYS:hi", "recording.ogg") == ("hi", None)
    await model.close()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"kind": "429"}, ModelRateLimited),
        ({"kind": "status", "status": 503}, ModelUnavailable),
        ({"kind": "status", "status": 401}, AuthRejected),
        ({"kind": "reset"}, ModelUnavailable),
        ({"kind": "status", "status": 200, "body": "{}"}, ReplyMalformed),
    ],
)
async def test_trouble_has_its_kind(
    model: TranscriptionModel, llm: fake_llm.LLM, fault: dict[str, object], kind: type[ModelError]
) -> None:
    llm.faults.add({"match": "transcriptions", **fault})
    with pytest.raises(kind):
        await model.transcribe(b"SAYS:hi", "recording.ogg")


async def test_a_form_that_the_service_does_not_know_is_refused(model: TranscriptionModel) -> None:
    with pytest.raises(ModelError):
        await model.transcribe(b"SAYS:hi", "recording.txt")


async def test_an_answer_without_an_end_is_not_read_to_it(model: TranscriptionModel, llm: fake_llm.LLM) -> None:
    body = '{"text": "hi", "more": "' + "x" * MAX_BODY_BYTES + '"}'
    llm.faults.add({"match": "transcriptions", "kind": "status", "status": 200, "body": body})
    with pytest.raises(ReplyMalformed, match="bytes"):
        await model.transcribe(b"SAYS:hi", "recording.ogg")


async def test_nobody_waits_longer_than_they_want(model: TranscriptionModel, llm: fake_llm.LLM) -> None:
    llm.faults.add({"match": "transcriptions", "kind": "hang"})
    ledger = RecordedCalls()
    with pytest.raises(ModelTimeout):
        await TranscriptionClient(model, ledger).transcribe(b"SAYS:hi", "recording.ogg", payer=Payer(), within=0.2)
    assert [(call.purpose, call.outcome) for call in ledger.calls] == [("transcription", "timeout")]
