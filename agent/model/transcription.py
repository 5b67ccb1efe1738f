"""Speech to text through the transcription endpoint of OpenAI and compatible servers."""

import asyncio
import importlib
from collections.abc import Mapping
from typing import Final

from agent.model.base import Endpoint, Payer
from agent.model.client import BaseClient
from agent.model.errors import OUTCOME_OK
from agent.model.errors.classifier import stream_error
from agent.model.http import HttpModel
from agent.model.protocols.openai import BASE_URL, OPENAI_SDK
from agent.model.replies import read_json
from agent.model.usage import normalize_usage
from hermes_state.errors import ReplyMalformed
from hermes_state.text import well_formed
from hermes_state.values import CanonicalUsage, ModelCall

PURPOSE: Final = "transcription"
"""Purpose under which the ledger lists transcription calls."""
MAX_CHARACTERS: Final = 200_000
"""Maximum length of a transcription. People speak about 1,000 characters per minute."""


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
        return well_formed(text).strip(), normalize_usage(answer.get("usage"))


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
