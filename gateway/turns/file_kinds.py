"""Kinds of files that people send, detected by name, MIME type and bytes, and how each kind is used.

Unusable files are refused immediately, because a provider that refuses an image would also refuse every later request
in that conversation.
"""

import asyncio
import re
from pathlib import Path, PurePath

from agent.documents.reading import MAX_CHARACTERS, DocumentReader, DocumentText, UnreadableDocumentError
from agent.documents.reading import is_document as names_document
from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError
from hermes_state.values import AttachmentKind, ChatId, IncomingAttachment

NAME_CHARACTERS = 80
"""Maximum length of a file name in a reply, in characters."""

TEXT_MIME_PREFIXES = ("text/", "application/json", "application/xml", "application/x-yaml", "application/yaml")
TEXT_MIMES = ("application/toml", "application/javascript", "application/sql", "application/x-sh", "application/csv")
# fmt: off
TEXT_SUFFIXES = frozenset((
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf",
    ".log", ".xml", ".html", ".htm", ".css", ".svg", ".tex", ".sql", ".env", ".py", ".js", ".ts", ".tsx", ".jsx",
    ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".kt", ".swift", ".rb", ".php", ".pl", ".lua",
    ".sh", ".bash", ".ps1", ".r", ".scala", ".diff", ".patch", ".srt", ".vtt", ".ics", ".bib", ".gradle",
    ".properties",
))
IMAGE_SUFFIXES = frozenset((
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif",
    ".jp2", ".ico", ".jxl",
))
# fmt: on
UNSUPPORTED_SENTENCES = {
    AttachmentKind.VOICE: "I cannot listen to voice messages here. Please send text instead.",
    AttachmentKind.AUDIO: "I cannot listen to audio files here. Please send text instead.",
    AttachmentKind.IMAGE: "The current model cannot see images. Please describe the image in words.",
    AttachmentKind.VIDEO: "I cannot watch videos. Please describe what matters in it.",
}
RECORDINGS = (AttachmentKind.VOICE, AttachmentKind.AUDIO)


class AttachmentError(Exception):
    """A file cannot be used. The error message is the reply to the sender."""


def refuse_unusable(attachment: IncomingAttachment, *, sees_images: bool) -> None:
    """Raise `AttachmentError` if the file is known to be unusable before it is fetched."""
    if not is_text(attachment) and not is_document(attachment) and not (sees_images and may_be_image(attachment)):
        sentence = UNSUPPORTED_SENTENCES.get(attachment.kind)
        raise AttachmentError(sentence or unreadable(attachment, sees_images=sees_images))


def is_text(attachment: IncomingAttachment) -> bool:
    """Return True if the name or MIME type indicates a text document."""
    mime, name = (attachment.mime or "").lower(), attachment.name.lower()
    if attachment.kind is not AttachmentKind.DOCUMENT:
        return mime == "image/svg+xml"
    if mime.startswith(TEXT_MIME_PREFIXES) or mime in TEXT_MIMES:
        return True
    return PurePath(name).suffix in TEXT_SUFFIXES or name in ("dockerfile", "makefile", "readme", "license")


def is_document(attachment: IncomingAttachment) -> bool:
    """Return True if the name or MIME type is that of a PDF, Office or HTML file."""
    return attachment.kind is AttachmentKind.DOCUMENT and names_document(attachment.name, attachment.mime)


def may_be_image(attachment: IncomingAttachment) -> bool:
    """Return True if the file might be an image and should therefore be downloaded."""
    if attachment.kind is AttachmentKind.IMAGE:
        return True
    if attachment.kind not in (AttachmentKind.DOCUMENT, AttachmentKind.OTHER):
        return False
    mime, suffix = attachment.mime, PurePath(attachment.name.lower()).suffix
    says_nothing = mime in (None, "application/octet-stream", "binary/octet-stream")
    is_untold = attachment.kind is AttachmentKind.DOCUMENT and says_nothing
    return is_untold or suffix in IMAGE_SUFFIXES or (mime or "").lower().startswith("image/")


