"""`/forget` and `/privacy`: delete a chat, a conversation or a person, and show people what is stored about them."""

from functools import partial

import orjson

from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, say
from gateway.operator.forgetting import describe, find_target, full_name, refuse_busy, stays, title_of
from gateway.operator.lookups import LOOKUP_SECONDS
from gateway.times import format_time
from hermes_state import attachments, outbox
from hermes_state.admin import audit, deletion
from hermes_state.admin.deletion import DeletionTarget
from hermes_state.attachments import StoredFile
from hermes_state.chats import load_chat
from hermes_state.errors import CommandError
from hermes_state.outbox import Reply
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.transcripts import load_message
from hermes_state.values import Button, Millis

_ONLY_DIRECT = "Only in a direct chat with me, because everybody in this chat would see the answer."


async def forget(request: CommandRequest) -> CommandResult:
    """Delete a chat, a conversation or a person, after a question."""
    if request.chat.kind.is_shared:
        raise CommandError(_ONLY_DIRECT)
    words = request.argument.split()
    is_sure = words[-1:] == ["yes"]
    words = words[:-1] if is_sure else words
    store = request.context.store
    target = await store.read(find_target, words)
    return await _ask_or_request(request, target, f"/forget {await store.read(full_name, target)}", is_sure=is_sure)


async def privacy(request: CommandRequest) -> CommandResult:
    """Show people what is stored about them, send it to them, or delete it."""
    target, word = DeletionTarget(person=request.row.sender_ref), request.argument.lower()
    if word and request.chat.kind.is_shared:
        raise CommandError(_ONLY_DIRECT)
    match word:
        case "":
            return say(*await _shown(request, target))
        case "export":
            return await _export(request, target)
        case "delete" | "delete yes":
            return await _ask_or_request(request, target, "/privacy delete", is_sure=word != "delete")
        case _:
            raise CommandError("Send `/privacy`, `/privacy export` or `/privacy delete`.")


async def _ask_or_request(
    request: CommandRequest, target: DeletionTarget, command: str, *, is_sure: bool
) -> CommandResult:
    store = request.context.store
    await store.read(refuse_busy, target)
    if not is_sure:
        extent = await store.read_within(LOOKUP_SECONDS, deletion.load_extent, target)
        text = "\n".join([*await store.read(title_of, target), describe(extent), *stays(target, extent)])
        return say(text, Button(label="Delete", command=f"{command} yes"))
    return CommandResult(apply=partial(_request, request, target, command))


@locks("notes", "audit")
def _request(
    request: CommandRequest, target: DeletionTarget, command: str, db: Connection, now: Millis
) -> CommandReply:
    deletion.request(db, target)
    if target.person != request.row.sender_ref:
        audit.record(db, now, request.row.sender_ref, "forget", command)
    text = "The deletion begins as soon as this message is sent, and takes a few seconds."
    return CommandReply(markdown=text, on_commit=request.context.remove_deleted)


async def _shown(request: CommandRequest, target: DeletionTarget) -> tuple[str, *tuple[Button, ...]]:
    extent = await request.context.store.read_within(LOOKUP_SECONDS, deletion.load_extent, target)
    since = f", the oldest from {format_time(extent.oldest_at, request.zone)}" if extent.oldest_at is not None else ""
    own, spoken = counted(extent.messages, "message"), counted(extent.spoken, "message")
    others = f"{counted(extent.files, 'file')} and {counted(extent.schedules, 'schedule')}"
    text = (
        f"I store {own} of your own chats and {spoken} that you wrote in shared chats{since}. I also store {others}. "
        "`/memory` shows my notes. In a direct chat, I can send you your data, or delete it."
    )
    if request.chat.kind.is_shared:
        return (text,)
    buttons = ("Send me my data", "export"), ("Delete my data", "delete")
    return text, *(Button(label=label, command=f"/privacy {word}") for label, word in buttons)


async def _export(request: CommandRequest, target: DeletionTarget) -> CommandResult:
    """Send people their own chats, and their own messages in shared chats, as JSON lines."""
    context, person = request.context, request.row.sender_ref
    most, data = context.adapters.max_file_bytes(request.chat.key), bytearray()

    def add(row: object) -> None:
        data.extend(orjson.dumps(row) + b"\n")
        if len(data) > most:
            raise CommandError(
                f"Your data is larger than {most:,} bytes, the limit of this chat. Ask the operator for it."
            )

    for chat_id in await context.store.read(deletion.load_chats, target):
        async for row in context.forgetter.load_rows((await context.store.read(load_chat, chat_id)).key.name):
            add(row)
    for message_id in await context.store.read(deletion.load_spoken, person):
        message = await context.store.read(load_message, message_id)
        add({"id": message_id, "at": message.created_at, "content": request.redactor(message.text or "")})
    file = context.forgetter.files.store(bytes(data), "my-data.jsonl", "application/jsonl")
    return CommandResult(apply=partial(_send, request, file))


@locks()
def _send(request: CommandRequest, file: StoredFile, db: Connection, now: Millis) -> CommandReply:
    attachment_id = attachments.insert(db, request.chat.id, file, now)
    sent = attachments.load_file(db, request.chat.id, attachment_id)
    key = f"inbox:{request.row.id}:data"
    outbox.enqueue(db, Reply(chat_id=request.chat.id, markdown="Your data", dedupe_key=key, attached=sent), now)
    return CommandReply(markdown="Here is what I store about you, one JSON object on each line, without secrets.")
