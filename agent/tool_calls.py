"""Tool calls of a turn. The calls in one model reply run in parallel, wait for approval, or are refused.

The start of a call is committed before it runs, so a restart never repeats a call that may have taken effect.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.usage import estimated_text_tokens
from agent.tools.approvals import CallPlan, inline, question_about
from agent.tools.offers import OfferRegistry, ReadyCall
from agent.tools.registry import Tool, ToolContext, ToolReply, failed
from hermes_state import journal
from hermes_state.chats import load_chat
from hermes_state.errors import HermesError, ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import enclosed
from hermes_state.tool_runs import ToolResult, ToolRunState, load_tool_runs
from hermes_state.tools import approvals
from hermes_state.tools.approvals import AnswererRole, ApprovalRequest
from hermes_state.transcripts import load_message, load_sender_name, show_instead
from hermes_state.turns import RunningTurn, TurnClaim
from hermes_state.values import (
    ChatId,
    Clock,
    Message,
    MessageId,
    Millis,
    Tokens,
    ToolCall,
    ToolEffect,
    TurnId,
    recall_id,
)

OUTCOME_UNKNOWN = (
    "Outcome unknown: the gateway restarted while this call ran. It was not run again; check whether it took effect."
)

APPROVAL_MINUTES = 60
"""Minutes to wait for the answer to an approval request. After that, the call is denied.

