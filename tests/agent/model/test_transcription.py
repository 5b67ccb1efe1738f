"""Answers and refusals of transcription and speech endpoints."""

from collections.abc import AsyncIterator

import pytest

from agent.model.audio import SpeechClient, SpeechModel, TranscriptionClient, TranscriptionModel
from agent.model.base import Endpoint, Payer
from agent.model.catalog import Price
from agent.model.client import RetryPolicy
from agent.model.replies import MAX_BODY_BYTES, MAX_FILE_BYTES
from hermes_state.errors import (
    AuthRejected,
    ModelError,
    ModelNotFound,
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


WHISPER_SEGMENTS = '{"text":" And so my fellow Americans,\\n ask not what your country can do.\\n"}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (WHISPER_SEGMENTS, "And so my fellow Americans, ask not what your country can do."),
        ('{"text":" [BLANK_AUDIO]\\n"}', ""),
        ('{"text":"hi"}', "hi"),
        ('{"segments":[{"id":0,"start":0,"end":1000000000,"text":" hi","tokens":null}],"text":" hi"}', "hi"),
    ],
    ids=["whisper.cpp", "whisper.cpp hears silence", "speaches", "LocalAI"],
)
async def test_servers_on_this_machine_are_understood(
    model: TranscriptionModel, llm: fake_llm.LLM, body: str, text: str
) -> None:
    llm.faults.add({"match": "transcriptions", "kind": "status", "status": 200, "body": body})
    assert await model.transcribe(b"sound", "recording.ogg") == (text, None)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error":"failed to read audio data"}', ModelError),
        (500, '{"error":"FFmpeg conversion failed."}', ModelUnavailable),
        (503, '{"status":"loading model"}', ModelUnavailable),
        (404, "File Not Found (/v1/audio/transcriptions)", ModelNotFound),
        (404, '{"detail":"Model \'lab\' is not installed locally. You can download the model"}', ModelNotFound),
        (415, '{"detail":"Failed to decode audio. The provided file type is not supported."}', ModelError),
        (422, '{"detail":[{"type":"missing","loc":["body","file"],"msg":"Field required"}]}', ModelError),
        (403, '{"detail":"Not authenticated"}', AuthRejected),
        (500, '{"error":{"code":500,"message":"could not load model: rpc error","type":""}}', ModelUnavailable),
    ],
    ids=str,
)
async def test_refusals_of_servers_on_this_machine_have_the_right_kind(
    model: TranscriptionModel, llm: fake_llm.LLM, status: int, body: str, kind: type[ModelError]
) -> None:
    llm.faults.add({"match": "transcriptions", "kind": "status", "status": status, "body": body})
    with pytest.raises(ModelError) as raised:
        await model.transcribe(b"sound", "recording.ogg")
    assert type(raised.value) is kind


async def test_an_unknown_format_is_an_error(model: TranscriptionModel) -> None:
    with pytest.raises(ModelError):
        await model.transcribe(b"SAYS:hi", "recording.txt")


async def test_a_transcription_has_a_time_limit(model: TranscriptionModel, llm: fake_llm.LLM) -> None:
    llm.faults.add({"match": "transcriptions", "kind": "hang"})
    ledger = RecordedCalls()
    with pytest.raises(ModelTimeout):
        await TranscriptionClient(model, ledger).transcribe(b"SAYS:hi", "recording.ogg", payer=Payer(), within=0.2)
    assert [(call.purpose, call.outcome) for call in ledger.calls] == [("transcription", "timeout")]


@pytest.mark.parametrize(
    ("answer", "mime"),
    [
        ("OggS…", "audio/ogg"),
        ("ID3…", "audio/mpeg"),
        ("RIFF…", "audio/wav"),
        ('{"error": "no such voice"}', None),
        ("", None),
        ("OggS" + "x" * MAX_FILE_BYTES, None),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_recording_is_recognised_by_its_first_bytes(
    server: Server, llm: fake_llm.LLM, answer: str, mime: str | None
) -> None:
    llm.faults.add({"match": "speech", "kind": "status", "status": 200, "body": answer})
    model = SpeechModel(Endpoint(model="lab-tts", api_key="", base_url=f"{server.url}/v1"), "alloy")
    price, once = Price(input=0.6, output=12, cache_read=0, cache_write=0), RetryPolicy(max_attempts=1)
    client = SpeechClient(model, RecordedCalls(), price=price, policy=once)
    if mime is None:
        with pytest.raises(ReplyMalformed):
            await client.speak("hello", payer=Payer(), within=60.0)
    else:
        data, found, call = await client.speak("hello", payer=Payer(), within=60.0)
        assert (data.decode(), found) == (answer, mime)
        assert (call.purpose, call.is_estimated, call.cost) == ("speech", True, 73)
    await model.close()
