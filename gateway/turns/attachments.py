"""Attachments: files that people send, fetched and prepared for a turn.

Text documents are added to the turn. Images are stored for models with vision. Recordings are transcribed if a
transcription model is configured. Other files are refused with an explanation. File contents are stored under their
hash and never become part of the history.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from agent.documents.reading import MAX_CHARACTERS, DocumentReader, DocumentText, parts_of, store_images
from agent.images.scaling import ImageLimits, ImageScaler, mime_of
from agent.tools.files.workspace import WorkspaceHandle, WorkspaceStore
from gateway.config import LoadedConfig
from gateway.models.selection import Runtime
from gateway.outbound.delivery import Delivery
from gateway.outbound.notices import tell_expired
from gateway.turns import file_kinds
from gateway.turns.file_kinds import RECORDINGS, AttachmentError
from gateway.turns.voice import TranscriptionHandler
from hermes_state import attachments, inbox, outbox
from hermes_state.attachments import StoredFile
from hermes_state.chats import Chat, load_chat
from hermes_state.errors import FileSizeExceeded, MessageRejected, PlatformError, ToolError
from hermes_state.files import open_files
from hermes_state.files.folder import AttachmentFolder
from hermes_state.inbox import InboxRow, InboxState
from hermes_state.journal import PreparedMessage
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.sessions import load_open
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import (
    AttachmentId,
    AttachmentKind,
    ChatId,
    ChatKey,
    Clock,
    Document,
    Image,
    InboxId,
    IncomingAttachment,
    MessageBody,
    Millis,
    recall_id,
)
from platforms.base import PlatformAdapter

log = structlog.get_logger()

MAX_TEXT_CHARS = 50_000
"""Maximum number of characters of a text document that are added to the turn. Tools can read the whole document."""
PART_CHARS = 100_000
"""Maximum number of characters of each stored part after the beginning of a document. The search index covers twice as
many characters of a message.
"""
MAX_PAGE_IMAGES = 4
"""Maximum number of scanned pages that are added to the turn. Tools can open the others."""
FETCH_ATTEMPTS = 3

T = TypeVar("T")


def open_attachments(loaded: LoadedConfig) -> AttachmentFolder:
    """Open the folder for attachments. It is in the state directory unless `attachments.url` names another place.

    Blocks. Raises `ConfigError` or `StoreUnavailable` if the folder cannot be written.
    """
    config = loaded.config.attachments
    if config.url is None:
        return AttachmentFolder(loaded.attachments)
    return open_files(config.url, config.plain_options, loaded.attachments_cache)


class _ReadResult(msgspec.Struct):
    documents: list[Document] = msgspec.field(default_factory=list)
    parts: list[Document] = msgspec.field(default_factory=list)
    """Rest of long documents, which are stored but not shown to the model."""
    images: list[Image] = msgspec.field(default_factory=list)
    ids: list[AttachmentId] = msgspec.field(default_factory=list)
    refusals: list[str] = msgspec.field(default_factory=list)
    hints: list[str] = msgspec.field(default_factory=list)
    """Sentences for the sender about files that the model sees only in part or only in the workspace."""
    notes: list[str] = msgspec.field(default_factory=list)
    """Sentences that tell the model about the files."""
    is_in_workspace: bool = False
    transcripts: list[str] = msgspec.field(default_factory=list)
    """Transcripts of recordings, which are already stored in the message."""
    not_stored: list[str] = msgspec.field(default_factory=list)
    """Names of the message's own files that were not stored."""

    def note(self, sentence: str) -> None:
        """Add a note for the model, unless an earlier fetch of the same file already added it."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def is_useful_in(self, row: InboxRow) -> bool:
        """Return True if the message has usable content: text or a readable file."""
        quote, found = row.payload.quote, (self.transcripts, self.documents, self.images, row.payload.transcripts)
        has_words = row.payload.text.strip() or (quote is not None and quote.text)
        return bool(has_words or any(found) or self.is_in_workspace)


@dataclass(frozen=True, repr=False, slots=True, kw_only=True)
class AttachmentHandler:
    """Fetches and reads the files of waiting messages before their turn starts."""

    store: Store
    runtime: Runtime
    delivery: Delivery
    transcriber: TranscriptionHandler
    scaler: ImageScaler
    clock: Clock
    files: AttachmentFolder
    documents: DocumentReader = field(default_factory=DocumentReader)
    workspaces_of: Callable[[str], WorkspaceStore] | None = None
    """Returns the workspaces of an agent's file tools. None if there are no file tools."""

    def of(self, agent: str) -> "AttachmentHandler":
        """Return the handler for the chats of an agent."""
        return replace(self, runtime=self.runtime.of(agent)) if agent else self

    async def prepare(self, chat_id: ChatId, rows: Sequence[InboxRow]) -> Mapping[InboxId, PreparedMessage] | None:
        """Read the files of `rows` for their turn. Returns None if the caller must read the waiting rows again.

        Then a message was withdrawn, or it had only unusable files and has been answered and settled.
        """
        if not any(row.payload.attachments for row in rows):
            return {}
        chat = await self.store.read(load_chat, chat_id)
        prepared: dict[InboxId, PreparedMessage] = {}
        is_whole = True
        for row in rows:
            if not row.payload.attachments:
                continue
            if (gathered := await self._gather(chat, row)) is None:
                return None
            is_useful = gathered.is_useful_in(row)
            if gathered.parts:  # storing them begins a new conversation if the last one has expired
                await self.store.write(tell_expired, chat_id, self.clock.now())
            if gathered.refusals or gathered.hints:
                await self.store.write(_notify_sender, row, gathered, not is_useful, self.clock.now())
                self.delivery.wake(chat_id)
            is_whole = is_whole and is_useful
            parts = [
                await self.store.write(attachments.store_part, chat_id, row, part, self.clock.now())
                for part in gathered.parts
            ]
            if parts:
                named = zip(parts, gathered.parts, strict=True)
                ids = ", ".join(f"{recall_id(part_id)} ({part.name})" for part_id, part in named)
                gathered.note(f"not shown to you, but found by history_search and opened by history_open: {ids}")
            body = MessageBody(
                documents=tuple(gathered.documents),
                images=tuple(gathered.images),
                notes=tuple(gathered.notes),
                other_files=tuple(gathered.not_stored),
            )
            prepared[row.id] = PreparedMessage(body=body, attachment_ids=tuple(gathered.ids), parts=tuple(parts))
        return prepared if is_whole else None

    async def _gather(self, chat: Chat, row: InboxRow) -> _ReadResult | None:
        """Read the files of a message. Returns None if the message no longer waits."""
        gathered = _ReadResult()
        for attachment in row.payload.attachments:
            if not await self.store.read(inbox.load_rows, [row.id]):
                return None
            named = f"{attachment.kind} “{file_kinds.quoted_name(attachment)}”"
            if attachment.is_quoted and attachment.file_ref:
                gathered.note(f"{named} belongs to the quoted message")
            stored = len(gathered.ids)
            try:
                await self._read(chat, row, attachment, gathered)
            except AttachmentError as error:
                log.info("attachment.refused", kind=attachment.kind, size_bytes=attachment.size_bytes)
                gathered.refusals.append(str(error))
                gathered.note(f"{named} was attached but could not be read")
            if len(gathered.ids) == stored and attachment.name and not attachment.is_quoted:
                gathered.not_stored.append(attachment.name)
        return gathered

    async def _read(self, chat: Chat, row: InboxRow, attachment: IncomingAttachment, gathered: _ReadResult) -> None:
        limit = self.runtime.config.attachments.max_bytes
        if attachment.kind is AttachmentKind.OTHER and not attachment.file_ref:  # a game or story instead of a file
            raise AttachmentError(file_kinds.unreadable(attachment, sees_images=await self._sees_images(chat)))
        if attachment.kind in RECORDINGS and self.transcriber.is_enabled:
            file_kinds.refuse_large(attachment, limit)
            self.transcriber.refuse_long(attachment)
            data = await self._fetch(chat.key, attachment, limit, lambda file: asyncio.to_thread(file.read_bytes))
            gathered.transcripts.append(await self.transcriber.transcribe(row, attachment, data))
            return
        sees_images = await self._sees_images(chat)
        if self._workspace_of(chat) is None or attachment.kind is AttachmentKind.VOICE:
            file_kinds.refuse_unusable(attachment, sees_images=sees_images)
        file_kinds.refuse_large(attachment, limit)
        use = partial(self._use, chat=chat, attachment=attachment, sees_images=sees_images, gathered=gathered)
        file, found = await self._fetch(chat.key, attachment, limit, use)
        if file is None or found is None:
            return
        attachment_id = await self.store.write(attachments.insert, chat.id, file, self.clock.now())
        gathered.ids.append(attachment_id)
        if isinstance(found, str):
            gathered.images.append(Image(attachment_id=attachment_id, mime=found, path=file.path))
            return
        await self._add_document(chat, attachment, found, gathered)

    async def _add_document(
        self, chat: Chat, attachment: IncomingAttachment, found: DocumentText, gathered: _ReadResult
    ) -> None:
        """Add the beginning of a document to the turn, and its rest to the stored parts."""
        name = file_kinds.quoted_name(attachment)
        pieces = await asyncio.to_thread(list, parts_of(found.text, MAX_TEXT_CHARS, PART_CHARS)) or [("", "")]
        is_read = len(found.text) < MAX_CHARACTERS and (not found.unit or found.done >= found.total > 0)
        is_cut = len(pieces) > 1 or not is_read
        gathered.documents.append(Document(name=attachment.name, text=pieces[0][0], was_truncated=is_cut))
        gathered.parts += [
            Document(name=", ".join(filter(None, (name, pages or f"part {number}"))), text=text)
            for number, (text, pages) in enumerate(pieces[1:], start=2)
        ]
        if is_cut:
            whole = "the rest" if is_read else "the next pages" if found.total else "the next part"
            beginning = f"“{name}” is long, so I read the first {len(pieces[0][0]):,} characters now"
            search = f" and can search {whole}" if len(pieces) > 1 else ""
            gathered.hints.append(f"{beginning}{search}.")
        if not is_read:
            part = f"{found.unit} 1-{found.done} of {found.total or 'more'}" if found.done else "the beginning"
            gathered.note(f"only {part} of “{name}” could be stored")
        try:
            images = await store_images(found, attachment.name, chat.id, self.scaler, self.store, self.clock)
        except OSError as error:
            log.warning("attachment.not_stored", error=type(error).__name__)
            images = ()
        gathered.images += images
        gathered.ids += [AttachmentId(image.attachment_id) for image in images]
        if found.scans:
            shown = ", ".join(str(one.number) for one in found.images) if images else ""
            scans = ", ".join(map(str, found.scans[:20])) + (", …" if len(found.scans) > 20 else "")
            gathered.note(
                f"these pages of “{name}” are pictures: {scans}"
                + (f"; shown as images: {shown}; read_file opens others" if shown else "; you cannot see them")
            )

    async def _sees_images(self, chat: Chat) -> bool:
        session = await self.store.read(load_open, chat.id)
        images = self.runtime.model_of(session.chosen_model if session is not None else None).images
        return images is not None and not (await images.learned()).takes_none

    async def _fetch(
        self, chat: ChatKey, attachment: IncomingAttachment, limit: int, use: Callable[[Path], Awaitable[T]]
    ) -> T:
        """Fetch a file, let `use` read it, and then remove it unless `use` has moved it.

        Raises `AttachmentError`, and every error of `use` except `PlatformError` and `OSError`.
        """
        adapter, name = self.delivery.adapters.of(chat), file_kinds.quoted_name(attachment)
        if adapter is None:
            raise AttachmentError(f"I could not download “{name}” right now. Please send it again later.")
        try:
            target = await asyncio.to_thread(self.files.new_file)
        except OSError as error:
            log.warning("attachment.not_stored", error=type(error).__name__)
            raise AttachmentError(f"I cannot store “{name}” right now. Please send it again later.") from error
        try:
            for attempt in range(1, FETCH_ATTEMPTS + 1):
                try:
                    async with asyncio.timeout(120.0):  # long waits delay only this chat
                        await adapter.download(attachment, target, limit)
                    return await use(target)
                except FileSizeExceeded as error:
                    raise AttachmentError(file_kinds.too_large(attachment, error.limit_bytes)) from error
                except MessageRejected as error:
                    sentence = f"“{name}” is no longer available. Please send it again."
                    raise AttachmentError(sentence) from error
                except (PlatformError, OSError) as error:  # a full disk must not crash the lane
                    log.info("attachment.fetch_failed", attempt=attempt, error=type(error).__name__)
                if attempt < FETCH_ATTEMPTS:
                    await _wait_until_ready(adapter)
            raise AttachmentError(f"I could not download “{name}”. Please send it again.")
        finally:
            await asyncio.to_thread(target.unlink, missing_ok=True)

    async def _use(
        self, fetched: Path, *, chat: Chat, attachment: IncomingAttachment, sees_images: bool, gathered: _ReadResult
    ) -> tuple[StoredFile, DocumentText | str] | tuple[None, None]:
        """Copy a fetched file to the workspace and read it. Return `(None, None)` if only tools can use it."""
        is_there = await self._put_into_workspace(fetched, chat, attachment, gathered)
        try:
            file_kinds.refuse_unusable(attachment, sees_images=sees_images)
            return await self._take_in(fetched, chat=chat, attachment=attachment, sees_images=sees_images)
        except AttachmentError as error:
            if not is_there:
                raise
            gathered.hints.append(str(error))
            gathered.notes[-1] = f"not shown to you: {gathered.notes[-1]}"
            return None, None

    def _workspace_of(self, chat: Chat) -> WorkspaceHandle | None:
        """Return the workspace of a chat, or None if no tool of the chat can read it."""
        switch_of = self.runtime.config.tools.switch_of
        if self.workspaces_of is None or all(switch_of(name, chat.key) == "off" for name in ("read_file", "terminal")):
            return None
        return self.workspaces_of(self.runtime.name).of(chat.id)

    async def _put_into_workspace(
        self, fetched: Path, chat: Chat, attachment: IncomingAttachment, gathered: _ReadResult
    ) -> bool:
        """Copy a fetched file to the workspace and tell the model its path. Return False if the copy failed."""
        if (workspace := self._workspace_of(chat)) is None:
            return False
        name = file_kinds.quoted_name(attachment)
        try:
            path = await asyncio.to_thread(workspace.receive, "inbox", file_kinds.file_name(attachment), fetched)
        except ToolError as error:
            gathered.note(f"{attachment.kind} “{name}” could not be put into the workspace: {error}")
            return False
        gathered.note(f"{attachment.kind} “{name}” is in the workspace as {path}")
        gathered.is_in_workspace = True
        return True

    async def _take_in(
        self, fetched: Path, *, chat: Chat, attachment: IncomingAttachment, sees_images: bool
    ) -> tuple[StoredFile, DocumentText | str]:
        """Read a fetched file and store it. Return the text of a document, or the MIME type of an image.

        Unusable files are not stored, because nothing would remove them later.
        """
        is_image = attachment.kind is AttachmentKind.IMAGE
        no_image = None if is_image else AttachmentError(file_kinds.unreadable(attachment, sees_images=sees_images))
        if file_kinds.is_document(attachment):
            max_images = MAX_PAGE_IMAGES if sees_images else 0
            text = await file_kinds.read_document(self.documents, fetched, attachment, chat.id, max_images)
            return await self._keep(fetched, attachment), text
        if file_kinds.is_text(attachment):
            try:
                document = await asyncio.to_thread(file_kinds.read_text, fetched, attachment)
                return await self._keep(fetched, attachment), document
            except AttachmentError as error:
                if not sees_images:
                    raise
                no_image = error
        copy = await file_kinds.scaled_image(self.scaler, fetched, attachment, no_image)
        file = await self._keep(fetched, attachment)
        await self.scaler.keep(file.path, ImageLimits(), copy)
        return msgspec.structs.replace(file, size_bytes=file.size_bytes + len(copy)), mime_of(copy)

    async def _keep(self, fetched: Path, attachment: IncomingAttachment) -> StoredFile:
        return await asyncio.to_thread(self.files.keep, fetched, attachment.name, attachment.mime)


@locks(inbox="row.id", chat="row.chat_id")
def _notify_sender(db: Connection, row: InboxRow, gathered: _ReadResult, is_all: bool, now: Millis) -> None:
    """Tell the sender which files were refused or partly used. If nothing else is left (`is_all`), settle the row."""
    if is_all:
        inbox.settle(db, row.id, InboxState.DONE, now)
    reply = Reply(
        chat_id=row.chat_id,
        kind=OutboxKind.ERROR if gathered.refusals else OutboxKind.STATUS,
        markdown=" ".join(dict.fromkeys(gathered.refusals + gathered.hints)),
        dedupe_key=f"inbox:{row.id}:attachments",
        reply_to=row.message_ref,
    )
    outbox.enqueue(db, reply, now)


async def _wait_until_ready(adapter: PlatformAdapter) -> None:
    """Wait up to a minute for the platform's connection, which can take a while after a start."""
    for _ in range(300):
        if adapter.health().is_ready:
            return
        await asyncio.sleep(0.2)  # no event reports that the adapter is ready
