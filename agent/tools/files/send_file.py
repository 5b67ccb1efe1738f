"""Tool `send_file`: copies a file of the workspace and adds it to the outbox, which delivers it once."""

import asyncio
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from agent.tools.arguments import Arguments
from agent.tools.files.file_tools import WorkspacePath
from agent.tools.files.workspace import PathParts, WorkspaceHandle, WorkspaceStore, parse_path, shown
from agent.tools.registry import Tool, ToolContext, tool
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
"""Longest caption, in characters: Telegram accepts 1,024 units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDelivery:
    files: AttachmentFolder
    max_bytes: Callable[[ChatKey], int]
    """Returns the largest file that a chat's platform accepts; 0: none."""
    deliver: Callable[[ChatId], None]
    """Called after a row was added to the outbox of a chat."""
    clock: Clock


class _Sent(Arguments, frozen=True):
    path: WorkspacePath
    caption: Annotated[str, Meta(description="Plain text below it.")] = ""


def send_file_tool(workspaces: WorkspaceStore, delivery: FileDelivery) -> Tool:
    @tool(
        description="Give a file or picture of the workspace to the people in the chat.",
        effect=ToolEffect.WRITES,  # so that a restart does not send it again
        needs_approval=False,  # the chat is given what is its own
    )
    async def send_file(asked: _Sent, context: ToolContext) -> str:
        parts, caption, limit = parse_path(asked.path), asked.caption, delivery.max_bytes(context.chat)
        if not limit:
            raise ToolError("files cannot be given to this chat")
        if len(caption) > _MAX_CAPTION:
            raise ToolError(f"the caption has {len(caption):,} characters, at most {_MAX_CAPTION:,} are possible")
        file = await asyncio.to_thread(_keep, workspaces.of(context.chat_id), parts, delivery.files, limit)
        try:
            is_new = await context.store.write(_owe, context, file, caption, delivery.clock.now())
        except TurnMoved as error:
            raise ToolError("the turn was stopped: nothing was sent") from error
        delivery.deliver(context.chat_id)
        name = shown(file.name)
        if not is_new:
            return f"{name} with the same content was given to the chat in this turn already; it is not sent again."
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
            state = f"is larger than the {most:,} bytes that this chat takes" if size else "is empty"
            raise ToolError(f"{shown('/'.join(parts))} {state}")
        return files.keep(target, parts[-1], mimetypes.guess_type(parts[-1])[0])
    finally:
        with suppress(OSError):  # it was moved, or is removed as a leftover
            target.unlink(missing_ok=True)


@locks(chat="context.chat_id")
def _owe(db: Connection, context: ToolContext, file: StoredFile, caption: str, now: Millis) -> bool:
    """Add a file to the outbox. Return False if the turn has sent the same already. Raises `TurnMoved`."""
    require_running(db, context.claim)
    key = f"turn:{context.turn_id}:file:{file.sha256}:{file.name}"
    if outbox.find_recipient(db, key) is not None:
        return False
    call = "SELECT max(id) FROM messages WHERE turn_id = ? AND role = 'assistant'"
    message_id = scalar_or_none(db, MessageId, call, (context.turn_id,))
    attachment_id = attachments.insert(db, context.chat_id, file, now, message_id)
    sent = attachments.load_file(db, context.chat_id, attachment_id)
    # Not of the turn's own replies: those take the place of its preview, which a file cannot.
    reply = Reply(chat_id=context.chat_id, kind=OutboxKind.FINAL, markdown=caption, dedupe_key=key, attached=sent)
    outbox.enqueue(db, reply, now)
    return True
