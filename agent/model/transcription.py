"""Speech to text, over the transcription endpoint of OpenAI and whatever is compatible."""

from collections.abc import Mapping
from typing import Final

from agent.model.base import Payer
from agent.model.client import BaseClient
from agent.model.errors import OUTCOME_OK
from agent.model.errors.classifier import stream_error
from agent.model.http import EndpointSettings, HttpModel
from agent.model.protocols.openai import BASE_URL, OPENAI_SDK
from agent.model.usage import normalize_usage
from hermes_state.errors import ReplyMalformed
from hermes_state.text import well_formed
from hermes_state.values import CanonicalUsage, ModelCall

PURPOSE: Final = "transcription"
"""Purpose of such calls in the ledger."""

MAX_CHARACTERS: Final = 200_000
"""Longest transcription: people say about 1,000 characters in a minute."""


class TranscriptionModel(HttpModel):
    """A model behind `POST /audio/transcriptions`. Close it when done."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        super().__init__(endpoint, "transcription", OPENAI_SDK, endpoint.base_url or BASE_URL)

    async def transcribe(self, recording: bytes, name: str) -> tuple[str, CanonicalUsage | None]:
        """Words of a recording, and usage where the provider reports tokens. The end of `name` tells the format.

        Raises the kinds of `ModelError`.
        """
        answer = await self.fetch_json(
            "/audio/transcriptions",
            data={"model": self.name, "response_format": "json"},
            files={"file": (name, recording)},
        )
        if isinstance(answer, Mapping) and (error := answer.get("error")):
            raise stream_error(error)
        if not isinstance(answer, Mapping) or not isinstance(text := answer.get("text"), str):
            raise ReplyMalformed("the provider's transcription has an unknown shape")
        if len(text) > MAX_CHARACTERS:
            raise ReplyMalformed(f"a transcription with more than {MAX_CHARACTERS:,} characters")
        return well_formed(text).strip(), normalize_usage(answer.get("usage"))


class TranscriptionClient(BaseClient[TranscriptionModel]):
    """Client of a model that transcribes."""

    async def transcribe(
        self, recording: bytes, name: str, *, payer: Payer, within: float | None = None
    ) -> tuple[str, ModelCall]:
        """Words of a recording, none if nothing was said, and the call's row for the ledger.

        `within`: seconds for all attempts together.

        Raises the kinds of `ModelError`.
        """

        async def attempt(_show: object) -> tuple[str, CanonicalUsage | None]:
            return await self.model.transcribe(recording, name)

        (text, usage), took_ms = await self.call(attempt, payer=payer, purpose=PURPOSE, within=within)
        return text, self.row(PURPOSE, OUTCOME_OK, took_ms, usage)
