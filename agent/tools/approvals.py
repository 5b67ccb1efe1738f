"""Approvals of tool calls: which calls need a person's yes, and the question that is asked.

A call that reads, or changes nothing but the chat's own notes, needs none. Any other follows the policy of its chat:
`allow`, `deny`, or `ask`, unless a person has allowed calls of its shape before. Only people answer: a command of
somebody who may, never anything that stands in a result.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import orjson

from agent.tools.offers import Policy, ReadyCall
from agent.tools.registry import ToolReply, failed
from hermes_state.text import printable
from hermes_state.tools.approvals import Approval, ApprovalRequest, ApprovalState
from hermes_state.values import Button, ToolCall

DENIED_BY_POLICY = "this chat does not allow calls that {} (`tools.approval`)"
DENIED = "a person said no to this call{}; do not try it again in other words"
EXPIRED = "nobody answered whether this may be done, so it was not done"


@dataclass(slots=True, kw_only=True)
class CallPlan:
    """Calls of one answer by what becomes of them."""

    ready: list[ReadyCall] = field(default_factory=list)
    refused: list[tuple[ToolCall, ToolReply]] = field(default_factory=list)
    asking: list[ReadyCall] = field(default_factory=list)

    def add(
        self, one: ReadyCall, policy: Policy, answer: Approval | None, granted: Collection[tuple[str, str]]
    ) -> None:
        """Sort in a call that can be run. `granted`: tools and shapes that were allowed for longer."""
        if not one.may_need_approval or (policy is Policy.ALLOW and answer is None):
            self.ready.append(one)
        elif policy is Policy.DENY:
            self.refused.append((one.call, failed(DENIED_BY_POLICY.format(_DOES[one.tool.effect]))))
        elif answer is not None and answer.state is not ApprovalState.PENDING:
            self._add_answered(one, answer)
        elif one.shape and (one.tool.name, one.shape) in granted:
            self.ready.append(one)
        else:
            self.asking.append(one)

    def _add_answered(self, one: ReadyCall, answer: Approval) -> None:
        if answer.state is ApprovalState.APPROVED:
            self.ready.append(one)
        elif answer.state is ApprovalState.EXPIRED:
            self.refused.append((one.call, failed(EXPIRED)))
        else:
            reason = f" and said: {answer.reason}" if answer.reason else ""
            self.refused.append((one.call, failed(DENIED.format(reason))))


_DOES: Mapping[str, str] = {"writes": "change something", "executes": "run programs"}


def question_about(one: ReadyCall) -> ApprovalRequest:
    """The question about a call: exactly what would be done, and how to answer."""
    shown = one.tool.shown(one.arguments) if one.tool.shown is not None else json_block(one.arguments)
    shape = one.shape

    def markdown(number: int) -> str:
        longer = f" `session` and `always` after it allow calls such as {inline(shape)} for longer." if shape else ""
        return (
            f"**May I use {inline(one.tool.name)}?**\n{shown}\n"
            f"`/approve a{number}` says yes, `/deny a{number} <reason>` no.{longer}"
        )

    def buttons(number: int) -> list[Button]:
        scopes = [("Always here", " always"), ("This conversation", " session")] if shape else []
        longer = [Button(label=label, command=f"/approve a{number}{scope}") for label, scope in reversed(scopes)]
        yes, no = (
            Button(label="Yes, once", command=f"/approve a{number}"),
            Button(label="No", command=f"/deny a{number}"),
        )
        return [yes, *longer, no]

    return ApprovalRequest(
        tool_call_id=one.call.id, tool_name=one.tool.name, shape=shape, markdown=markdown, buttons=buttons
    )


def fenced(text: str, language: str = "") -> str:
    """A text as a code block that nothing in it can end, with every character that does not show as its code."""
    text = printable(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str) -> str:
    """A short text as code on one line."""
    return f"`{printable(text).replace('`', chr(39)).replace(chr(10), ' ')[:200]}`"


def json_block(arguments: Mapping[str, object]) -> str:
    """The arguments of a call as a code block."""
    return fenced(orjson.dumps(arguments, option=orjson.OPT_INDENT_2).decode(), "json")
