"""Explains one message to admins: the same sentences on the command line, in a chat and in the console."""

from datetime import UTC, tzinfo

from gateway.times import format_time
from hermes_state.admin.why import WhyReport, WhyStep, load_why
from hermes_state.errors import CommandError, LookupRejected
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars, plain
from hermes_state.values import Millis, recall_id


def load_explained(db: Connection, name: str) -> WhyReport:
    """Load the history of a message. Raises `CommandError` if there is no message with this id."""
    try:
        return load_why(db, name)
    except LookupRejected as error:
        raise CommandError(f"There is no message `{name[:40]}`. Message ids look like `m123`.") from error


def why_lines(found: WhyReport, zone: tzinfo | None = UTC) -> list[str]:
    """Return the history of a message as sentences, in the order of events."""
    turn, place = found.turn, name_with_id(found.turn.label, found.turn.chat.name)
    lines = [f"Message {recall_id(turn.message_id)} in {place}:"]
    for one in found.arrivals:
        delay = max(0, one.received_at - one.sent_at) / 1000
        waited = max(0, (turn.started_at or one.received_at) - one.received_at) / 1000
        sender = name_with_id(one.sender_name, one.sender_ref)
        lines.append(
            f"- {format_time(one.received_at, zone)}: arrived from {sender}, who has access, "
            f"{delay:.1f} s after it was sent, and waited {waited:.1f} s for its turn."
        )
    if turn.turn_id is None:
        return [*lines, "- It is not part of a turn, so there is nothing more to show."]
    if len(found.arrivals) > 1:
        lines.append(f"- {counted(len(found.arrivals), 'message')} were answered together in one turn.")
    names = (one.sender_name for one in found.arrivals if one.sender_ref == turn.started_by)
    starter = name_with_id(next(names, ""), turn.started_by or "?")
    restarts = f" It was restarted {counted(turn.restarts, 'time')}." if turn.restarts else ""
    lines.append(f"- {_at(turn.started_at, zone)}: the turn started for {starter}.{restarts}")
    lines += [f"- {_at(step.at, zone)}: {_words(step)}." for step in found.steps]
    reason = f": {turn.error}" if turn.error else ""
    lines.append(
        f"- {_at(turn.ended_at, zone)}: the turn was {turn.state}{reason}."
        if turn.ended_at is not None
        else f"- The turn is {turn.state}."
    )
    return lines


def name_with_id(name: str, ident: str) -> str:
    """Return a name with its id, or only the id if there is no name."""
    return f"{shown} ({ident})" if (shown := plain(name)) else ident


def _words(step: WhyStep) -> str:
    took = f" in {step.took_ms / 1000:.1f} s" if step.took_ms is not None else ""
    cost = f", {dollars(step.cost)}" if step.cost is not None else ""
    tokens = f" ({step.tokens}{cost})" if step.tokens else ""
    kind = {"model": "model call for", "delivery": "delivery of"}.get(step.kind, step.kind)
    return f"{kind} {step.name}: {step.outcome}{took}{tokens}"


def _at(at: Millis | None, zone: tzinfo | None) -> str:
    return "?" if at is None else format_time(at, zone)
