"""Answers and refusals of a transcription endpoint."""

from collections.abc import AsyncIterator

import pytest

from agent.model.base import Endpoint, Payer
from agent.model.replies import MAX_BODY_BYTES
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
from tests.fakes import fake_llm
from tests.fakes.labkit import Server


@pytest.fixture
async def model(server: Server) -> AsyncIterator[TranscriptionModel]:
    model = TranscriptionModel(Endpoint(model="lab-transcribe", api_key="lab-key", base_url=f"{server.url}/v1"))
    yield model
    await model.close()


async def test_text_and_usage_are_returned(model: TranscriptionModel) -> None:
    text, usage = await model.transcribe(b"OggS SAYS: good morning ", "recording.ogg")
    assert (text, usage) == ("good morning", CanonicalUsage(input=10, output=2))


async def test_a_model_that_counts_seconds_reports_no_tokens(server: Server) -> None:
    model = TranscriptionModel(Endpoint(model="whisper-1", api_key="lab-key", base_url=f"{server.url}/v1"))
    assert await model.transcribe(b"SAYS:hi", "recording.ogg") == ("hi", None)
    await model.close()


ENDLESS = '{"text": "hi", "more": "' + "x" * MAX_BODY_BYTES + '"}'


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"kind": "429"}, ModelRateLimited),
        ({"kind": "status", "status": 503}, ModelUnavailable),
        ({"kind": "status", "status": 401}, AuthRejected),
        ({"kind": "reset"}, ModelUnavailable),
        ({"kind": "status", "status": 200, "body": "{}"}, ReplyMalformed),
        ({"kind": "status", "status": 200, "body": ENDLESS}, ReplyMalformed),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_failures_have_the_right_kind(
    model: TranscriptionModel, llm: fake_llm.LLM, fault: dict[str, object], kind: type[ModelError]
) -> None:
    llm.faults.add({"match": "transcriptions", **fault})
    with pytest.raises(kind, match="bytes" if fault.get("body") == ENDLESS else None):
        await model.transcribe(b"SAYS:hi", "recording.ogg")


async def test_an_unknown_format_is_an_error(model: TranscriptionModel) -> None:
    with pytest.raises(ModelError):
        await model.transcribe(b"SAYS:hi", "recording.txt")


async def test_a_transcription_has_a_time_limit(model: TranscriptionModel, llm: fake_llm.LLM) -> None:
    llm.faults.add({"match": "transcriptions", "kind": "hang"})
    ledger = RecordedCalls()
    with pytest.raises(ModelTimeout):
        await TranscriptionClient(model, ledger).transcribe(b"SAYS:hi", "recording.ogg", payer=Payer(), within=0.2)
    assert [(call.purpose, call.outcome) for call in ledger.calls] == [("transcription", "timeout")]
