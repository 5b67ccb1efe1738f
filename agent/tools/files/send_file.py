"""Tool `send_file`: copies a file from the workspace and adds the copy to the outbox, which delivers it once."""

import asyncio
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.tools.files.file_tools import WorkspacePath
from agent.tools.files.workspace import PathParts, WorkspaceHandle, WorkspaceStore, parse_path, shown
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from hermes_state import attachments, outbox
from hermes_state.attachments import StoredFile
from hermes_state.errors import ToolError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.turns import TurnMoved, require_running
from hermes_state.values import ChatId, ChatKey, Clock, MessageId, Millis, ToolEffect

_MAX_CAPTION = 1_000
"""Longest caption, in characters. Telegram's limit is 1,024 UTF-16 units."""


class FileDelivery(msgspec.Struct, frozen=True, kw_only=True):
    files: AttachmentFolder
    max_bytes: Callable[[ChatKey], int]
    """Returns the size limit for files on a chat's platform; 0 if the platform cannot send files."""
    deliver: Callable[[ChatId], None]
    """Called after a row has been added to the outbox of a chat."""
    clock: Clock


class _SendArguments(Arguments, frozen=True):
    path: WorkspacePath
    caption: Annotated[str, Meta(description="Plain text.")] = ""


def send_file_tool(workspaces: WorkspaceStore, delivery: FileDelivery) -> Tool:
    @tool(
        description="Send a file or picture from the workspace to the chat.",
        effect=ToolEffect.WRITES,  # prevents a restart from sending the file again
        needs_approval=False,  # no approval, because everyone in the chat can already use the file
        step=StepWords(doing="Sending", did="sent files", about=lambda asked: asked.path),
    )
    async def send_file(asked: _SendArguments, context: ToolContext) -> str:
        parts, caption, limit = parse_path(asked.path), asked.caption, delivery.max_bytes(context.chat)
        if not limit:
            raise ToolError("files cannot be sent to this chat")
        if len(caption) > _MAX_CAPTION:
            raise ToolError(f"the caption has {len(caption):,} characters; the limit is {_MAX_CAPTION:,}")
        file = await asyncio.to_thread(_keep, workspaces.of(context.chat_id), parts, delivery.files, limit)
        try:
            is_new = await context.store.write(_owe, context, file, caption, delivery.clock.now())
        except TurnMoved as error:
            raise ToolError("the turn was stopped: nothing was sent") from error
        delivery.deliver(context.chat_id)
        name = shown(file.name)
        if not is_new:
            return f"{name} was already sent with this content in this turn, so it is not sent again."
        return f"{name} ({file.size_bytes:,} bytes) is on its way to the chat."

    return send_file


def _keep(workspace: WorkspaceHandle, parts: PathParts, files: AttachmentFolder, limit: int) -> StoredFile:
    most = min(limit, workspace.settings.max_file_bytes)
    target = files.new_file()
    try:
        with workspace.open_file(parts) as file, target.open("wb") as copy:
            while copy.tell() <= most and (piece := file.read(1 << 20)):
                copy.write(piece)
            size = copy.tell()
        if not 0 < size <= most:
            state = f"is larger than {most:,} bytes, the limit of this chat" if size else "is empty"
            raise ToolError(f"{shown('/'.join(parts))} {state}")
        return files.keep(target, parts[-1], mimetypes.guess_type(parts[-1])[0])
    finally:
        with suppress(OSError):  # an unused copy is removed later
            target.unlink(missing_ok=True)


@locks(chat="context.chat_id")
def _owe(db: Connection, context: ToolContext, file: StoredFile, caption: str, now: Millis) -> bool:
    """Add a file to the outbox. Return False if the turn has already sent the same file.

    Raises `TurnMoved` if the turn is no longer running.
    """
    require_running(db, context.claim)
    key = f"turn:{context.turn_id}:file:{file.sha256}:{file.name}"
    if outbox.find_recipient(db, key) is not None:
        return False
    call = "SELECT max(id) FROM messages WHERE turn_id = ? AND role = 'assistant' AND body IS NOT NULL"
    message_id = scalar_or_none(db, MessageId, call, (context.turn_id,))
    attachment_id = attachments.insert(db, context.chat_id, file, now, message_id)
    sent = attachments.load_file(db, context.chat_id, attachment_id)
    # Not linked to the turn, because a turn's replies replace its preview, and a file cannot.
    reply = Reply(chat_id=context.chat_id, kind=OutboxKind.FINAL, markdown=caption, dedupe_key=key, attached=sent)
    outbox.enqueue(db, reply, now)
    return True