An hour leaves time for an admin who is away. A turn whose request nobody answers ends soon enough to be noticed.
"""


class ApprovalNeededError(HermesError):
    """The turn is waiting for approvals. It runs again after people have answered all requests."""


class ToolCallRunner(msgspec.Struct, frozen=True, kw_only=True):
    """Runs the tool calls of any number of turns."""

    store: Store
    clock: Clock
    offers: OfferRegistry
    budget: "ResultBudget"

    async def resume(
        self, turn: RunningTurn, message: Message, calls: Sequence[ToolCall], context: ToolContext
    ) -> None:
        """Finish the calls that have no result yet because of a crash or an approval request.

        Calls that have not started are run. A call that has started may have taken effect. It runs again only if its
        tool is read-only. If not, its result says that the outcome is unknown.
        """
        runs = await self.store.read(load_tool_runs, message.id)
        begun = [call for call in calls if call.id in runs and not self._is_read_only(call, context)]
        for call in begun:
            reply = ToolReply(text=OUTCOME_UNKNOWN, state=ToolRunState.UNKNOWN)
            await self._finish(message, call, None, reply, context)
        await self.run(turn, message, [call for call in calls if call not in begun], context)

    def _is_read_only(self, call: ToolCall, context: ToolContext) -> bool:
        try:
            return self.offers.resolve(call, context).tool.effect is ToolEffect.READ_ONLY
        except ToolError:
            return False

    async def run(self, turn: RunningTurn, message: Message, calls: Sequence[ToolCall], context: ToolContext) -> None:
        """Run the calls in one model reply in parallel, after their starts are committed.

        If some calls need approval, raises `ApprovalNeededError` after all other calls have results.
        """
        sorted_calls = await self._sort(message, calls, context)
        ready, refused = sorted_calls.ready, sorted_calls.refused
        if ready:
            begun = [one.call for one in ready]
            await self.store.write(journal.start_tools, turn, message.id, begun, self.clock.now())
        by_id = {call.id: call for call in calls}
        try:
            async with asyncio.TaskGroup() as group:
                for call, reply in refused:
                    group.create_task(self._finish(message, by_id[call.id], None, reply, context))
                for one in ready:
                    run = self._run_one(message, by_id[one.call.id], one, context)
                    group.create_task(run, name=f"tool {one.tool.name}")
        except BaseExceptionGroup as group_error:  # raised by the store, because tools never raise errors
            raise group_error.exceptions[0] from group_error
        if sorted_calls.asking:
            chats, now = sorted_calls.admin_chats, self.clock.now()
            questions = await self.store.read(_questions, sorted_calls)
            await self.store.write(approvals.ask, turn, message.id, questions, APPROVAL_MINUTES, now, chats)
            raise ApprovalNeededError(f"{len(questions)} calls wait for approval")

    async def _sort(self, message: Message, calls: Sequence[ToolCall], context: ToolContext) -> CallPlan:
        refused, resolved = list[tuple[ToolCall, ToolReply]](), list[ReadyCall]()
        for call in calls:
            try:
                resolved.append(self.offers.resolve(call, context))
            except ToolError as error:
                refused.append((call, failed(str(error))))
        access, read = self.offers.access, self.store.read
        answers, grants, chats = dict[str, approvals.Approval](), list[tuple[str, str, str]](), list[ChatId]()
        if any(one.may_need_approval or one.tool.instructs(one.arguments) for one in resolved):
            answers |= await read(approvals.load_approvals, message.id)
            grants += await read(approvals.load_grants, context.chat_id, context.lineage_id)
            if not access.is_admin(context.started_by):  # an admin can answer in the turn's own chat
                chats += await read(access.load_admin_chats)
        found = CallPlan(access=access, context=context, grants=grants, admin_chats=chats, refused=refused)
        for one in resolved:
            found.add(one, answers.get(one.call.id))
        return found

    async def _run_one(self, message: Message, call: ToolCall, ready: ReadyCall, context: ToolContext) -> None:
        key = message.id, call.id
        step = ready.tool.step_of(ready.arguments, key, is_subagent=context.is_subagent)
        context.on_step(step)
        state = ToolRunState.UNKNOWN  # if the call is cancelled
        try:
            reply = await ready.tool.reply(ready.arguments, replace(context, call=key))
            state = reply.state
        finally:
            context.on_step(replace(step, state=state))
        await self._finish(message, call, ready.tool, reply, context)

    async def _finish(
        self, message: Message, call: ToolCall, tool: Tool | None, reply: ToolReply, context: ToolContext
    ) -> None:
        window = context.input_window
        result = ToolResult(
            call_message_id=message.id,
            call=call,
            text=reply.text,
            state=reply.state,
            images=reply.images,
            preview=self.budget.preview_for(tool, reply.text, window),
        )
        await self.store.write(journal.finish_tool, context.claim, result, self.clock.now())

    async def end_round(self, claim: TurnClaim, input_window: Tokens) -> None:
        """Shorten the results of a round to fit the budget, and add messages that people sent in the meantime."""
        tools = self.offers.registry.by_name
        await self.store.write(_end_round, claim, self.budget, tools, input_window, self.clock.now())


def _questions(db: Connection, plan: CallPlan) -> list[ApprovalRequest]:
    """Return the approval requests for a round of calls. Requests to admins name the person and the chat."""
    context, origin = plan.context, ""
    if plan.admin_chats:
        name = load_sender_name(db, context.turn_id, context.started_by) or context.started_by
        title = load_chat(db, context.chat_id).title
        place = f"{f'{inline(title)}, ' if title else ''}`{context.chat.name}`"
        origin = f" For {inline(name)}, `{context.started_by}`, in {place}."
    return [question_about(one, who, origin if who is AnswererRole.ADMIN else "") for one, who in plan.asking]


@locks(turn="claim.id")
def _end_round(
    db: Connection,
    claim: TurnClaim,
    budget: "ResultBudget",
    tools: Mapping[str, Tool],
    input_window: Tokens,
    now: Millis,
) -> None:
    budget.spill(db, claim.id, tools, input_window, now)
    journal.join_steers(db, claim, now)


# ---- result budgets

RESULT_SHARE = 20
"""Limit for one result, as a percentage of the input window. All results of a round together can use twice as much."""
BLOCK = "persisted-output"
"""Name of the tag around the preview of a stored result."""

# Selects the results of a turn's newest round that are still shown in full.
_WHOLE_RESULTS = """
SELECT m.id, r.tool_name FROM messages m
JOIN tool_runs r ON r.turn_id = m.turn_id AND r.tool_call_id = m.tool_call_id
WHERE m.turn_id = :turn_id AND m.role = 'tool' AND m.seq > 0
  AND m.id > (SELECT max(a.id) FROM messages a
    WHERE a.turn_id = :turn_id AND a.role = 'assistant' AND a.body IS NOT NULL AND a.seq > 0)
  AND NOT EXISTS (SELECT 1 FROM view_edits e WHERE e.session_id = m.session_id AND e.message_id = m.id)
