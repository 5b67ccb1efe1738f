"""`/tools` and `/mcp` list the agent's tools. `/approve` and `/deny` answer its approval requests.

`/steps` lists the tool calls of the last answer.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import tzinfo
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from agent.tools.approvals import inline
from agent.tools.mcp.settings import ServerState, ServerStatus
from agent.tools.offers import OfferRegistry, Policy, schema_tokens
from agent.tools.registry import GENERAL_STEP, Step, Tool, parsed
from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, page_buttons, say
from gateway.operator.why import name_with_id
from gateway.switches import STEPS
from gateway.times import format_time
from gateway.turns.steps import listed
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError, ToolError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.tool_runs import load_newest_runs, load_offer
from hermes_state.tools import approvals
from hermes_state.tools.approvals import AnswererRole, ApprovalState, GrantKind, PendingApproval
from hermes_state.transcripts import load_message, load_sender_name
from hermes_state.values import LineageId, Millis, ToolEffect

Decide: TypeAlias = Callable[[Connection, CommandRequest, Sequence[PendingApproval], Millis], str]
"""Stores the decision on the given approval requests and returns the reply."""

_NUMBER = re.compile(r"a?(\d{1,18})", re.IGNORECASE)
_POLICIES = {
    Policy.ASK: "needs approval",
    Policy.ASK_ADMIN: "needs an admin's approval",
    Policy.ALLOW: "needs no approval here",
    Policy.DENY: "denied here (`tools.approval`)",
}
_EFFECTS = {ToolEffect.READ_ONLY: "reads", ToolEffect.WRITES: "writes", ToolEffect.EXECUTES: "executes"}


async def tools(request: CommandRequest) -> CommandResult:
    """List the tools. `forget` revokes all saved permissions."""
    word = request.argument.lower()
    if word == "forget":
        return CommandResult(apply=partial(_forget, request))
    if word not in ("", "list"):
        raise CommandError("Send `/tools` to list the tools, or `/tools forget` to revoke all saved permissions.")
    store, offers = request.context.store, request.context.runtime.agent.offers
    session = await request.load_open_session()
    names = await store.read(load_offer, session.id) if session is not None else None
    lines = [_line(request, offers, tool, names) for tool in offers.registry.by_name.values()]
    if granted := await store.read(approvals.list_grants, request.chat.id):
        allowed = ", ".join(f"`{one}`" for one in granted)
        lines.append(f"\nSaved permissions: {allowed}. `/tools forget` revokes them.")
    return say("\n".join(lines) if lines else "There are no tools.")


def _line(request: CommandRequest, offers: OfferRegistry, tool: Tool, names: list[str] | None) -> str:
    chat, sender = request.chat, request.row.sender_ref
    reason = tool.why_unavailable() or offers.access.refusal(tool, chat.key, chat.kind, sender)
    origin = f" (from {tool.source})" if tool.source else ""
    if reason is not None:
        return f"- `{tool.name}`{origin}: off, because {reason}"
    policy = ""
    if tool.effect is not ToolEffect.READ_ONLY and tool.needs_approval:
        policy = f", {_POLICIES[offers.access.policy(tool, chat.key)]}"
    offered = ", offered through `more_tools`" if names is not None and tool.name not in names else ""
    return f"- `{tool.name}`{origin}: on{policy}{offered}"


def _forget(request: CommandRequest, db: Connection, _now: Millis) -> str:
    if not request.is_in_charge and not request.chat.key.user_ref:
        raise CommandError("In a shared chat, only admins can revoke saved permissions.")
    count = approvals.revoke_grants(db, request.chat.id)
    return f"Revoked {counted(count, 'permission')}. I will ask again." if count else "There are no saved permissions."


STEPS_PER_PAGE = 12  # fit into one message of Discord


async def steps(request: CommandRequest) -> CommandResult:
    """List the steps of the last answer, or choose how much of them the chat sees while the agent works."""
    word = request.argument.lower()
    if word in STEPS.choices:
        what = {"off": "no longer show my steps", "short": "show the current step", "full": "list my steps"}[word]
        return CommandResult(apply=STEPS.choosing(request.chat.id, word, f"While I work, I will {what} here."))
    page = request.number(1)
    if page is None:
        raise CommandError("Send `/steps` to see the steps of the last answer, or `/steps off`, `short` or `full`.")
    if (session := await request.load_open_session()) is None:
        return say("This conversation has no answer yet.")
    skip = (min(page, 1_000) - 1) * STEPS_PER_PAGE
    found = await request.context.store.read(_load_steps, request, session.lineage_id, skip)
    if not found:
        return say("The last answer used no tools." if page == 1 else "The last answer has no more steps.")
    redact = request.redactor
    lines = [
        f"{number}. {listed(step, redact, milliseconds)}"
        for number, (step, milliseconds) in enumerate(found[:STEPS_PER_PAGE], start=skip + 1)
    ]
    buttons = page_buttons("/steps", page, len(found) > STEPS_PER_PAGE)
    return say("Steps of the last answer:\n" + "\n".join(lines), *buttons)


def _load_steps(
    db: Connection, request: CommandRequest, lineage_id: LineageId, skip: int
) -> list[tuple[Step, int | None]]:
    registry, found = request.context.runtime.agent.offers.registry, list[tuple[Step, int | None]]()
    for run in load_newest_runs(db, lineage_id, skip, STEPS_PER_PAGE + 1):
        key = run.call_message_id, run.tool_call_id
        calls = {call.id: call for call in load_message(db, run.call_message_id).body.calls}
        call, tool = calls.get(run.tool_call_id), registry.get(run.tool_name)
        step = Step(key=key, words=GENERAL_STEP, about=run.tool_name)
        if tool is not None and call is not None:
            with suppress(ToolError):  # the arguments were invalid, or the tool was called through `more_tools`
                step = tool.step_of(parsed(call.arguments, tool.parameters), key)
        took = None if run.ended_at is None else run.ended_at - run.started_at
        found.append((replace(step, state=run.state, is_subagent=run.is_subagent), took))
    return found


async def approve(request: CommandRequest) -> CommandResult:
    """Approve one of the agent's requests, or `all` open requests."""
    words = request.argument.lower().split()
    scope = GrantKind.ONCE
    if words and words[-1] in tuple(GrantKind):
        scope = GrantKind(words.pop())
    if len(words) > 1:
        raise CommandError("Send `/approve`, optionally with the number of a request and with `session` or `always`.")
    return _answer(request, partial(_approve, scope), words[0] if words else None)


