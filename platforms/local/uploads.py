"""Uploads: files that a person sends, stored under the state directory until a turn has read them."""

import asyncio
import contextlib
import mimetypes
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from hermes_state.errors import FileSizeExceeded, MessageRejected
from hermes_state.values import AttachmentKind, IncomingAttachment, InputKind
from platforms.files import CHUNK_BYTES, copy_file, kind_of, save_stream

MAX_FILES = 10
"""Maximum number of files in a message."""

_SWEEP_SECONDS = 3600.0
_FIELD_BYTES = 4 * 1024 * 1024
_NOT_A_MESSAGE = "This request is not a valid message. Reload the page and try again."
_REF = re.compile(r"[0-9a-f]{32}")


class FormError(Exception):
    """The form cannot be accepted. `sentence` tells the person why; `status` is the HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class SubmittedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message that a person sent with the composer or a button."""

    text: str
    client_id: str
    """Id that the page assigns to each message. A second request with the same id is a retry."""
    via: InputKind
    edits: str
    """Reference of the earlier message that this message replaces, or an empty string."""
    files: tuple[IncomingAttachment, ...]
    event_ref: str = ""
    """Event key of a request to the API. By default, the key contains `client_id`."""


class UploadStore:
    """Folder of uploaded files with random names."""

    def __init__(self, folder: Path, *, max_file_bytes: int) -> None:
        self._folder = folder
        self.max_file_bytes = max_file_bytes
        self._swept_at = 0.0

    def open(self) -> None:
        """Create the folder, accessible only to its owner, and remove old files."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        oldest = time.time() - 7 * 24 * 3600  # keep files for a daemon that was stopped over a long weekend
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if _REF.fullmatch(path.name) and path.stat().st_mtime < oldest:
                    path.unlink()

    async def keep(self, part: BodyPartReader) -> IncomingAttachment:
        """Write an uploaded file. Raises `FormError` if it is too large, or `OSError` if it cannot be written."""
        ref, size = await self._save(_chunks(part))
        # Keep only the file name, without its folder and without characters that could confuse a terminal or a page.
        kept = "".join(
            character for character in re.split(r"[/\\]", part.filename or "")[-1] if character.isprintable()
        )
        name = kept.strip()[:120] or "file"
        stated = part.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        mime: str | None = stated
        if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", stated) or stated == "application/octet-stream":
            mime = mimetypes.guess_type(name)[0] or ("application/octet-stream" if stated else None)
        is_document = (mime or "").startswith(("text/", "application/"))
        kind = kind_of(mime, AttachmentKind.DOCUMENT if is_document else AttachmentKind.OTHER)
        return IncomingAttachment(kind=kind, file_ref=ref, name=name, mime=mime, size_bytes=size)

    async def keep_images(self, images: Sequence[tuple[str, bytes]]) -> tuple[IncomingAttachment, ...]:
        """Write images, which are media types and contents. Raises like `keep`, and then keeps none of them."""
        kept = list[IncomingAttachment]()
        try:
            for mime, content in images:
                kept.append(await self._keep_image(content, mime))
        except BaseException:
            self.drop(kept)
            raise
        return tuple(kept)

    async def _keep_image(self, content: bytes, mime: str) -> IncomingAttachment:
        async def whole() -> AsyncIterator[bytes]:
            yield content

        ref, size = await self._save(whole())
        name = f"image{mimetypes.guess_extension(mime) or ''}"
        return IncomingAttachment(kind=AttachmentKind.IMAGE, file_ref=ref, name=name, mime=mime, size_bytes=size)

    async def _save(self, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Write a file under a random name. Return the name and the size."""
        ref = secrets.token_hex(16)
        path = self._folder / ref
        if time.monotonic() - self._swept_at > _SWEEP_SECONDS:
            await asyncio.to_thread(self._sweep)  # also clean up here, because a daemon can run for months
        await asyncio.to_thread(path.touch, 0o600, exist_ok=False)
        try:
            return ref, await save_stream(chunks, path, self.max_file_bytes)
        except FileSizeExceeded as error:
            raise FormError(413, f"A file can be at most {readable_size(self.max_file_bytes)}.") from error

    def drop(self, files: Sequence[IncomingAttachment]) -> None:
        """Remove the files of a message that was not accepted."""
        for file in files:
            (self._folder / file.file_ref).unlink(missing_ok=True)

    def copy(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        if not _REF.fullmatch(attachment.file_ref):
            raise MessageRejected(f"no such file: {attachment.name}")
        return copy_file(self._folder / attachment.file_ref, target, max_bytes)


async def read_form(request: web.Request, uploads: UploadStore, *, max_characters: int) -> SubmittedMessage:
    """Read a form's fields and files. Raises `FormError`, or `OSError` from the disk; the files are then removed."""
    total = uploads.max_file_bytes * 2 + _FIELD_BYTES
    if (request.content_length or 0) > total:
        raise FormError(413, f"All files together can be at most {readable_size(2 * uploads.max_file_bytes)}.")
    fields: dict[str, str] = {}
    files: list[IncomingAttachment] = []
    try:
        if request.content_type == "multipart/form-data":
            try:
                await _read_parts(request, total, uploads, fields, files)
            except (ValueError, RuntimeError, HttpProcessingError) as error:  # for malformed parts
                raise FormError(400, _NOT_A_MESSAGE) from error
        else:
            form = await request.post()
            fields.update({name: value for name, value in form.items() if isinstance(value, str)})
        return _submission(fields, files, max_characters)
    except BaseException:
        uploads.drop(files)
        raise


async def _read_parts(
    request: web.Request, total: int, uploads: UploadStore, fields: dict[str, str], files: list[IncomingAttachment]
) -> None:
    reader = await request.multipart()
    while (part := await reader.next()) is not None:
        expected = {"client_id", "text", "command", "edits", "files"} - fields.keys()
        if not isinstance(part, BodyPartReader) or part.name not in expected:
            raise FormError(400, _NOT_A_MESSAGE)
        if request.content.total_bytes > total:
            raise FormError(413, f"All files together can be at most {readable_size(2 * uploads.max_file_bytes)}.")
        if part.filename is None:
            fields[part.name] = await _read_field(part)
        elif part.filename:
            if len(files) >= MAX_FILES:
                raise FormError(413, f"A message can have at most {MAX_FILES} files.")
            files.append(await uploads.keep(part))


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(CHUNK_BYTES):
        yield chunk


async def _read_field(part: BodyPartReader) -> str:
    data = bytearray()
    async for chunk in _chunks(part):
        data += chunk
        if len(data) > _FIELD_BYTES:
            raise FormError(413, "This text is too long. Send it as a file.")
    return data.decode("utf-8", "replace")


def _submission(fields: dict[str, str], files: list[IncomingAttachment], max_characters: int) -> SubmittedMessage:
    client_id = fields.get("client_id", "")
    if not re.fullmatch(r"[A-Za-z0-9-]{8,64}", client_id):
        raise FormError(400, "This message did not come from this page. Reload the page and send it again.")
    is_press = "command" in fields
    # Browsers send line endings in forms as CRLF.
    text = fields.get("command" if is_press else "text", "").replace("\r\n", "\n").replace("\x00", "")
    if not is_press:
        text = text.rstrip()  # strip only the end, because the text can begin with indented code
    if len(text) > max_characters:
        raise FormError(413, f"This text is longer than {max_characters:,} characters. Send it as a file.")
    if not text.strip() and not files:
        raise FormError(422, "Write a message or choose a file first.")
    edits = fields.get("edits", "")
    via = InputKind.BUTTON if is_press else InputKind.TYPED
    return SubmittedMessage(text=text, client_id=client_id, via=via, edits=edits, files=tuple(files))


def readable_size(size: int) -> str:
    """Return a human-readable size, such as `20 MB`."""
    return f"{size / 1_000_000:.3g} MB" if size >= 1_000_000 else f"{max(1, size // 1000)} KB"
