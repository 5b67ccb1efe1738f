"""Transcription: recordings that people send become text, by the configured speech-to-text model.

What was said takes the recording's place in the waiting message, in the transaction that also pays for it: a crash
between here and the turn neither loses nor buys it twice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.model.base import EndpointSettings, Payer
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

if TYPE_CHECKING:  # it brings an SDK, which `gateway.models.clients` loads late
    from agent.model.transcription import TranscriptionClient

log = structlog.get_logger()

MAX_MINUTES = 10
"""Longest recording, in minutes: longer ones are no spoken messages, and are paid by the minute."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class TranscriptionHandler:
    """Transcribes recordings as the configuration in force says."""

    store: Store
    runtime: Runtime
    clock: Clock
    make_client: "Callable[[Config], TranscriptionClient]"
    _clients: "list[TranscriptionClient]" = field(default_factory=list, init=False)
    """The newest is in use; an older one may still be for a moment after a reload."""
    _inputs: object = field(default=None, init=False)

    @property
    def is_enabled(self) -> bool:
        """Recordings are transcribed at all."""
        return self.runtime.config.transcription.model is not None

    def refuse_long(self, recording: IncomingAttachment) -> None:
        """Raise `AttachmentError` for a recording that is known to be longer than `MAX_MINUTES`."""
        if recording.seconds is not None and recording.seconds > MAX_MINUTES * 60:
            raise AttachmentError(
                f"I listen to at most {MAX_MINUTES} minutes at a time; please say it in shorter pieces."
            )

    async def transcribe(self, row: InboxRow, recording: IncomingAttachment, data: bytes) -> str:
        """Transcript of a fetched recording of a waiting message, by now stored with it.

        Raises `AttachmentError` when nothing could be made out, with the reason.
        """
        if not self.is_enabled:  # a reload may have closed them while the recording was fetched
            raise AttachmentError("I cannot listen to recordings any more; please write to me instead.")
        try:
            name, within = _file_name(recording), self.runtime.config.model.turn_seconds
            client, payer = await asyncio.to_thread(self._client), Payer(chat_id=row.chat_id)
            text, call = await client.transcribe(data, name, payer=payer, within=within)
        except ModelError as error:
            log.warning("recording.unheard", error=type(error).__name__, detail=str(error))
            raise AttachmentError(_sentence(error)) from error
        await self.store.write(_keep, row, recording, text, call, self.clock.now())
        if not text:
            sentence = "I could not make out any words in your recording; please send it again, or write to me."
            raise AttachmentError(sentence)
        log.info("recording.heard", seconds=recording.seconds, characters=len(text))
        return text

    async def close(self) -> None:
        """Let go of connections."""
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
    """File name whose end tells the format, as transcription endpoints want it."""
    suffix = Path(recording.name).suffix.lower()
    if suffix not in _SUFFIXES:
        suffix = _SUFFIX_OF.get((recording.mime or "").partition(";")[0].strip().lower(), ".ogg")
    return f"recording{'.ogg' if suffix == '.oga' else suffix}"


_SUFFIXES = (".flac", ".m4a", ".mp3", ".mp4", ".mpeg", ".mpga", ".oga", ".ogg", ".wav", ".webm")
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
            "I could not listen to your recording: the transcription service refused. Whoever runs this gateway has "
            "to check `transcription`; until then, please write to me."
        )
    return "I could not listen to your recording right now; please send it again in a minute, or write to me."


def transcription_client(config: Config, spending: SpendingControl) -> "TranscriptionClient":
    """Client of the configured speech-to-text model."""
    from agent.model.transcription import TranscriptionClient, TranscriptionModel

    endpoint = endpoint_of(config)
    return TranscriptionClient(
        TranscriptionModel(endpoint),
        spending.ledger,
        price=price_in(config, endpoint.model),
        caps=spending.caps_in(config, endpoint.model),
    )


def endpoint_of(config: Config) -> EndpointSettings:
    """Endpoint settings for recordings. The key of `model` goes along only to the API that it is for."""
    settings, model = config.transcription, config.model
    assert settings.model is not None, "asked only while a model is configured"
    values = {
        "name": settings.model,
        "protocol": "chat_completions",
        "base_url": settings.base_url or model.base_url,
        "api_key": settings.api_key,
    }
    route = completed(written_route(values, "transcription"), model)
    return EndpointSettings(
        model=settings.model,
        api_key=route.plain_key,
        base_url=route.base_url,
        connect_seconds=model.connect_seconds,
        read_seconds=model.read_seconds,
    )
