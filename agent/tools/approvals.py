"""Approvals of tool calls: which calls need a person's yes, and the question that is asked.

A call that reads, or changes nothing but the chat's own notes, needs none. Any other follows the policy of its chat:
`allow`, `deny`, or `ask`, unless a person has allowed calls of its shape before. Only people answer: a command of
somebody who may, never anything that stands in a result.
"""

import re
import unicodedata
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


_NOT_PLAIN = re.compile(
    "[^\x00-\x7f\u00ae-\u024f\u0400-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3]"
)
"""Any character but ASCII and the letters that are common beside it, all of which show."""
_HIDDEN = frozenset({"Cf", "Zl", "Zp", "Co", "Cn"})
"""Categories of characters that format, or mean nothing; white space is seen as such."""
_JOINERS = "\u200c\u200d\ufe0f"
"""Characters that scripts other than Latin, and emoji, are written with."""
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x034F, 0x2800)))

_WORD, _LATIN = re.compile(r"(?<!\\)\w+"), re.compile("[A-Za-z]")  # the first letter behind a backslash is an escape's
_LOOK_ALIKE = re.compile(
    "[\u0131\u0251\u0261\u0370-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uff21-\uff5a\U0001d400-\U0001d7ff]"
)
"""Letters of scripts in which some look like Latin ones."""
_WHOLE_WORD = re.compile(r"(?<!\w)[асеорухѕіјԁһԛԝАВЕКМНОРСТУХЅІЈονΑΒΕΖΗΙΚΜΝΟΡΤΥΧ]+(?!\w)")  # noqa: RUF001 - that is the point
"""Words of letters alone that cannot be told from Latin ones."""
_GAP = re.compile(r"[ \t]{60,}|\n{12,}")
"""White space that moves what follows out of sight."""


def fenced(text: str, language: str = "") -> str:
    """A text as a code block that nothing in it can end, with every character that does not show as its code."""
    text = _visible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str) -> str:
    """A name as code, whole: on the same line, or in a block where it is long or holds backticks."""
    shown = re.sub(r"^ | $", r"\\u0020", _visible(text)).replace("\n", r"\u000a")
    shown = _WHOLE_WORD.sub(_coded, shown) if _LATIN.search(shown) else shown
    return f"`{shown}`" if shown and "`" not in shown and len(shown) <= 200 else f"\n{fenced(shown)}\n"


def _visible(text: str) -> str:
    """A text in which what is not seen stands as its code: who says yes has to see all of it."""
    text = _NOT_PLAIN.sub(_shown, printable(text))
    if not text.isascii():
        text = _WORD.sub(lambda word: _LOOK_ALIKE.sub(_coded, word[0]) if _LATIN.search(word[0]) else word[0], text)
    return _GAP.sub(lambda gap: f"[{len(gap[0]):,} {'line ends' if gap[0][0] == chr(10) else 'spaces or tabs'}]", text)


def _coded(found: re.Match[str]) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in found[0])


def _shown(found: re.Match[str]) -> str:
    character, before = found[0], found.string[max(0, found.start() - 1) : found.start()]
    joins = character in _JOINERS and not before.isascii() and unicodedata.category(before)[0] in "LMS"
    is_hidden = unicodedata.category(character) in _HIDDEN or character in _SELECTORS
    is_hidden = is_hidden or "FILLER" in unicodedata.name(character, "")
    return f"\\u{ord(character):04x}" if is_hidden and not joins else character


def json_block(arguments: Mapping[str, object]) -> str:
    """The arguments of a call as a code block."""
    return fenced(orjson.dumps(arguments, option=orjson.OPT_INDENT_2).decode(), "json")