async def deny(request: CommandRequest) -> CommandResult:
    """Deny one of the agent's requests, or `all` open requests, and tell the agent the reason."""
    word, _, rest = request.argument.partition(" ")
    which = word.lower() if word.lower() == "all" or _NUMBER.fullmatch(word) else None
    reason = (rest if which is not None else request.argument).strip()
    return _answer(request, partial(_deny, reason or None), which)


def _answer(request: CommandRequest, decide: Decide, which: str | None) -> CommandResult:
    chats = {request.chat.id}

    async def wake() -> None:
        request.context.lanes.turns.on_question()
        for chat_id in chats:
            request.context.lanes.wake(chat_id)

    @locks(EVERYTHING)
    def apply(db: Connection, now: Millis) -> CommandReply:
        meant = _meant(db, request, which)
        chats.update(one.chat_id for one in meant)
        return CommandReply(markdown=decide(db, request, meant, now), is_urgent=True)

    return CommandResult(apply=apply, after=wake)


def _meant(db: Connection, request: CommandRequest, which: str | None) -> Sequence[PendingApproval]:
    """Return the requests to answer. Raises `CommandError` if there are none, or if the sender cannot answer them."""
    is_named, person = which is not None and which != "all", request.row.sender_ref
    is_admin = request.role is UserRole.ADMIN  # an admin's direct chat can answer all requests to admins
    load = partial(approvals.load_pending, db, request.chat.id, is_admins=is_admin and not request.chat.kind.is_shared)
    pending = load(None if is_named else request.row.received_at)
    if which is not None and is_named:
        number = _NUMBER.fullmatch(which)
        pending = [one for one in pending if number is not None and one.id == int(number[1])]
    if not pending and not is_named and (later := load()):  # requested after the command, or the clock was set back
        name = f"a{later[0].id}"
        asked_later = "I asked this after you sent your answer, so please name the request"
        raise CommandError(f"{asked_later}: `/approve {name}` or `/deny {name}`.")
    if not pending:
        raise CommandError(
            "There is no open request here. The request was answered or has expired, or its turn has ended."
        )
    if which is None and len(pending) > 1:
        people = [load_sender_name(db, one.turn_id, one.started_by) or "" for one in pending]
        named = zip(pending, people, strict=True)
        names = ", ".join(
            f"a{one.id} (`{one.tool_name}` for {name_with_id(who, one.started_by)})" for one, who in named
        )
        raise CommandError(f"There are {len(pending)} open requests. Please name one of them, or `all`: {names}.")
    chat = request.chat
    for one in () if is_admin else pending:
        # Nobody else sees the question of a webhook or a script in a direct chat.
        is_program = not chat.kind.is_shared and one.started_by.partition(":")[0] != chat.key.platform
        if one.answerer is AnswererRole.STARTER and one.started_by != person and not is_program:
            raise CommandError("Only the person who started this turn, or an admin, can answer that request.")
        if one.answerer is AnswererRole.MODERATOR and not request.context.access.may_moderate(person):
            raise CommandError("Only an admin or a moderator can answer that request.")
        if one.answerer is AnswererRole.ADMIN:
            raise CommandError("Only an admin can answer that request.")
    return pending


