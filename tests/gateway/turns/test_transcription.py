"""Transcription: API, key, and changes of the configuration."""

import asyncio
from pathlib import Path

import pytest

from agent.model.audio import TranscriptionClient, TranscriptionModel
from agent.model.client import RetryPolicy
from gateway.config.overlay import AgentConfig
from gateway.config.settings import Config
from gateway.turns.file_kinds import AttachmentError
from gateway.turns.voice import TranscriptionHandler, endpoint_of
from hermes_state import inbox
from hermes_state.store.writer import Store
from hermes_state.values import AttachmentKind, InboxId, IncomingAttachment
from tests.clients import RecordedCalls
from tests.gateway.helpers import Serve, config_of

VOICE = IncomingAttachment(kind=AttachmentKind.VOICE, file_ref="v", name="voice.ogg", mime="audio/ogg", seconds=7)
OPENAI = "https://api.openai.com/v1"
ANTHROPIC = {"protocol": "anthropic", "name": "claude-x", "api_key": "for-anthropic"}
LOCAL = {"name": "m", "base_url": "http://127.0.0.1:1/v1", "api_key": "for-local"}

NOBODY_LISTENS = {"model": "whisper-1", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("model", "transcription", "base_url", "api_key"),
    [
        ({"name": "m", "api_key": "for-openai"}, {}, None, "for-openai"),
        ({"name": "m", "api_key": "for-openai", "protocol": "responses"}, {}, None, "for-openai"),
        (LOCAL, {}, "http://127.0.0.1:1/v1", "for-local"),
        (LOCAL, {"base_url": "http://127.0.0.1:1/audio"}, "http://127.0.0.1:1/audio", "for-local"),
        (LOCAL, {"base_url": "http://127.0.0.1:2/v1"}, "http://127.0.0.1:2/v1", ""),
        (LOCAL, {"base_url": OPENAI, "api_key": "own"}, OPENAI, "own"),
        (ANTHROPIC, {}, None, ""),
        (ANTHROPIC, {"api_key": "for-openai"}, None, "for-openai"),
        (ANTHROPIC | {"base_url": "http://127.0.0.1:1"}, {}, "http://127.0.0.1:1", "for-anthropic"),
    ],
)
def test_a_key_is_sent_only_to_its_own_api(
    model: dict[str, str], transcription: dict[str, str], base_url: str | None, api_key: str
) -> None:
    config = config_of(model=model, transcription={"model": "whisper-1", **transcription})
    endpoint = endpoint_of(config, "whisper-1")
    assert (endpoint.base_url, endpoint.api_key) == (base_url, api_key)


async def test_a_recording_fetched_while_transcription_is_disabled_is_refused(serve: Serve) -> None:
    async with serve(transcription=NOBODY_LISTENS) as gateway:
        gateway.adapter.files["v"] = b"SAYS:hello"
        begun, download = asyncio.Event(), gateway.adapter.download

        async def slow(attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
            begun.set()
            await asyncio.sleep(0.05)
            return await download(attachment, target, max_bytes)

        gateway.adapter.download = slow  # type: ignore[method-assign]
        await gateway.say("", files=[VOICE])
        await begun.wait()
        gateway.configure(config_of())
        assert await gateway.replies(1) == ["I can no longer listen to recordings. Please send text instead."]
        assert await gateway.rows("SELECT state FROM inbox") == [("done",)]


@pytest.mark.parametrize(
    ("change", "lines"), [({"agent": {"time_zone": "Asia/Tokyo"}}, 2), ({"sessions": {"merge_seconds": 3}}, 1)]
)
async def test_a_reload_of_prices_or_time_zone_creates_a_new_client(
    serve: Serve, store: Store, change: dict[str, dict[str, object]], lines: int
) -> None:
    async with serve(is_started=False, transcription=NOBODY_LISTENS) as gateway:
        made_for: list[Config] = []

        def make_client(config: Config, _agent: AgentConfig) -> TranscriptionClient:
            made_for.append(config)
            return TranscriptionClient(
                TranscriptionModel(endpoint_of(config, "whisper-1")),
                RecordedCalls(),
                policy=RetryPolicy(max_attempts=1),
            )

        ears = TranscriptionHandler(store=store, runtime=gateway.live, clock=gateway.clock, make_client=make_client)
        await gateway.say("", files=[VOICE])
        row = await store.read(inbox.load, InboxId(1))
        assert row is not None
        for config in (gateway.live.config, config_of(transcription=NOBODY_LISTENS, **change)):
            gateway.configure(config)
            with pytest.raises(AttachmentError):
                await ears.transcribe(row, VOICE, b"")
        assert len(made_for) == lines
        await ears.close()
