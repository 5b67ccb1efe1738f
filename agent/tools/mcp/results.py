"""Results of calls of MCP servers as text, and as images that are kept like those that people send."""

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from agent.images.scaling import ImageLimits, ImageScaler
from agent.tools.registry import ToolContext, ToolReply
from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import printable, well_formed
from hermes_state.values import ChatId, Clock, Image, Millis

MAX_TEXT: Final = 900_000
_MIMES = [f"image/{kind}" for kind in ("png", "jpeg", "jpg", "gif", "webp", "bmp", "tiff", "avif")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """Result of a call: the blocks of its content as JSON."""

    content: Sequence[dict[str, Any]]
    structured: object
    is_error: bool

    @property
    def text(self) -> str:
        words = [_words(block) for block in self.content]
        if self.structured is not None and not any(block.get("type") == "text" for block in self.content):
            words.append(json.dumps(self.structured, ensure_ascii=False))
        text = "\n".join(word for word in words if word)
        if len(text) > MAX_TEXT:  # before the rest takes the event loop's time
            text = f"{text[:MAX_TEXT]}\n[cut here: the result had {len(text):,} characters]"
        return printable(well_formed(text))

    @property
    def images(self) -> list[tuple[str, bytes]]:
        """Media type and bytes of at most four images that can be shown."""
        found: list[tuple[str, bytes]] = []
        for block in self.content:
            mime = str(block.get("mimeType")).lower()
            if block.get("type") == "image" and mime in _MIMES and len(found) < 4:
                data = "".join(block["data"].rpartition(",")[2].split())  # some write an address, or lines
                with suppress(binascii.Error):
                    found.append((mime, base64.b64decode(data, validate=True)))
        return found


def _words(block: dict[str, Any]) -> str:
    """Return a block in words. A block without text is only named."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"uri": uri, "text": str(text)}}:
            return f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": uri, **rest}}:
            return f"[resource {uri}, {rest.get('mimeType', 'no text')}: not shown]"
        case {"type": "resource_link", "uri": uri, **rest}:
            return f"[link to the resource {uri}: {rest.get('title') or rest.get('name', '')}]"
        case {"type": kind, **rest}:
            return f"[{kind}, {rest.get('mimeType', 'of no known kind')}]"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStore:
    """Keeps the images of results with those that people send."""

    files: AttachmentFolder
    clock: Clock
    scaler: ImageScaler | None = None

    async def output(self, result: RemoteResult, context: ToolContext) -> str | ToolReply:
        text = result.text or "(the result is empty)"
        if not (count := sum(block.get("type") == "image" for block in result.content)):
            return text
        files = await asyncio.to_thread(lambda: [self._keep(data, mime) for mime, data in result.images])
        images = await context.store.write(_insert, context.chat_id, files, self.clock.now())
        scaler = self.scaler or ImageScaler(self.files)
        shown = [image for image in images if context.sees_images and await scaler.load(image.path, ImageLimits())]
        note = f"\n[{count - len(shown)} of the images cannot be shown to you]" if len(shown) < count else ""
        return ToolReply(text=text + note, images=tuple(shown))

    def _keep(self, data: bytes, mime: str) -> StoredFile:
        target = self.files.new_file()
        try:
            target.write_bytes(data)
            return self.files.keep(target, f"result.{mime.partition('/')[2]}", mime)
        finally:
            with suppress(OSError):  # it was moved
                target.unlink(missing_ok=True)


@locks(chat="chat_id")
def _insert(db: Connection, chat_id: ChatId, files: Sequence[StoredFile], now: Millis) -> tuple[Image, ...]:
    return tuple(
        Image(attachment_id=attachments.insert(db, chat_id, file, now), mime=file.mime or "", path=file.path)
        for file in files
    )
