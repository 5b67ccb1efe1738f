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
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from markupsafe import Markup

from hermes_state.attachments import load_files
from hermes_state.chats import find_chat
from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.sql import Connection, scalars
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_messages_after
from hermes_state.values import ChatKey, LineageId, MessageId, MessageRole, Millis, SentFile, recall_id
from platforms.console import author
from platforms.local.markdown import to_html

PAGE_ROWS = 200
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class ExportedMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: MessageId
    conversation: int
    """Number of the conversation in the chat, starting at 1."""
    role: MessageRole
    name: str | None
    """Name of the person or the tool."""
    created_at: Millis
    text: str
    calls: Sequence[tuple[str, str]] = ()
    """Names and arguments of tool calls."""
    files: Sequence[tuple[str, str, bytes | None]] = ()
    """Name, type and content of each file. The content is None if the file is not part of the export."""
    chat: str | None = None
    """Name of the chat, for exports of several chats."""

    @property
    def who(self) -> str:
        return author(self.role, self.name, self.name)

    @property
    def at(self) -> str:
        return f"{datetime.fromtimestamp(self.created_at / 1000, UTC):%Y-%m-%d %H:%M} UTC"


class ExportFormat(msgspec.Struct, frozen=True, kw_only=True):
    mime: str
    start: Callable[[str], str]
    """Returns the beginning of a file with the given title."""
    part: Callable[[str], str]
    """Returns the heading of a part of the file, for exports of several conversations."""
    message: Callable[[ExportedMessage], str]
    end: str = ""
    has_files: bool = False
    """True if the format can contain files."""


async def messages(store: Store, files: AttachmentFolder, key: ChatKey) -> AsyncIterator[ExportedMessage]:
    """Yield the messages of a chat without those that were undone. Raises `CommandError` if the chat has none."""
    lineages = await store.read(_load_lineages, key)
    for number, lineage_id in enumerate(lineages, 1):
        after = MessageId(0)
        while rows := await store.read(load_messages_after, lineage_id, after, PAGE_ROWS):
            attached = await store.read(load_files, [row.id for row in rows])
            for row in rows:
                found = [one for one in attached if one.message_id == row.id]
                yield ExportedMessage(
                    id=row.id,
                    conversation=number,
                    role=row.role,
                    name=row.writer or row.tool_name,
                    created_at=row.created_at,
                    text=row.text or "",
                    calls=[(call.name, call.arguments) for call in row.body.calls],
                    files=[await asyncio.to_thread(with_content, files, one, _IMAGES) for one in found],
                )
            after = rows[-1].id


def _load_lineages(db: Connection, key: ChatKey) -> list[LineageId]:
    if (chat := find_chat(db, key)) is None:
        raise CommandError("This chat has no messages to export.")
    query = f"SELECT DISTINCT s.lineage_id FROM sessions s WHERE s.chat_id = ? AND NOT {IS_SUBAGENT} ORDER BY 1"
    return scalars(db, LineageId, query, (chat.id,))


def with_content(
    files: AttachmentFolder, file: SentFile, kinds: Collection[str] | None = None
) -> tuple[str, str, bytes | None]:
    """Return name, type and content of a file. Reads only files of these types, or all files if `kinds` is None."""
    try:
        return file.name, file.mime, files.read(file.path) if kinds is None or file.mime in kinds else None
    except OSError:  # deleted to make room, or the storage does not answer
        return file.name, file.mime, None


# ---- formats

_HEADING = re.compile(r"(^ {0,3}(```|~~~).*?^ {0,3}\2)|^( {0,3})#", re.MULTILINE | re.DOTALL)
"""A code block, which stays as it is, or the sign of a heading, which could pass for one of ours."""


def _markdown(one: ExportedMessage) -> str:
    calls = "".join(f"\n\n    {name} {' '.join(arguments.split())}" for name, arguments in one.calls)
    files = "".join(f"\n\n*File: {name}*" for name, _, _ in one.files)
    text = re.sub(_HEADING, lambda found: found[1] or f"{found[3]}\\#", one.text)
    if one.role is MessageRole.TOOL:
        text = "\n".join(f"    {line}" for line in text.splitlines())
    return f"\n### {one.who}, {one.at}\n\n{text}{calls}{files}\n"


def _json(one: ExportedMessage) -> str:
    value: dict[str, object] = {"chat": one.chat} if one.chat is not None else {}
    value |= {"message": recall_id(one.id), "conversation": one.conversation, "role": one.role}
    value |= {"name": one.name, "at": one.created_at, "text": one.text}
    value["calls"] = [{"name": name, "arguments": arguments} for name, arguments in one.calls]
    value["files"] = [name for name, _, _ in one.files]
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


_IMAGE = Markup('<p><img alt="{name}" src="data:{mime};base64,{data}"></p>')
_DOWNLOAD = Markup('<p>File: <a download="{name}" href="data:application/octet-stream;base64,{data}">{name}</a></p>')


def _html(one: ExportedMessage) -> str:
    is_prose = one.role is MessageRole.ASSISTANT
    shown = Markup(to_html(one.text)) if is_prose else Markup('<div class="plain">{}</div>').format(one.text)
    for name, arguments in one.calls:
        shown += Markup("<pre>{} {}</pre>").format(name, arguments)
    for name, mime, content in one.files:
        if content is None:
            shown += Markup("<p>File: {}</p>").format(name)
            continue
        data = base64.b64encode(content).decode()
        form = _IMAGE if mime in _IMAGES else _DOWNLOAD
        shown += form.format(name=name, mime=mime, data=data)
    head = Markup("<header>{} <small>{}</small></header>").format(one.who, one.at)
    return f'<article class="{one.role.value}">{head}{shown}</article>\n'


FORMATS = {
    "md": ExportFormat(mime="text/markdown", start="# {}\n".format, part="\n## {}\n".format, message=_markdown),
    "jsonl": ExportFormat(mime="application/jsonl", start=lambda _: "", part=lambda _: "", message=_json),
    "html": ExportFormat(
        mime="text/html",
        start=Markup(_HTML_START).format,
        part=Markup("<h2>{}</h2>\n").format,
        message=_html,
        end="</body>\n</html>\n",
        has_files=True,
    ),
}
"""Export formats by file extension."""
