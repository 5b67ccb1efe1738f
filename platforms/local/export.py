"""Export of a chat: its original messages as Markdown, as JSON lines, or as one HTML page with images.

    form = FORMATS["html"]
    yield form.start(title)
    async for message in messages(store, files, key):
        yield form.message(message)
    yield form.end

Messages come one after another, conversation by conversation, so a chat of any length needs little memory.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from markupsafe import Markup

from hermes_state.chats import find_chat
from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.sql import Connection, scalars
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_messages_after
from hermes_state.values import ChatKey, LineageId, Message, MessageId, MessageRole, recall_id
from platforms.console import author
from platforms.local.markdown import to_html

PAGE_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMessage:
    row: Message
    conversation: int
    """Number of the conversation in the chat, starting at 1."""
    files: tuple[tuple[str, str, bytes | None], ...]
    """Name, type and content of each file. Only images have content."""

    @property
    def who(self) -> str:
        return author(self.row.role, self.row.sender_name, self.row.tool_name)

    @property
    def at(self) -> str:
        return f"{datetime.fromtimestamp(self.row.created_at / 1000, UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    mime: str
    start: Callable[[str], str]
    """Returns the beginning of a file with the given title."""
    message: Callable[[ExportedMessage], str]
    end: str = ""


async def messages(store: Store, files: AttachmentFolder, key: ChatKey) -> AsyncIterator[ExportedMessage]:
    """Yield the messages of a chat without those that were undone. Raises `CommandError` if the chat has none."""
    lineages = await store.read(_load_lineages, key)
    for number, lineage_id in enumerate(lineages, 1):
        after = MessageId(0)
        while rows := await store.read(load_messages_after, lineage_id, after, PAGE_ROWS):
            attached = await store.read(_load_files, rows[0].id, rows[-1].id)
            for row in rows:
                found = [one for owner, *one in attached if owner == row.id]
                content = tuple([await asyncio.to_thread(_with_content, files, *one) for one in found])
                yield ExportedMessage(row=row, conversation=number, files=content)
            after = rows[-1].id


def _load_lineages(db: Connection, key: ChatKey) -> list[LineageId]:
    if (chat := find_chat(db, key)) is None:
        raise CommandError("This chat has no messages to export.")
    query = f"SELECT DISTINCT s.lineage_id FROM sessions s WHERE s.chat_id = ? AND NOT {IS_SUBAGENT} ORDER BY 1"
    return scalars(db, LineageId, query, (chat.id,))


def _load_files(db: Connection, first: MessageId, last: MessageId) -> list[tuple[int, str, str, str]]:
    query = "SELECT message_id, name, coalesce(mime, ''), path FROM attachments WHERE message_id BETWEEN ? AND ?"
    return db.execute(f"{query} ORDER BY id", (first, last)).fetchall()


def _with_content(files: AttachmentFolder, name: str, mime: str, path: str) -> tuple[str, str, bytes | None]:
    try:
        return name, mime, files.read(path) if mime in {"image/png", "image/jpeg", "image/gif", "image/webp"} else None
    except OSError:  # deleted to make room, or the storage does not answer
        return name, mime, None


# ---- formats


def _markdown(one: ExportedMessage) -> str:
    calls = "".join(f"\n\n    {call.name} {' '.join(call.arguments.split())}" for call in one.row.body.calls)
    files = "".join(f"\n\n*File: {name}*" for name, _, _ in one.files)
    text = one.row.text or ""
    if one.row.role is MessageRole.TOOL:
        text = "\n".join(f"    {line}" for line in text.splitlines())
    return f"\n## {one.who}, {one.at}\n\n{text}{calls}{files}\n"


def _json(one: ExportedMessage) -> str:
    row = one.row
    value = {"message": recall_id(row.id), "conversation": one.conversation, "role": row.role}
    value |= {"name": row.sender_name or row.tool_name, "at": row.created_at, "text": row.text or ""}
    value |= {"calls": row.body.calls, "files": [name for name, _, _ in one.files]}
    return msgspec.json.encode(value).decode() + "\n"


_HTML_START = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{0}}</title>
<style>{(Path(__file__).parent / "export.css").read_text().replace("{", "{{").replace("}", "}}")}</style>
</head>
<body>
<h1>{{0}}</h1>
"""


def _html(one: ExportedMessage) -> str:
    text = one.row.text or ""
    is_prose = one.row.role is MessageRole.ASSISTANT
    shown = Markup(to_html(text)) if is_prose else Markup('<div class="plain">{}</div>').format(text)
    for call in one.row.body.calls:
        shown += Markup("<pre>{} {}</pre>").format(call.name, call.arguments)
    for name, mime, content in one.files:
        if content is None:
            shown += Markup("<p>File: {}</p>").format(name)
            continue
        data = base64.b64encode(content).decode()
        shown += Markup('<p><img alt="{}" src="data:{};base64,{}"></p>').format(name, mime, data)
    head = Markup("<header>{} <small>{}</small></header>").format(one.who, one.at)
    return f'<article class="{one.row.role.value}">{head}{shown}</article>\n'


FORMATS = {
    "md": ExportFormat(mime="text/markdown", start=lambda title: f"# {title}\n", message=_markdown),
    "jsonl": ExportFormat(mime="application/jsonl", start=lambda title: "", message=_json),
    "html": ExportFormat(mime="text/html", start=Markup(_HTML_START).format, message=_html, end="</body>\n</html>\n"),
}
"""Export formats by file extension."""
