"""Transcription of recordings by the configured speech-to-text model.

A single transaction stores the transcript in the waiting message and records the cost. A crash neither loses the
transcript nor causes a second charge.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.model.base import Endpoint, Payer
from agent.model.errors import sentence_for
from gateway.config.routes import completed, written_route
from gateway.config.settings import Config
from gateway.models.pricing import SpendingControl, price_in
from gateway.models.selection import Runtime
from gateway.turns.file_kinds import AttachmentError
from hermes_state import inbox
from hermes_state.errors import (
    AuthRejected,
    ModelError,
    ModelNotFound,
    PriceNotFound,
    QuotaExceeded,
    SpendingCapExceeded,
)
from hermes_state.inbox import InboxRow
from hermes_state.models import ledger
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import Clock, IncomingAttachment, Millis, ModelCall

if TYPE_CHECKING:  # this import loads an SDK, so do not do it at run time
    from agent.model.transcription import TranscriptionClient

log = structlog.get_logger()

MAX_MINUTES = 10
"""Maximum length of a recording in minutes. Providers bill transcription by the minute."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class TranscriptionHandler:
    """Transcribes recordings with the current configuration."""

    store: Store
    runtime: Runtime
    clock: Clock
    make_client: "Callable[[Config], TranscriptionClient]"
    _clients: "list[TranscriptionClient]" = field(default_factory=list, init=False)
    """Clients, the current one last. Shortly after a reload, older clients can still be in use."""
    _inputs: object = field(default=None, init=False)

    @property
    def is_enabled(self) -> bool:
        """True if a transcription model is configured."""
        return self.runtime.config.transcription.model is not None

    def refuse_long(self, recording: IncomingAttachment) -> None:
        """Raise `AttachmentError` for a recording whose known length exceeds `MAX_MINUTES`."""
        if recording.seconds is not None and recording.seconds > MAX_MINUTES * 60:
            sentence = f"Recordings can be at most {MAX_MINUTES} minutes long. Please send shorter pieces."
            raise AttachmentError(sentence)

    async def transcribe(self, row: InboxRow, recording: IncomingAttachment, data: bytes) -> str:
        """Transcribe a recording, and store and return the transcript. Raises `AttachmentError` with the reason."""
        if not self.is_enabled:  # a reload may have disabled transcription while the recording was fetched
            raise AttachmentError("I can no longer listen to recordings. Please send text instead.")
        try:
            name, within = _file_name(recording), self.runtime.config.model.turn_seconds
            client, payer = await asyncio.to_thread(self._client), Payer(chat_id=row.chat_id)
            text, call = await client.transcribe(data, name, payer=payer, within=within)
        except ModelError as error:
            log.warning("recording.failed", error=type(error).__name__, detail=str(error))
            raise AttachmentError(_sentence(error)) from error
        await self.store.write(_keep, row, recording, text, call, self.clock.now())
        if not text:
            sentence = "I could not hear any words in your recording. Please send it again, or send text instead."
            raise AttachmentError(sentence)
        log.info("recording.transcribed", seconds=recording.seconds, characters=len(text))
        return text

    async def close(self) -> None:
        for client in self._clients:
            await client.model.close()

    def _client(self) -> "TranscriptionClient":
        config = self.runtime.config
        inputs = (config.transcription, config.model, config.costs, config.agent.time_zone)
        if inputs != self._inputs:
            self._clients.append(self.make_client(config))
            self._inputs = inputs
        return self._clients[-1]


@locks(inbox="row.id", chat="row.chat_id")
def _keep(
    db: Connection, row: InboxRow, recording: IncomingAttachment, text: str, call: ModelCall, now: Millis
) -> None:
    ledger.record(db, None, None, call, now, chat_id=row.chat_id)
    if text:
        inbox.save_transcript(db, row.id, recording, text)


def _file_name(recording: IncomingAttachment) -> str:
    """Return a file name with the right suffix for the format, as transcription endpoints require."""
    suffix = Path(recording.name).suffix.lower()
    if suffix not in (".flac", ".m4a", ".mp3", ".mp4", ".mpeg", ".mpga", ".oga", ".ogg", ".wav", ".webm"):
        suffix = _SUFFIX_OF.get((recording.mime or "").partition(";")[0].strip().lower(), ".ogg")
    return f"recording{'.ogg' if suffix == '.oga' else suffix}"


_SUFFIX_OF = {
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "audio/webm": ".webm",
    "audio/x-m4a": ".m4a",
    "audio/x-wav": ".wav",
}


def _sentence(error: ModelError) -> str:
    if isinstance(error, SpendingCapExceeded | PriceNotFound):
        return sentence_for(error)
    if isinstance(error, AuthRejected | QuotaExceeded | ModelNotFound):
        return (
            "I could not listen to your recording, because the transcription service refused the request. The owner of "
            "this bot needs to check the `transcription` settings. Until then, please send text."
        )
    return "I could not listen to your recording right now. Please send it again in a minute, or send text instead."


def transcription_client(config: Config, spending: SpendingControl) -> "TranscriptionClient":
    from agent.model.transcription import TranscriptionClient, TranscriptionModel

    endpoint = endpoint_of(config)
    price, caps = price_in(config, endpoint.model), spending.caps_in(config, endpoint.model)
    return TranscriptionClient(TranscriptionModel(endpoint), spending.ledger, price=price, caps=caps)


def endpoint_of(config: Config) -> Endpoint:
    """Return the endpoint for transcription. `model.api_key` is sent only to the API of `model`."""
    settings, model = config.transcription, config.model
    assert settings.model is not None, "called only while a model is configured"
    url, key = settings.base_url or model.base_url, settings.api_key
    values = {"name": settings.model, "protocol": "chat_completions", "base_url": url, "api_key": key}
    route = completed(written_route(values, "transcription"), model)
    return Endpoint(
        model=settings.model,
        api_key=route.plain_key,
        base_url=route.base_url,
        read_seconds=model.read_seconds,
        network=config.network,
    )
