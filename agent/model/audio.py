"""Speech to text and text to speech through the audio endpoints of OpenAI and compatible servers."""

import asyncio
import importlib
import re
from collections.abc import Mapping
from typing import Final, Literal

from agent.model.base import Endpoint, Payer
from agent.model.client import BaseClient
from agent.model.errors import OUTCOME_OK
from agent.model.errors.classifier import stream_error
from agent.model.http import HttpModel
from agent.model.protocols.openai import BASE_URL, OPENAI_SDK
from agent.model.replies import read_bytes, read_json
from agent.model.usage import estimated_text_tokens, normalize_usage
from hermes_state.errors import ModelError, ReplyMalformed
from hermes_state.models.ledger import ModelCall
from hermes_state.text import well_formed
from hermes_state.values import CanonicalUsage

PURPOSE: Final = "transcription"
"""Purpose under which the ledger lists transcription calls."""
SPEECH: Final = "speech"
"""Purpose under which the ledger lists speech calls."""
MAX_CHARACTERS: Final = 200_000
"""Maximum length of a transcription. People speak about 1,000 characters per minute."""

_SILENCE: Final = re.compile(r"\[(?:BLANK_AUDIO|SILENCE|NO_SPEECH)\]", re.I)
_TYPES: Final = {b"OggS": "audio/ogg", b"ID3": "audio/mpeg", b"\xff": "audio/mpeg", b"RIFF": "audio/wav"}
"""Media type of a recording by its first bytes, because some servers do not send the requested format."""
_TOKENS_PER_CHARACTER: Final = 1.25
"""Estimated audio tokens per spoken character. The endpoint reports no usage."""


class TranscriptionModel(HttpModel):
    """Model that is called through `POST /audio/transcriptions`. Close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "transcription", OPENAI_SDK, endpoint.base_url or BASE_URL)

    async def transcribe(self, recording: bytes, name: str) -> tuple[str, CanonicalUsage | None]:
        """Return the text of a recording and the reported usage. The extension of `name` states the audio format."""
        await asyncio.to_thread(importlib.import_module, "openai.resources.audio.transcriptions")  # takes 0.2 s
        with self._translated():
            create = self._client.audio.transcriptions.with_streaming_response.create
            async with create(model=self.name, file=(name, recording), response_format="json") as opened:
                answer = await read_json(opened.http_response)
        if isinstance(answer, Mapping) and (error := answer.get("error")):
            raise stream_error(error)
        if not isinstance(answer, Mapping) or not isinstance(text := answer.get("text"), str):
            raise ReplyMalformed("the provider's transcription has an unknown shape")
        if len(text) > MAX_CHARACTERS:
            raise ReplyMalformed(f"the transcription has more than {MAX_CHARACTERS:,} characters")
        # A whisper.cpp server breaks lines every 60 characters, and marks silence instead of leaving it out.
        return " ".join(_SILENCE.sub("", well_formed(text)).split()), normalize_usage(answer.get("usage"))


class TranscriptionClient(BaseClient[TranscriptionModel]):
    """Client for a transcription model."""

    async def transcribe(
        self, recording: bytes, name: str, *, payer: Payer, within: float | None = None
    ) -> tuple[str, ModelCall]:
        """Return the text of a recording, which may be empty, and the row for the ledger.

        `within`: time limit in seconds for all attempts together. Raises `ModelError` if the call fails.
        """
        (text, usage), took_ms = await self.call(
            lambda _show: self.model.transcribe(recording, name), payer=payer, purpose=PURPOSE, within=within
        )
        return text, self.row(PURPOSE, OUTCOME_OK, took_ms, usage)


class SpeechModel(HttpModel):
    """Model that is called through `POST /audio/speech`. Close it when done."""

    def __init__(self, endpoint: Endpoint, voice: str) -> None:
        super().__init__(endpoint, SPEECH, OPENAI_SDK, endpoint.base_url or BASE_URL)
        self._voice = voice

    async def speak(self, text: str) -> tuple[bytes, str]:
        """Return a recording of `text`, and its media type. If the server refuses Opus, it is asked for MP3."""
        await asyncio.to_thread(importlib.import_module, "openai.resources.audio.speech")
        try:
            data = await self._spoken(text, "opus")
        except ModelError as error:
            if type(error) is not ModelError:  # the error is not a refusal of the request
                raise
            data = await self._spoken(text, "mp3")
        mime = next((mime for start, mime in _TYPES.items() if data.startswith(start)), None)
        if mime is None:
            raise ReplyMalformed("the provider's recording has an unknown format")
        return data, mime

    async def _spoken(self, text: str, audio_format: Literal["opus", "mp3"]) -> bytes:
        with self._translated():
            create = self._client.audio.speech.with_streaming_response.create
            async with create(model=self.name, voice=self._voice, input=text, response_format=audio_format) as opened:
                return await read_bytes(opened.http_response)


class SpeechClient(BaseClient[SpeechModel]):
    """Client for a speech model."""

    async def speak(self, text: str, *, payer: Payer, within: float) -> tuple[bytes, str, ModelCall]:
        """Return a recording, its media type and the row for the ledger. If the model has a price, usage is estimated.

        `within`: time limit in seconds for all attempts together. Raises `ModelError` if the call fails.
        """
        attempt = self.call(lambda _show: self.model.speak(text), payer=payer, purpose=SPEECH, within=within)
        (data, mime), took_ms = await attempt
        tokens = CanonicalUsage(input=estimated_text_tokens(text), output=int(_TOKENS_PER_CHARACTER * len(text)))
        usage = tokens if self._price is not None else None
        return data, mime, self.row(SPEECH, OUTCOME_OK, took_ms, usage, is_estimated=usage is not None)