def refuse_large(attachment: IncomingAttachment, max_bytes: int) -> None:
    """Raise `AttachmentError` for a file whose known size exceeds the limit."""
    if attachment.size_bytes is not None and attachment.size_bytes > max_bytes:
        raise AttachmentError(too_large(attachment, max_bytes))


def read_text(path: Path, attachment: IncomingAttachment) -> DocumentText:
    """Return the text of a fetched text file. Raises `AttachmentError` if the file is not text."""
    data, name = path.read_bytes(), quoted_name(attachment)
    no_text = AttachmentError(f"I cannot read the text in “{name}”. Please save it as UTF-8, or paste the text here.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        try:
            text = data.decode("utf-16") if data[:2] in (b"\xff\xfe", b"\xfe\xff") else data.decode("cp1252")
        except UnicodeDecodeError as error:
            raise no_text from error
    if "\0" in text:
        raise no_text
    return DocumentText(text=text[:MAX_CHARACTERS])


async def read_document(
    reader: DocumentReader, path: Path, attachment: IncomingAttachment, chat_id: ChatId, max_images: int
) -> DocumentText:
    """Return the text of a fetched PDF, Office or HTML file. Raises `AttachmentError` if the file cannot be read."""
    with await asyncio.to_thread(path.open, "rb") as file:
        try:
            return await reader.read(file, attachment.name, chat_id, max_images=max_images)
        except UnreadableDocumentError as error:
            raise AttachmentError(f"I cannot read “{quoted_name(attachment)}”: {error}.") from error


async def scaled_image(
    scaler: ImageScaler, fetched: Path, attachment: IncomingAttachment, no_image: AttachmentError | None = None
) -> bytes:
    """Return a scaled copy of an image. Raises `AttachmentError`, or `no_image` if the file is not an image."""
    name = quoted_name(attachment)
    try:
        return await scaler.scaled(fetched, ImageLimits())
    except OversizedImageError as error:
        raise AttachmentError(f"“{name}” has too many pixels for me. Please send a smaller copy.") from error
    except UnreadableImageError as error:
        raise no_image or AttachmentError(
            f"I cannot open “{name}” as an image. Please send it as PNG, JPEG, GIF or WebP."
        ) from error


def quoted_name(attachment: IncomingAttachment) -> str:
    """Return the file's name without quotes, brackets and line breaks, so that it cannot change the note around it."""
    flat = " ".join(attachment.name.replace("“", "'").replace("”", "'").replace("[", "(").replace("]", ")").split())
    return flat if len(flat) <= NAME_CHARACTERS else f"{flat[:NAME_CHARACTERS]}…"


def file_name(attachment: IncomingAttachment) -> str:
    """Return a safe file name that contains no path, is not hidden and is not too long."""
    last = re.split(r"[/\\]", quoted_name(attachment).removesuffix("…"))[-1].strip(" .")
    suffix = PurePath(attachment.name).suffix if "…" in quoted_name(attachment) else PurePath(last).suffix
    stem = "".join(character for character in last.removesuffix(suffix) if character.isprintable())
    suffix = re.sub(r"[^.\w]", "", suffix)[:12]
    return f"{stem.encode()[:150].decode(errors='ignore') or 'file'}{suffix}"


def too_large(attachment: IncomingAttachment, max_bytes: int) -> str:
    """Return the reply to a person whose file exceeds the size limit. The limit is rounded down in the reply."""
    limit = f"{max_bytes // 1_000_000:,} MB" if max_bytes >= 1_000_000 else f"{max_bytes // 1_000:,} KB"
    smaller = "a smaller copy" if attachment.kind is AttachmentKind.IMAGE else "only the part that matters"
    return f"“{quoted_name(attachment)}” is too large (limit: {limit}). Please send {smaller}."


def unreadable(attachment: IncomingAttachment, *, sees_images: bool) -> str:
    """Return the reply to a person who sent a file that cannot be used."""
    files = "a text file or an image" if sees_images else "a text file"
    is_document = attachment.kind is AttachmentKind.DOCUMENT
    way = f"send {files}, or paste the text here" if is_document else f"write it as text, or send {files}"
    return f"I cannot read “{quoted_name(attachment)}”. Please {way}."
