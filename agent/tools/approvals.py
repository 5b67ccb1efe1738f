"""Approvals of tool calls: which calls need a person's yes, and the question that is asked.

A call that reads, or changes nothing but the chat's own notes, needs none. Any other follows the policy of its chat:
`allow`, `deny`, or `ask`, unless a person has allowed calls of its shape before. Only people answer: a command of
somebody who may, never anything that stands in a result.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from agent.tools.memory import has_parts
from agent.tools.offers import Policy, ReadyCall, ToolAccess
from agent.tools.registry import ToolContext, ToolReply, failed
from hermes_state.text import printable
from hermes_state.tools.approvals import Answerer, Approval, ApprovalRequest, ApprovalState
from hermes_state.values import Button, ChatId, ToolCall, UserRef

DENIED_BY_POLICY = "this chat does not allow calls that {} (`tools.approval`)"
DENIED = "a person said no to this call{}; do not try it again in other words"
EXPIRED = "nobody answered whether this may be done, so it was not done"
NOBODY_TO_ASK = "this call needs a person's yes, and a sub-agent cannot ask: report what should be done"
NO_ADMIN = (
    "this call needs an admin's yes and no admin can be reached, so it was not done; the bot's owner can change that"
)


@dataclass(slots=True, kw_only=True)
class CallPlan:
    """Calls of one answer by what becomes of them."""

    access: ToolAccess
    context: ToolContext
    grants: Collection[tuple[str, str, str]] = ()
    """Tools and shapes that were allowed for longer, each with the person who did."""
    admin_chats: Sequence[ChatId] = ()
    """Chats in which admins are asked."""
    ready: list[ReadyCall] = field(default_factory=list)
    refused: list[tuple[ToolCall, ToolReply]] = field(default_factory=list)
    asking: list[tuple[ReadyCall, Answerer]] = field(default_factory=list)

    def add(self, one: ReadyCall, answer: Approval | None) -> None:
        """Sort in a call that can be run."""
        policy, context = self.access.policy(one.tool, self.context.chat), self.context
        answerer = self._answerer_of(one, policy)
        if answerer is None and answer is None:
            self.ready.append(one)
        elif policy is Policy.DENY and one.may_need_approval:
            self._refuse(one, DENIED_BY_POLICY.format(_DOES[one.tool.effect]))
        elif answer is not None and answer.state is not ApprovalState.PENDING:
            self._add_answered(one, answer)
        elif answerer is None or self._is_granted(one, answerer):
            self.ready.append(one)
        elif context.is_subagent:
            self._refuse(one, NOBODY_TO_ASK)
        elif answerer is Answerer.ADMIN and not self.admin_chats and not self.access.is_admin(context.started_by):
            self._refuse(one, NO_ADMIN)
        else:
            self.asking.append((one, answerer))

    def _answerer_of(self, one: ReadyCall, policy: Policy) -> Answerer | None:
        """People who may say yes to a call; None: it needs no yes."""
        if policy is Policy.ASK_ADMIN and one.may_need_approval:
            return Answerer.ADMIN
        if has_parts(self.context.chat, self.context.chat_kind) and one.tool.instructs(one.arguments):
            return Answerer.MODERATOR
        return Answerer.STARTER if policy is not Policy.ALLOW and one.may_need_approval else None

    def _is_granted(self, one: ReadyCall, answerer: Answerer) -> bool:
        """True for a call that was allowed for longer, by a person who may still do that."""
        givers = [by for tool, shape, by in self.grants if one.shape and (tool, shape) == (one.tool.name, one.shape)]
        is_admins = answerer is Answerer.ADMIN and not any(self.access.is_admin(UserRef(by)) for by in givers)
        return bool(givers) and answerer is not Answerer.MODERATOR and not is_admins

    def _add_answered(self, one: ReadyCall, answer: Approval) -> None:
        if answer.state is ApprovalState.DENIED:
            self._refuse(one, DENIED.format(f" and said: {answer.reason}" if answer.reason else ""))
        elif answer.state is ApprovalState.EXPIRED:
            self._refuse(one, EXPIRED)
        elif answer.answerer is Answerer.ADMIN and not self.access.is_admin(UserRef(answer.decided_by or "")):
            self._refuse(one, NO_ADMIN)  # any more
        else:
            self.ready.append(one)

    def _refuse(self, one: ReadyCall, reason: str) -> None:
        self.refused.append((one.call, failed(reason)))


_DOES: Mapping[str, str] = {"writes": "change something", "executes": "run programs"}


def question_about(one: ReadyCall, answerer: Answerer, origin: str = "") -> ApprovalRequest:
    """The question about a call: exactly what would be done, and how to answer.

    `origin`: person and chat that it is for, where admins are asked in their own chats.
    """
    tool, shape = one.tool, "" if answerer is Answerer.MODERATOR else one.shape
    shown = tool.shown(one.arguments) if tool.shown is not None else json_block(one.arguments)
    who = "Only an admin or a moderator can answer. " if answerer is Answerer.MODERATOR else ""
    place, here = ("that", "there") if origin else ("this", "here")
    words = {"Yes, once": "", f"{place.capitalize()} conversation": " session", f"Always {here}": " always"}

    def footer(number: int) -> str:
        calls = f"every later call of {inline(tool.name)} {tool.reach(shape)}, by everybody in {place} chat,"
        longer = f" `session` after it allows {calls} until `/new`, `always` until `/tools forget`." if shape else ""
        return f"{who}`/approve a{number}` says yes, `/deny a{number} <reason>` no.{longer}"

    def buttons(number: int) -> list[Button]:
        answers = [(label, f"/approve a{number}{word}") for label, word in words.items() if shape or not word]
        return [Button(label=label, command=line) for label, line in (*answers, ("No", f"/deny a{number}"))]

    return ApprovalRequest(
        tool_call_id=one.call.id,
        tool_name=tool.name,
        shape=shape,
        answerer=answerer,
        markdown=f"**May I use {inline(tool.name)}?**{origin}\n{shown}",
        footer=footer,
        buttons=buttons,
    )


_NOT_PLAIN = re.compile(
    "[^\x00-\x7f\u00ae-\u024f\u0400-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3]"
)
"""Any character but ASCII and the letters that are common beside it, all of which show."""
_HIDDEN = frozenset({"Cf", "Zl", "Zp", "Co", "Cn"})
"""Categories of characters that format, or mean nothing; white space is seen as such."""
_JOINERS = "\u200c\u200d\ufe0f"
"""Characters that scripts other than Latin, and emoji, are written with."""
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x034F, 0x17B4, 0x17B5, 0x2800)))

_WORD, _LATIN = re.compile(r"(?<!\\)\w+"), re.compile("[A-Za-z]")  # the first letter behind a backslash is an escape's
_LOOK_ALIKE = re.compile(
    "[\u0131\u0251\u0261\u0370-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uff21-\uff5a\U0001d400-\U0001d7ff]"
)
"""Letters of scripts in which some look like Latin ones."""
_WHOLE_WORD = re.compile(r"(?<!\w)[асеорухѕіјԁһԛԝАВЕКМНОРСТУХЅІЈονΑΒΕΖΗΙΚΜΝΟΡΤΥΧ]+(?!\w)")  # noqa: RUF001 - that is the point
"""Words of letters alone that cannot be told from Latin ones."""
_GAP = re.compile(r"[^\S\n]{60,}|(?:[^\S\n]{0,59}\n){12,}")
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
    return _GAP.sub(
        lambda gap: f"[{gap[0].count(chr(10)) or len(gap[0]):,} {'line ends' if chr(10) in gap[0] else 'spaces'}]", text
    )


def _coded(found: re.Match[str]) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in found[0])


def _shown(found: re.Match[str]) -> str:
    character, before = found[0], found.string[max(0, found.start() - 1) : found.start()]
    joins = character in _JOINERS and not before.isascii() and unicodedata.category(before)[0] in "LMS"
    is_hidden = unicodedata.category(character) in _HIDDEN or character in _SELECTORS
    is_hidden = is_hidden or "FILLER" in unicodedata.name(character, "")
    return f"\\u{ord(character):04x}" if is_hidden and not joins else character


def json_block(arguments: object) -> str:
    """Return the arguments of a call as a code block."""
    return fenced(msgspec.json.format(msgspec.json.encode(arguments)).decode(), "json")