"""


class ResultBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits of tool results in a prompt: the smaller of a number of characters and a share of the input window.

    A result over its limit becomes a preview. If a round is over its limit, its largest results become previews until
    the round fits. The model can find the full text by search and open it by its recall id.
    """

    result_size: int = 100_000
    turn_budget: int = 200_000
    preview_size: int = 1_500

    def longest(self, input_window: Tokens) -> int:
        """Return the maximum length of a result that is shown in full, in characters (four per token)."""
        return min(self.result_size, input_window * 4 * RESULT_SHARE // 100)

    def preview_for(self, tool: Tool | None, text: str, input_window: Tokens) -> Callable[[MessageId], str] | None:
        """Return a function that takes the id of the result's row and returns a preview, or None if the result fits."""
        limit = self.result_size
        if tool is not None:
            if not tool.is_persisted:
                return None
            limit = min(limit, tool.max_shown_characters or limit)
        tokens = input_window * RESULT_SHARE // 100
        if len(text) <= limit and (len(text) <= tokens or estimated_text_tokens(text) <= tokens):
            return None
        return lambda message_id: self.block(message_id, text, input_window)

    def block(self, message_id: MessageId, text: str, input_window: Tokens) -> str:
        """Return the preview of a stored result."""
        name = recall_id(message_id)
        preview = text[: min(self.preview_size, max(200, self.longest(input_window) // 4))]
        size = f"{len(text):,} characters, {len(text.encode('utf-8', 'replace')) / 1_024:,.0f} KB"
        beginning = f"{enclosed(BLOCK, preview)}{'…' if len(preview) < len(text) else ''}"
        return (
            f'<{BLOCK} id="{name}">\nThis result is too long to show ({size}). The full result is stored as {name}. '
            f"Read parts of it with history_open, or with read_file and the path {name}, using offset and limit. "
            f"search_files accepts the same path.\nIt begins:\n{beginning}\n</{BLOCK}>"
        )

    def spill(
        self, db: Connection, turn_id: TurnId, tools: Mapping[str, Tool], input_window: Tokens, now: Millis
    ) -> int:
        """Replace the largest results of a turn's newest round with previews, until the round fits.

        Return the number of replaced results.
        """
        names = dict(db.execute(_WHOLE_RESULTS, {"turn_id": turn_id}).fetchall())
        rows = [load_message(db, row_id) for row_id in names]
        length, room_tokens = sum(len(row.text or "") for row in rows), input_window * 2 * RESULT_SHARE // 100
        if length <= min(self.turn_budget, room_tokens):  # no text has more tokens than characters
            return 0
        tokens = {row.id: estimated_text_tokens(row.text or "") for row in rows}
        room = self.turn_budget - length
        tokens_left = room_tokens - sum(tokens.values())
        spilled = 0
        for row in sorted(rows, key=lambda row: tokens[row.id], reverse=True):
            text, tool = row.text or "", tools.get(names[row.id])
            if min(room, tokens_left) >= 0 or len(text) <= self.preview_size:
                break
            if tool is None or tool.is_persisted:
                shown = self.block(row.id, text, input_window)
                show_instead(db, row, shown, now)
                room += len(text) - len(shown)
                tokens_left += tokens[row.id] - estimated_text_tokens(shown)
                spilled += 1
        return spilled
