"""Reads documents through worker processes, which have limits on memory and time. The daemon parses no documents."""

import asyncio
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, Final

import msgspec
import structlog

from agent.images.scaling import ImageScaler
from agent.workers import run_worker
from hermes_state import attachments
from hermes_state.aio import FairSemaphore
from hermes_state.store.writer import Store
from hermes_state.values import AttachmentId, ChatId, Clock, Image

log = structlog.get_logger()

MAX_CHARACTERS: Final = 4_000_000
"""Maximum number of characters of a document that are read and stored."""
MAX_PAGE: Final = 999_999
READ_SECONDS: Final = 20.0
"""Seconds after which a worker stops and returns the pages that it has read."""
_WORKER: Final = Path(__file__).with_name("worker.py")  # never imported, so that the gateway does not load parsers
_HTML_WORKER: Final = Path(__file__).parents[1] / "tools" / "web" / "worker.py"
_HTML: Final = (".html", ".htm", ".xhtml")
_OFFICE: Final = (".docx", ".docm", ".dotx", ".xlsx", ".xlsm", ".xltx", ".pptx", ".pptm", ".ppsx", ".potx")
_MIMES: Final = (
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.",
    "text/html",
    "application/xhtml+xml",
)
_FAULTS: Final = {
    "missing": "the PDF reader is not installed; its operator can run `make documents` in a clone, or "
    "`pip install 'hermes-gateway[documents]'`",
    "encrypted": "it is protected with a password; please send a copy without a password",
    "broken": "it is damaged, or not what its name says; please save it again, or paste the text here",
    "bomb": "it needs too much memory or time; please send only the part that matters",
    "old": "it has the Office format from before 2007; please save it as DOCX, XLSX or PPTX",
    "unknown": "its format is unknown to me; please send it as PDF, DOCX, XLSX, PPTX or text",
    "empty": "it contains no text; please paste the text here",
    "scanned": "it contains only pictures of pages, which the current model cannot see; please send it as text",
    "range": "it has no such pages",
}


class UnreadableDocumentError(Exception):
    """The document cannot be read. The message says why, and what to do."""


class PageImage(msgspec.Struct, frozen=True, kw_only=True):
    """JPEG image of a page without text."""

    number: int
    data: bytes


