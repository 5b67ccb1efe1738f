"""Rendering of replies into the parts that are sent to a platform."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import partial

import msgspec
import structlog

from hermes_state.files.folder import AttachmentFolder
from hermes_state.outbox import WrittenReply
from hermes_state.values import OutboundPart
from platforms.base import OutboundFile, PlatformAdapter

log = structlog.get_logger()

RENDERED_AT_ONCE = 500
"""Longest reply that is rendered on the event loop, in characters: the worst of that length takes ten milliseconds."""
MAX_PARTS = 20
"""Most messages of a reply. The last message of a longer one carries all of it as a file."""
REST_LEFT_OUT = (
    "The rest is too long to be sent as messages, and here I cannot attach a file. It is kept, and I can give it to "
    "you in smaller pieces; whoever runs this bot reads it with `hermes-gateway history`."
)


async def render_reply(adapter: PlatformAdapter, written: WrittenReply, zone: tzinfo) -> Sequence[OutboundPart]:
    """Render a reply into at least one part. The last part holds the footer, with the whole reply or alone.

    `zone` is the time zone of the times that people read.
    """
    footer, edited_at = written.footer, written.edited_at
    if edited_at is not None:
        footer = f"{footer} at {datetime.fromtimestamp(edited_at / 1000, zone):%H:%M}."
    whole = msgspec.structs.replace(written, markdown="\n\n".join(filter(None, (written.markdown, footer))))
    parts = await _rendered(adapter, whole)
    if len(parts) == 1 or not footer:
        return parts
    last = await _rendered(adapter, msgspec.structs.replace(written, markdown=footer))
    if edited_at is not None:
        return last  # the others stay as they are
    return [*await _rendered(adapter, msgspec.structs.replace(written, buttons=()), MAX_PARTS - 1), *last]


async def _rendered(adapter: PlatformAdapter, written: WrittenReply, most: int = MAX_PARTS) -> Sequence[OutboundPart]:
    """Render a reply into parts, at most `most` where files can be sent; its buttons hang under the last one."""
    if (file := written.attached) is not None:
        lost = f"{written.markdown}\n(The file “{file.name}” could not be sent here.)".strip()
        return [OutboundPart(text=written.markdown, plain=lost, attached=file)]
    text = written.markdown
    try:
        # A long answer can take seconds, in which no other chat may wait.
        is_long = len(text) > RENDERED_AT_ONCE
        parts = list(await asyncio.to_thread(adapter.render, text) if is_long else adapter.render(text))
    except Exception:  # a converter's bug would come back with every attempt, and hold up all that follows
        log.exception("delivery.rendered_plain")
        size = adapter.capabilities.max_part_units // 2
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        parts = [OutboundPart(text=one, plain=one) for one in [piece for piece in pieces if piece.strip()] or ["…"]]
    if len(parts) > most and adapter.capabilities.has_files:
        rest_in_file = "The rest is in this file, which has all of the reply."
        parts[most - 1 :] = [OutboundPart(text=rest_in_file, plain=REST_LEFT_OUT, file=text)]
    if written.buttons and adapter.capabilities.has_buttons:
        parts[-1] = msgspec.structs.replace(parts[-1], buttons=written.buttons)
    return parts


def file_of(part: OutboundPart, files: AttachmentFolder) -> OutboundFile | None:
    """Return the file of a part, None if it has none."""
    if (kept := part.attached) is not None:
        return OutboundFile(
            name=kept.name,
            mime=kept.mime,
            size_bytes=kept.size_bytes,
            content=partial(files.read, kept.path),
            attachment_id=kept.attachment_id,
        )
    text = part.file.encode()
    return OutboundFile(name="reply.md", mime="text/markdown", size_bytes=len(text), content=text) if text else None
