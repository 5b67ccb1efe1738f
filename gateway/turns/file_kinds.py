"""Kinds of files that people send, told by name, MIME type and bytes, and the use of each.

Unusable files are refused at once: an image that a provider refuses later would be refused with every later message.
"""

import re
from pathlib import Path, PurePath

from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError
from hermes_state.values import AttachmentKind, Document, IncomingAttachment

NAME_CHARACTERS = 80
"""Longest file name in a sentence, in characters."""

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
    AttachmentKind.VOICE: "I cannot listen to voice messages here; please write to me instead.",
    AttachmentKind.AUDIO: "I cannot listen to audio files here; please write to me instead.",
    AttachmentKind.IMAGE: "The model that answers here cannot see images; please describe it in words.",
    AttachmentKind.VIDEO: "I cannot watch videos; please describe in words what matters in it.",
}
RECORDINGS = (AttachmentKind.VOICE, AttachmentKind.AUDIO)


class AttachmentError(Exception):
    """A file cannot be used; the message is the sentence for its sender."""


def refuse_unusable(attachment: IncomingAttachment, *, sees_images: bool) -> None:
    """Raise `AttachmentError` for a file that is known to be unusable before it is fetched."""
    if not is_text(attachment) and not (sees_images and may_be_image(attachment)):
        sentence = UNSUPPORTED_SENTENCES.get(attachment.kind)
        raise AttachmentError(sentence or unreadable(attachment, sees_images=sees_images))


def is_text(attachment: IncomingAttachment) -> bool:
    """Return True if name or MIME type promise a text document."""
    mime, name = (attachment.mime or "").lower(), attachment.name.lower()
    if attachment.kind is not AttachmentKind.DOCUMENT:
        return mime == "image/svg+xml"
    if mime.startswith(TEXT_MIME_PREFIXES) or mime in TEXT_MIMES:
        return True
    return PurePath(name).suffix in TEXT_SUFFIXES or name in ("dockerfile", "makefile", "readme", "license")


def may_be_image(attachment: IncomingAttachment) -> bool:
    """Return True if the file may be an image, so that it is worth a download."""
    if attachment.kind is AttachmentKind.IMAGE:
        return True
    if attachment.kind not in (AttachmentKind.DOCUMENT, AttachmentKind.OTHER):
        return False
    mime, suffix = attachment.mime, PurePath(attachment.name.lower()).suffix
    says_nothing = mime in (None, "application/octet-stream", "binary/octet-stream")
    is_untold = attachment.kind is AttachmentKind.DOCUMENT and says_nothing
    return is_untold or suffix in IMAGE_SUFFIXES or (mime or "").lower().startswith("image/")


def refuse_large(attachment: IncomingAttachment, max_bytes: int) -> None:
    """Raise `AttachmentError` for a file that is known to be larger than the limit."""
    if attachment.size_bytes is not None and attachment.size_bytes > max_bytes:
        raise AttachmentError(too_large(attachment, max_bytes))


def read_text(path: Path, attachment: IncomingAttachment, max_characters: int) -> Document:
    """Return the beginning of a fetched text file. Raises `AttachmentError` if it is none."""
    data, name = path.read_bytes(), quoted_name(attachment)
    no_text = AttachmentError(f"“{name}” is not text that I can read; please save it as UTF-8, or paste what matters.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        try:
            text = data.decode("utf-16") if data[:2] in (b"\xff\xfe", b"\xfe\xff") else data.decode("cp1252")
        except UnicodeDecodeError as error:
            raise no_text from error
    if "\0" in text:
        raise no_text
    return Document(name=attachment.name, text=text[:max_characters], was_truncated=len(text) > max_characters)


async def scaled_image(
    scaler: ImageScaler, fetched: Path, attachment: IncomingAttachment, no_image: AttachmentError | None = None
) -> bytes:
    """Return the copy of a fetched image that models are shown.

    Raises `AttachmentError`: `no_image`, if given, for a file that is no image.
    """
    name = quoted_name(attachment)
    try:
        return await scaler.scaled(fetched, ImageLimits())
    except OversizedImageError as error:
        raise AttachmentError(f"“{name}” has more pixels than I can look at; please send a smaller copy.") from error
    except UnreadableImageError as error:
        raise no_image or AttachmentError(
            f"“{name}” is not an image that I can look at; please send it as PNG, JPEG, GIF or WebP."
        ) from error


def quoted_name(attachment: IncomingAttachment) -> str:
    """Return the name of the file for a sentence, which it cannot break: the model trusts our notes."""
    flat = " ".join(attachment.name.replace("“", "'").replace("”", "'").replace("[", "(").replace("]", ")").split())
    return flat if len(flat) <= NAME_CHARACTERS else f"{flat[:NAME_CHARACTERS]}…"


def file_name(attachment: IncomingAttachment) -> str:
    """Return a name for the file in a folder and in sentences: no path, not hidden, not too long."""
    last = re.split(r"[/\\]", quoted_name(attachment).removesuffix("…"))[-1].strip(" .")
    suffix = PurePath(attachment.name).suffix if "…" in quoted_name(attachment) else PurePath(last).suffix
    stem = "".join(character for character in last.removesuffix(suffix) if character.isprintable())
    suffix = re.sub(r"[^.\w]", "", suffix)[:12]
    return f"{stem.encode()[:150].decode(errors='ignore') or 'file'}{suffix}"


def too_large(attachment: IncomingAttachment, max_bytes: int) -> str:
    """Return the sentence about a file beyond the limit, which is rounded down."""
    limit = f"{max_bytes // 1_000_000:,} MB" if max_bytes >= 1_000_000 else f"{max_bytes // 1_000:,} KB"
    smaller = "a smaller copy" if attachment.kind is AttachmentKind.IMAGE else "the part that matters"
    return f"“{quoted_name(attachment)}” is larger than the {limit} that I take; please send {smaller}."


def unreadable(attachment: IncomingAttachment, *, sees_images: bool) -> str:
    """Return the sentence about a file of an unusable kind."""
    files = "a text file or an image" if sees_images else "a text file"
    is_document = attachment.kind is AttachmentKind.DOCUMENT
    way = f"send me {files}, or paste what matters" if is_document else f"say it in words, or send me {files}"
    return f"I cannot read “{quoted_name(attachment)}”; please {way}."