class DocumentText(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a document, in which a line such as `[page 3 of 20]` begins each page, sheet or slide."""

    text: str = ""
    unit: str = ""
    """`page`, `sheet` or `slide`. Empty: the document has no such parts."""
    total: int = 0
    """Number of pages. 0: unknown."""
    done: int = 0
    """Last page that was read completely."""
    scans: tuple[int, ...] = ()
    """Pages that are pictures."""
    images: tuple[PageImage, ...] = ()
    fault: str = ""


class _Page(msgspec.Struct):
    text: str


def is_document(name: str, mime: str | None) -> bool:
    """Return True if the name or MIME type is that of a document which only a worker can read.

    >>> [is_document(name, None) for name in ("a.PDF", "b.html", "c.xls", "d.txt")]
    [True, True, True, False]
    """
    suffix = PurePath(name.lower()).suffix
    return suffix in (".pdf", ".doc", ".xls", ".ppt", *_HTML, *_OFFICE) or (mime or "").lower().startswith(_MIMES)


def starts_document(start: bytes, name: str) -> bool:
    """Return True if a file with these first bytes is a PDF or Office file."""
    return b"%PDF-" in start[:1_024] or (start.startswith(b"PK") and name.lower().endswith(_OFFICE))


class DocumentReader(msgspec.Struct, frozen=True):
    """Reads documents. At most two workers run at a time."""

    slots: FairSemaphore = msgspec.field(default_factory=lambda: FairSemaphore(2))

    async def read(
        self, file: IO[bytes], name: str, chat_id: ChatId, *, first: int = 1, last: int = MAX_PAGE, max_images: int = 0
    ) -> DocumentText:
        """Read pages `first` to `last` of an open file. At most `max_images` pages without text are rendered.

        Raises `UnreadableDocumentError` if the pages cannot be read.
        """
        start = await asyncio.to_thread(os.pread, file.fileno(), 1_024, 0)
        is_pdf = b"%PDF-" in start
        has_tags = re.search(rb"<(html|body|table)\b", start.replace(b"\0", b""), re.IGNORECASE)
        is_html = not is_pdf and not start.startswith(b"PK") and bool(name.lower().endswith(_HTML) or has_tags)
        if is_pdf and find_spec("pypdfium2") is None:
            raise UnreadableDocumentError(_FAULTS["missing"])
        limits = (first, last, MAX_CHARACTERS, max_images, READ_SECONDS)
        script, arguments = (_HTML_WORKER, ("html", "", "", MAX_CHARACTERS)) if is_html else (_WORKER, limits)
        async with self.slots.taken_by(chat_id):
            try:
                code, output = await run_worker(script, *map(str, arguments), seconds=READ_SECONDS + 10, file=file)
            except TimeoutError:
                code, output = -1, b""
            except OSError as error:
                log.warning("document.worker_failed", error=type(error).__name__)
                raise UnreadableDocumentError("no worker process could be started; please try again later") from error
        found = await asyncio.to_thread(_found, code, output, is_html=is_html, first=first)
        if found.fault:
            log.info("document.reading_failed", fault=found.fault, exit_code=code)
            raise UnreadableDocumentError(_FAULTS[found.fault])
        return found


def _found(code: int, output: bytes, *, is_html: bool, first: int) -> DocumentText:
    if code or not output:  # a negative code means that a signal ended the worker: a parser crashed, or memory ran out
        return DocumentText(fault="broken" if is_html and code == 3 else "bomb")
    if is_html:
        found = DocumentText(text=msgspec.json.decode(output, type=_Page).text)
    else:
        head, _, text = output.partition(b"\n")
        found = msgspec.structs.replace(msgspec.json.decode(head, type=DocumentText), text=text.decode())
    if found.fault or found.images or re.search(r"(?m)^(?!\[(?:page|sheet|slide) \d).*\S", found.text):
        return found
    fault = "range" if found.done < first > 1 else "scanned" if found.scans else "empty"
    return msgspec.structs.replace(found, fault=fault)


async def store_images(
    found: DocumentText, name: str, chat_id: ChatId, scaler: ImageScaler, store: Store, clock: Clock
) -> tuple[Image, ...]:
    """Store the images of a document's pages as if a person had sent them.

    Raises `OSError` if a file cannot be stored.
    """
    images = []
    for image in found.images:
        file = await scaler.store(image.data, f"{name} page {image.number}.jpg")
        attachment_id = await store.write(attachments.insert, chat_id, file, clock.now())
        images.append(Image(attachment_id=AttachmentId(attachment_id), mime="image/jpeg", path=file.path))
    return tuple(images)


def parts_of(text: str, first_size: int, size: int) -> Iterator[tuple[str, str]]:
    """Split a text at ends of lines into a first part and more parts, with the given sizes. Yield each with its pages.

    >>> list(parts_of("[page 1 of 3]\\na\\n[page 2 of 3]\\nb\\n[page 3 of 3]\\nc", 34, 100))
    [('[page 1 of 3]\\na\\n[page 2 of 3]\\nb\\n', 'page 1-2'), ('[page 3 of 3]\\nc', 'page 3')]
    """
    start, page = 0, ""
    while start < len(text):
        end = start + (size if start else first_size)
        if end < len(text):
            end = text.rfind("\n", start + (end - start) // 2, end) + 1 or end
        piece = text[start:end]
        heads = re.findall(r"\n\[(page|sheet|slide) (\d+)", f"\n{piece}")
        numbers = [number for _, number in heads]
        if page and not piece.startswith("["):
            numbers.insert(0, page.partition(" ")[2])
        unit = heads[0][0] if heads else page.partition(" ")[0]
        span = "-".join(dict.fromkeys((numbers[0], numbers[-1]))) if numbers else ""
        yield piece, f"{unit} {span}".strip()
        start, page = end, f"{unit} {numbers[-1]}" if numbers else ""
