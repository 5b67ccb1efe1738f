"""Transcription of recordings, and voice messages that speak an answer, by the configured audio models.

A single transaction stores the transcript in the waiting message and records the cost. A crash neither loses the
transcript nor causes a second charge. The same is true for the recording of an answer, which is stored before it is
sent. Its outbox row is stored together with the answer. The delivery then starts the recording.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from agent.model.base import Endpoint, Payer
from agent.model.client import BaseClient
from agent.model.errors import sentence_for
from gateway.config.overlay import AgentConfig
from gateway.config.routes import RouteConfig, completed, written_route
from gateway.config.settings import Config
from gateway.models.pricing import SpendingControl, price_in
from gateway.models.selection import Runtime
from gateway.outbound.delivery import Delivery
from gateway.switches import VOICE
from gateway.turns.file_kinds import AttachmentError
from hermes_state import attachments, inbox, outbox
from hermes_state.agents import load_agent, load_author
from hermes_state.aio import cancel_all
from hermes_state.attachments import StoredFile
from hermes_state.chats import load_chat
from hermes_state.errors import (
    AuthRejected,
    ModelError,
    ModelNotFound,
    PlatformError,
    PriceNotFound,
    QuotaExceeded,
    SpendingCapExceeded,
    StateError,
)
from hermes_state.inbox import InboxRow
from hermes_state.models import ledger
from hermes_state.models.ledger import ModelCall
from hermes_state.outbox import OutboxRow, load_words
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Clock, IncomingAttachment, Millis, OutboundPart, OutboxId

if TYPE_CHECKING:  # loads an SDK, so it is imported only for type checks
    from markdown_it.token import Token

    from agent.model.audio import SpeechClient, TranscriptionClient

log = structlog.get_logger()

C = TypeVar("C", bound=BaseClient[Any])  # Any: either audio model

MAX_MINUTES = 10
"""Maximum length of a recording in minutes. Providers bill transcription by the minute."""
MAX_SPOKEN = 1_500
"""Maximum number of characters to speak, which takes about a minute and a half."""
RETRY_SECONDS = 30.0
"""Seconds until the next attempt after a database error."""
PULSE_SECONDS = 4.0
"""Seconds between updates that show that a recording is being made. Each also checks that it is still wanted."""
PART_ONLY = "The recording contains only the beginning. The text above is complete."
NOT_SENT = "(The voice message could not be sent here. The text above is complete.)"
NOT_RECORDED = "I could not record a voice message for this answer. The text above is complete."


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class AudioHandler(Generic[C]):
    """Calls an audio model with the current configuration, and with the caps of the agent in the chat."""

    store: Store
    runtime: Runtime
    clock: Clock
    make_client: Callable[[Config, AgentConfig], C]
    _clients: list[tuple[object, C]] = field(default_factory=list, init=False)
    """Clients with the settings that they were made from. Older clients can be in use for a short time."""

    async def close(self) -> None:
        for _, client in self._clients:
            await client.model.close()

    async def _client(self, agent: str) -> C:
        return await asyncio.to_thread(self._client_of, agent)

    def _client_of(self, name: str) -> C:
        config, loaded = self.runtime.config, self.runtime.live.loaded
        agent = loaded.agent(name if name in loaded.agent_names else "")
        audio, costs = (config.transcription, config.voice, config.model), (name, agent.config.costs, agent.daily_cap)
        inputs = (audio, costs, config.agent.time_zone)
        client = next((client for made_from, client in self._clients if made_from == inputs), None)
        if client is None:
            client = self.make_client(config, agent)
            self._clients.append((inputs, client))
        return client


class TranscriptionHandler(AudioHandler["TranscriptionClient"]):
    """Transcribes recordings."""

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
            client = await self._client(await self.store.read(load_agent, row.chat_id))
            payer = Payer(chat_id=row.chat_id)
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
    if isinstance(error, AuthRejected | QuotaExceeded | ModelNotFound) or type(error) is ModelError:
        return (
            "I could not listen to your recording, because the transcription service refused the request. The owner of "
            "this bot needs to check the `transcription` settings. Until then, please send text."
        )
    return "I could not listen to your recording right now. Please send it again in a minute, or send text instead."


def transcription_client(config: Config, agent: AgentConfig, spending: SpendingControl) -> "TranscriptionClient":
    from agent.model.audio import TranscriptionClient, TranscriptionModel

    assert config.transcription.model is not None, "called only while a model is configured"
    endpoint = endpoint_of(config, config.transcription.model)
    price, caps = price_in(config, endpoint.model), spending.caps_in(agent.config, endpoint.model, agent)
    return TranscriptionClient(TranscriptionModel(endpoint), spending.ledger, price=price, caps=caps)


def audio_route(config: Config, name: str) -> RouteConfig:
    """Return the route of an audio model. `model.api_key` is sent only to the API of `model`."""
    url, key = config.transcription.base_url or config.model.base_url, config.transcription.api_key
    values = {"name": name, "protocol": "chat_completions", "base_url": url, "api_key": key}
    return completed(written_route(values, "transcription"), config.model)


def endpoint_of(config: Config, name: str) -> Endpoint:
    route, model = audio_route(config, name), config.model
    return Endpoint(
        model=name,
        api_key=route.plain_key,
        base_url=route.base_url,
        read_seconds=model.read_seconds,
        network=config.network,
    )


# ---- spoken answers


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class VoiceRecorder(AudioHandler["SpeechClient"]):
    """Records the voice messages of answers in the background. Nothing else waits for them."""

    delivery: Delivery
    _tasks: dict[OutboxId, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _told: set[ChatId] = field(default_factory=set, init=False)
    """Chats that were told about a failure since their last recording."""

    def begin(self, row: OutboxRow) -> None:
        """Start to record a voice message in the background, unless the recording has already started."""
        if row.id not in self._tasks:
            task = self._tasks[row.id] = asyncio.create_task(self._run(row), name=f"voice-{row.id}")
            task.add_done_callback(lambda _: self._tasks.pop(row.id))

    async def cancel(self) -> None:
        """Cancel all recordings. The process that later sends the voice messages records them again."""
        await cancel_all(list(self._tasks.values()))

    async def _run(self, row: OutboxRow) -> None:
        try:
            failure, notice = "no longer wanted", ""
            try:
                if await self._record(row):
                    self._told.discard(row.chat_id)
                    failure = ""
            except StateError:
                raise
            except Exception as error:  # includes bugs and full disks, because each new attempt would cost money
                failure, notice = f"{type(error).__name__}: {error}", NOT_RECORDED * (row.chat_id not in self._told)
                self._told.add(row.chat_id)
                is_bug = not isinstance(error, ModelError | OSError)
                log.warning("speech.failed", error=type(error).__name__, detail=str(error), exc_info=is_bug)
            if failure:
                await self.store.write_with_retry(outbox.drop_voice, row, failure, notice, self.clock.now())
            self.delivery.wake(row.chat_id)
        except StateError as error:  # the row stays, so begin another attempt later
            log.warning("speech.delayed", chat_id=row.chat_id, error=str(error))
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.delivery.wake, row.chat_id)

    async def _record(self, row: OutboxRow) -> bool:
        """Record and store a voice message. Return False if it is no longer wanted. Raises `ModelError`."""
        answer = await self.store.read(load_words, row.id)
        words, is_whole = await asyncio.to_thread(spoken_text, answer or "")
        settings = self.runtime.config.voice
        is_off = settings.model is None or await VOICE.load(self.store, row.chat_id, settings.mode) == "off"
        if not words or is_off:
            return False
        agent = await self.store.read(load_author, row.id)
        client = await self._client(agent)
        if (circuit := client.breaker.open) is not None:
            raise ModelError(f"the speech model {circuit.why}")
        within, payer = self.runtime.config.model.read_seconds, Payer(chat_id=row.chat_id)
        call = asyncio.create_task(client.speak(words, payer=payer, within=within), name=f"speech-{row.id}")
        try:
            while not call.done():
                with suppress(StateError):  # a look-up that fails must not end a paid call
                    if await self.store.read(load_words, row.id) is None:
                        return False
                    await self._show(row.chat_id)
                await asyncio.wait({call}, timeout=PULSE_SECONDS)
            data, mime, made = await call
        finally:
            await cancel_all([call])
        file = await asyncio.to_thread(self._stored, data, mime)
        caption = "" if is_whole else PART_ONLY
        return await self.store.write_with_retry(_keep_recording, row, file, caption, made, agent, self.clock.now())

    async def _show(self, chat_id: ChatId) -> None:
        """Show that a voice message is being recorded, unless another request to the chat is running."""
        chat, gates = (await self.store.read(load_chat, chat_id)).key, self.delivery.gates
        if (adapter := self.delivery.adapters.of(chat)) is not None and gates.of(chat_id).is_free:
            async with gates.of(chat_id).passing():
                with suppress(PlatformError), gates.flood_of(chat).obeyed():
                    await adapter.show_typing(chat, is_recording=True)

    def _stored(self, data: bytes, mime: str) -> StoredFile:
        target = self.delivery.files.new_file()
        target.write_bytes(data)
        return self.delivery.files.keep(target, f"voice.{mime[6:].replace('mpeg', 'mp3')}", mime)


@locks(outbox="row.id", chat="row.chat_id")
def _keep_recording(
    db: Connection, row: OutboxRow, file: StoredFile, caption: str, call: ModelCall, agent: str, now: Millis
) -> bool:
    ledger.record(db, None, None, call, now, chat_id=row.chat_id, agent=agent)
    if load_words(db, row.id) is None:
        return False
    number = attachments.insert(db, row.chat_id, file, now, row.message_id)
    sent = attachments.load_file(db, row.chat_id, number)
    outbox.keep_voice(db, row.id, OutboundPart(text=caption, plain=NOT_SENT, attached=sent))
    return True


def speech_client(config: Config, agent: AgentConfig, spending: SpendingControl) -> "SpeechClient":
    from agent.model.audio import SpeechClient, SpeechModel

    name, voice = config.voice.names
    model, price = SpeechModel(endpoint_of(config, name), voice), price_in(config, name)
    return SpeechClient(model, spending.ledger, price=price, caps=spending.caps_in(agent.config, name, agent))


_SENTENCE_END = re.compile(r"[.!?…][\"'”\u2019»)\]]*(?=\s)|[\u3002\uff01\uff1f]|\n")
_LINE_END = re.compile(r"[.!?…:;,\u3002\uff01\uff1f][\"'”\u2019»)\]]*\Z")
_URL = re.compile(r"\b(?:https?://|www\.)\S+")


def spoken_text(markdown: str) -> tuple[str, bool]:
    """Return the text to speak, without code blocks, tables, images and addresses, and True if it is complete."""
    from platforms.markdown import parser  # not at the start, because it takes 30 ms

    lines = (" ".join(_URL.sub("", _words(block)).split()) for block in parser().parse(markdown))
    text = "\n".join(line if _LINE_END.search(line) else f"{line}." for line in lines if re.search(r"\w", line))
    if len(text) <= MAX_SPOKEN:
        return text, True
    cut = text[:MAX_SPOKEN]
    end = max((found.end() for found in _SENTENCE_END.finditer(cut)), default=0) or cut.rfind(" ")
    return cut[: end if end > 0 else MAX_SPOKEN].strip(), False


def _words(block: "Token") -> str:
    spoken = {"text", "code_inline"}
    inline = block.children or ()
    return "".join(token.content if token.type in spoken else " " * token.type.endswith("break") for token in inline)