def _approve(
    scope: GrantKind, db: Connection, request: CommandRequest, meant: Sequence[PendingApproval], now: Millis
) -> str:
    context, chat = request.context, request.chat
    is_for_all = chat.kind.is_shared and not chat.key.user_ref
    if scope is not GrantKind.ONCE and is_for_all and not context.access.may_moderate(request.row.sender_ref):
        raise CommandError(
            "In a shared chat, only admins and moderators (`access.moderators`) can approve more than a single call."
        )
    lines = []
    for one in meant:
        approvals.decide(db, one, ApprovalState.APPROVED, request.row.sender_ref, None, now, request.row.sender_name)
        lasts = scope is not GrantKind.ONCE and bool(one.shape)
        if lasts:
            approvals.grant(db, one, scope, request.row.sender_ref, now)
        reach = "conversation" if scope is GrantKind.SESSION else "chat"
        longer = f" Calls of this kind no longer need approval in that {reach}." if lasts else ""
        lines.append(f"Approved: a{one.id} (`{one.tool_name}`).{longer}")
    return "\n".join(lines)


def _deny(
    reason: str | None, db: Connection, request: CommandRequest, meant: Sequence[PendingApproval], now: Millis
) -> str:
    for one in meant:
        approvals.decide(db, one, ApprovalState.DENIED, request.row.sender_ref, reason, now, request.row.sender_name)
    return "\n".join(f"Denied: a{one.id} (`{one.tool_name}`)." for one in meant)


async def mcp(request: CommandRequest) -> CommandResult:
    """List the MCP servers, their tools and their errors."""
    config, now = request.context.runtime.config.mcp, request.context.clock.now()
    access, chat = request.context.runtime.agent.offers.access, request.chat.key
    lines = list[str]()
    for one in request.context.servers.statuses():
        policies = {access.policy(tool, chat) for tool in one.tools.values() if tool.effect is not ToolEffect.READ_ONLY}
        lines += _server_lines(one, policies, now, request.zone)
    lines += [f"- **{name}**: disabled" for name, one in config.servers.items() if not one.enabled]
    return say("\n".join(lines) or "No MCP servers are configured (`mcp.servers`).")


def _server_lines(
    status: ServerStatus, policies: Collection[Policy], now: Millis, zone: tzinfo | None
) -> Iterator[str]:
    words = f"{status.state.value} since {format_time(status.since, zone)}"
    if status.state is ServerState.DOWN:
        words += f" ({inline(status.error or 'reason unknown')})"
        if status.next_try_at is not None:
            words += f", next attempt in {max(0, status.next_try_at - now) // 1000} s"
    yield f"- **{status.name}**: {words}"
    if status.tools:
        yield f"  - tools: {', '.join(f'`{name}` {_EFFECTS[tool.effect]}' for name, tool in status.tools.items())}"
        cost = sum(map(schema_tokens, status.tools.values()))
        yield f"  - size in a prompt, if all of them fit: about {cost:,} tokens"
        words = " or ".join(sorted(_POLICIES[policy] for policy in policies))
        yield f"  - a call {words or 'needs no approval'}{', unless it only reads' if words else ''}"
    for what, names in (("resource", status.catalog.resources), ("prompt", status.catalog.prompts)):
        if names:
            more = ", …" if len(names) > 20 else ""
            yield f"  - {counted(len(names), what)}: {', '.join(map(inline, names[:20]))}{more}"
    yield from (f"  - {inline(fault)}" for fault in status.catalog.faults)
    if status.error is not None and status.state is ServerState.CONNECTED:
        yield f"  - last error: {inline(status.error)}"
