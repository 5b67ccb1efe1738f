"""`/rules`: standing rules of a conversation, and the end of one."""

import asyncio
from collections.abc import Sequence
from functools import partial
from sqlite3 import Connection

from agent.context.carried.rules import Rule, drop_notice
from agent.context.carried.sections import rules_in_view
from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.config.fields import secrets_of
from hermes_state.errors import CommandError
from hermes_state.redaction import Redactor
from hermes_state.transcripts import NewMessage, append_to_tip, load_view
from hermes_state.values import LineageId, MessageId, MessageRole, Millis, Origin, parse_recall_id, recall_id

_ASK = "Write `/rules`, or `/rules drop m12` with the id of one."


async def rules(request: CommandRequest) -> CommandResult:
    """List the rules in force, or `drop` those of a message."""
    session = await request.load_open_session()
    if session is None:
        return say("This chat has no conversation yet.")
    view = await request.context.store.read(load_view, session.lineage_id)
    redact = Redactor(secrets_of(request.context.runtime.config))
    is_shared = request.chat.kind.is_shared
    found = await asyncio.to_thread(rules_in_view, view.transcript, redact=redact, is_shared=is_shared)
    word, _, name = request.argument.partition(" ")
    if word.lower() == "drop":
        return _drop(session.lineage_id, found, parse_recall_id(name))
    if request.argument:
        raise CommandError(_ASK)
    if not found:
        return say("No standing rules: nobody has asked for anything from now on.")
    return say("\n".join(("Standing rules, kept word for word past every compression:", *(one.line for one in found))))


def _drop(lineage_id: LineageId, found: Sequence[Rule], rule_id: MessageId | None) -> CommandResult:
    texts = [rule.text for rule in found if rule.id == rule_id]
    if rule_id is None or not texts:
        raise CommandError(f"No rule in force has that id. {_ASK}")
    return CommandResult(apply=partial(_store_notice, lineage_id, rule_id, texts))


def _store_notice(lineage_id: LineageId, rule_id: MessageId, texts: Sequence[str], db: Connection, now: Millis) -> str:
    text = drop_notice(rule_id, texts)
    append_to_tip(db, lineage_id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=text), now)
    return f"{recall_id(rule_id)} holds no longer: {' / '.join(texts)}"
