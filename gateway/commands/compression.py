"""`/compress`: compress a conversation, with an optional focus or cut-off point, or preview or undo a compression."""

import re
from functools import partial

from agent.context.commit import UndoPreview, log_outcome, settle_undo
from agent.context.controller import ContextController
from agent.context.job import (
    Compressed,
    CompressionOutcome,
    CompressionPreview,
    CompressionResult,
    NotNeeded,
    summarize_manual_compression,
)
from agent.context.model_handle import ModelHandle
from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, say
from gateway.config.context_settings import NoticeConfig
from gateway.outbound.notices import accuracy_sentence, undo_buttons
from hermes_state import outbox
from hermes_state.errors import CommandError, LineageMoved
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.values import ConversationRef, Millis

STARTED = "Compressing this conversation…"
STOPPED = "Compression cancelled; nothing was changed."


async def compress(request: CommandRequest) -> CommandResult:
    """Compress the conversation. The argument is `preview`, `undo`, `here N` or the focus of the summary."""
    argument = request.argument
    word, here = argument.lower(), re.fullmatch(r"here\s+(\d{1,6})", argument, re.IGNORECASE)
    session = await request.load_open_session()
    if session is None:
        return say("This chat has no conversation yet.")
    conversation = request.conversation(session)
    runtime = request.context.runtime
    context, model = runtime.agent.context, runtime.model_of(session.chosen_model)
    if word == "preview":
        return say(_preview_text(await context.preview(conversation, model)))
    if (undo := re.fullmatch(r"undo(?: #(\w{4,64}))?", word)) is not None:
        if undo[1] not in (None, session.short_key.lower()):
            raise CommandError("The conversation has changed since, so this compression can no longer be undone here.")
        return await _plan_undo(context, conversation, model)
    keep_turns = int(here[1]) if here is not None else None
    if keep_turns == 0:
        raise CommandError("In `/compress here N`, N is the number of your newest messages to keep, at least 1.")
    config, focus = runtime.config, None
    if here is None:  # a single line without secrets, because the focus is sent, stored and shown
        topic = re.sub(r"\A\s*focus\s*:\s*", "", argument, flags=re.IGNORECASE)
        focus = request.redactor(" ".join(topic.split()))[:500] or None
    work = context.prepare_by_hand(
        conversation, model, focus=focus, keep_turns=keep_turns, on_begin=partial(request.acknowledge, STARTED)
    )
    result = await request.context.tasks.run(request.row.id, work)
    if result is None:
        return say(STOPPED)
    return CommandResult(apply=partial(_settle, context, config.notices, result))


def _settle(
    context: ContextController, notices: NoticeConfig, result: CompressionResult, db: Connection, now: Millis
) -> CommandReply:
    outcome = context.settle(db, result, now)
    accuracy = accuracy_sentence(outcome.compressions, notices) if isinstance(outcome, Compressed) else None
    text = _outcome_text(outcome) + (f"\n{accuracy}" if accuracy is not None else "")
    buttons = undo_buttons(outcome) if isinstance(outcome, Compressed) else ()
    return CommandReply(
        markdown=text,
        buttons=buttons,
        offer="undo" if buttons else None,
        on_commit=partial(log_outcome, result, outcome),
    )


def _outcome_text(outcome: CompressionOutcome) -> str:
    feedback = summarize_manual_compression(outcome)
    if isinstance(outcome, NotNeeded):
        return f"{feedback.note}\n{feedback.token_line}"
    details = _details(outcome) if isinstance(outcome, Compressed) else []
    return "\n".join(line for line in (feedback.headline, feedback.token_line, *details, feedback.note) if line)


def _details(outcome: Compressed) -> list[str]:
    prepared, topic = outcome.prepared, outcome.job.focus
    written = f"Summary written by {prepared.model}"
    if prepared.failure is not None:
        reason = prepared.failure.rstrip(".")
        written = f"No model could write a summary ({reason}), so I made a list of the key points without a model"
    focus = f", with the focus “{topic}”" if topic else ""
    undo = " `/compress undo` reverses this." if undo_buttons(outcome) else ""
    replaced = f"{counted(prepared.summarised, 'message')} for the model"
    if prepared.stands_for > prepared.summarised:
        replaced += f" ({prepared.stands_for:,} including earlier summaries)"
    return [
        f"{written}{focus}. It replaces {replaced}. Nothing is lost: /history still shows the original messages.",
        f"The conversation continues with the id `{outcome.child.short_key}`.{undo}",
    ]


async def _plan_undo(context: ContextController, conversation: ConversationRef, model: ModelHandle) -> CommandResult:
    undoing = await context.plan_undo(conversation, model)
    if undoing is None:
        raise CommandError("There is no compression to undo in this conversation.")
    if not undoing.fits:
        raise CommandError(
            f"The restored prompt would use about {undoing.tokens:,} of {undoing.limits.input_window:,} tokens, which "
            "leaves no room to continue. Nothing was changed. I can still look everything up, and /history shows the "
            "originals."
        )
    return CommandResult(apply=partial(_undo, undoing))


def _undo(undoing: UndoPreview, db: Connection, now: Millis) -> str:
    try:
        child = settle_undo(db, undoing, now)
    except LineageMoved:
        raise CommandError("The conversation has changed, so nothing was undone. Please try again.") from None
    outbox.end_offer(db, undoing.plan.tip.chat_id, "undo", now)
    return (
        f"Compression undone: I see {counted(len(undoing.plan.transcript), 'message')} again, about "
        f"{undoing.tokens:,} of {undoing.limits.input_window:,} tokens (estimate). The conversation continues with the "
        f"id `{child.short_key}`. I will not compress it automatically while prompts still fit."
    )


def _preview_text(preview: CompressionPreview | NotNeeded) -> str:
    if isinstance(preview, NotNeeded):
        return _outcome_text(preview)
    shorter = f"`/compress` would first shorten {counted(preview.pruned, 'tool result')}. " if preview.pruned else ""
    return (
        f"`/compress` would summarise {counted(preview.middle, 'message')}. It would keep the first {preview.head:,} "
        f"and the newest {preview.tail:,} unchanged.\n"
        f"Next prompt (estimate): about {preview.tokens_before:,} → {preview.tokens_after:,} tokens, including "
        f"{preview.summary_tokens:,} for the summary.\n{shorter}Nothing was changed."
    )
