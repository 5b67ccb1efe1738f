"""Approvals of tool calls: which calls need a person's approval, and the question that people see.

People can only answer with commands and buttons. Text in a tool result never counts as an answer.
"""

import re
import unicodedata
from collections.abc import Collection, Sequence

import msgspec

from agent.tools.memory import has_parts
from agent.tools.offers import Policy, ReadyCall, ToolAccess
from agent.tools.registry import ToolContext, ToolReply, failed
from hermes_state.admin.pairings import is_client
from hermes_state.imports import late_pattern
from hermes_state.text import printable
from hermes_state.tools.approvals import AnswererRole, Approval, ApprovalRequest, ApprovalState
from hermes_state.values import Button, ChatId, ToolCall, UserRef

NO_ADMIN = (
    "this call needs an admin's approval, but no admin can be reached, so it was not run; ask the bot's owner for help"
)


class CallPlan(msgspec.Struct, kw_only=True):
    """Tool calls of a model answer, sorted into ready calls, refused calls and calls that need approval."""

    access: ToolAccess
    context: ToolContext
    grants: Collection[tuple[str, str, str]] = ()
    """Saved approvals: tool name, call shape (see `Tool.shape`) and the person who approved such calls."""
    admin_chats: Sequence[ChatId] = ()
    ready: list[ReadyCall] = msgspec.field(default_factory=list)
    refused: list[tuple[ToolCall, ToolReply]] = msgspec.field(default_factory=list)
    asking: list[tuple[ReadyCall, AnswererRole]] = msgspec.field(default_factory=list)

    def add(self, one: ReadyCall, answer: Approval | None) -> None:
        """Add a call to `ready`, `refused` or `asking`. `answer`: a person's decision about this call, or None."""
        policy, context = self.access.policy(one.tool, self.context.chat), self.context
        answerer = self._answerer_of(one, policy)
        if answerer is None and answer is None:
            self.ready.append(one)
        elif policy is Policy.DENY and one.may_need_approval:
            does = {"writes": "change something", "executes": "run programs"}[one.tool.effect]
            self._refuse(one, f"this chat does not allow calls that {does} (`tools.approval`)")
        elif answer is not None and answer.state is not ApprovalState.PENDING:
            self._add_answered(one, answer)
        elif answerer is None or self._is_granted(one, answerer):
            self.ready.append(one)
        elif context.is_subagent:
            reason = "this call needs a person's approval, which a sub-agent cannot ask for: report what should be done"
            self._refuse(one, reason)
        elif answerer is AnswererRole.ADMIN and not self.admin_chats and not self._is_admin(context.started_by):
            self._refuse(one, NO_ADMIN)
        else:
            self.asking.append((one, answerer))

    def _is_admin(self, person: UserRef) -> bool:
        return self.access.is_admin(person) and not is_client(person)

    def _answerer_of(self, one: ReadyCall, policy: Policy) -> AnswererRole | None:
        """Return the role that can approve a call, or None if the call needs no approval."""
        if policy is Policy.ASK_ADMIN and one.may_need_approval:
            return AnswererRole.ADMIN
        if has_parts(self.context.chat, self.context.chat_kind) and one.tool.instructs(one.arguments):
            return AnswererRole.MODERATOR
        return AnswererRole.STARTER if policy is not Policy.ALLOW and one.may_need_approval else None

    def _is_granted(self, one: ReadyCall, answerer: AnswererRole) -> bool:
        """Return True if a saved approval covers the call, and the person who gave it can still approve such calls."""
        givers = [by for tool, shape, by in self.grants if one.shape and (tool, shape) == (one.tool.name, one.shape)]
        is_admins = answerer is AnswererRole.ADMIN and not any(self.access.is_admin(UserRef(by)) for by in givers)
        return bool(givers) and answerer is not AnswererRole.MODERATOR and not is_admins

    def _add_answered(self, one: ReadyCall, answer: Approval) -> None:
        if answer.state is ApprovalState.DENIED:
            said = f" and said: {answer.reason}" if answer.reason else ""
            self._refuse(one, f"a person denied this call{said}; do not try it again in another form")
        elif answer.state is ApprovalState.EXPIRED:
            self._refuse(one, "no one approved this call, so it was not run")
        elif answer.answerer is AnswererRole.ADMIN and not self.access.is_admin(UserRef(answer.decided_by or "")):
            self._refuse(one, NO_ADMIN)  # the person is no longer an admin
        else:
            self.ready.append(one)

    def _refuse(self, one: ReadyCall, reason: str) -> None:
        self.refused.append((one.call, failed(reason)))


def question_about(one: ReadyCall, answerer: AnswererRole, origin: str = "") -> ApprovalRequest:
    """Return the approval question for a call, which states the call's exact effect and how to answer.

    `origin`: the person and chat that the call comes from, if an admin is asked in another chat.
    """
    tool, shape = one.tool, "" if answerer is AnswererRole.MODERATOR else one.shape
    shown = tool.shown(one.arguments) if tool.shown is not None else json_block(one.arguments)
    who = "Only an admin or a moderator can answer. " if answerer is AnswererRole.MODERATOR else ""
    place, here = ("that", "there") if origin else ("this", "here")
    words = {"Yes, once": "", f"{place.capitalize()} conversation": " session", f"Always {here}": " always"}

    def footer(number: int) -> str:
        longer, reach = "", tool.reach(shape)
        if shape:
            longer = (
                " To allow later calls as well, add `session` (until `/new`) or `always` (until `/tools forget`). This "
                f"covers calls to {inline(tool.name)} by everyone in {place} chat {reach}"
            )
            longer += "" if reach.endswith("\n") else "."
        return f"{who}Press a button, or send `/approve a{number}` or `/deny a{number} <reason>`.{longer}"

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


_NOT_PLAIN = late_pattern(
    "[^\x00-\x7f\u00ae-\u024f\u0400-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3]"
)
"""Pattern for characters that might be invisible: all except ASCII and common letters."""
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x034F, 0x17B4, 0x17B5, 0x2800)))

_WORD, _LATIN = re.compile(r"(?<!\\)\w+"), re.compile("[A-Za-z]")  # a letter after a backslash is an escape code
_LOOK_ALIKE = re.compile(
    "[\u0131\u0251\u0261\u0370-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uff21-\uff5a\U0001d400-\U0001d7ff]"
)
"""Pattern for letters of scripts in which some letters look Latin."""
_WHOLE_WORD = re.compile(r"(?<!\w)[асеорухѕіјԁһԛԝАВЕКМНОРСТУХЅІЈονΑΒΕΖΗΙΚΜΝΟΡΤΥΧ]+(?!\w)")  # noqa: RUF001 - look-alikes
"""Pattern for words made up entirely of letters that look Latin."""
_GAP = re.compile(r"[^\S\n]{60,}|(?:[^\S\n]{0,59}\n){12,}")
"""Pattern for white space long enough to push the words after it out of sight."""


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a code block that its own content cannot close. Invisible characters become visible codes."""
    text = _visible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str) -> str:
    """Return a name in full: as inline code, or as a code block if it is long or contains backticks."""
    shown = re.sub(r"^ | $", r"\\u0020", _visible(text)).replace("\n", r"\u000a")
    shown = _WHOLE_WORD.sub(_coded, shown) if _LATIN.search(shown) else shown
    return f"`{shown}`" if shown and "`" not in shown and len(shown) <= 200 else f"\n{fenced(shown)}\n"


def _visible(text: str) -> str:
    """Replace invisible characters with visible codes, because people must see everything that they approve."""
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
    # Emoji and non-Latin scripts need these characters.
    joins = character in "\u200c\u200d\ufe0f" and not before.isascii() and unicodedata.category(before)[0] in "LMS"
    # Format characters, separators, and unassigned characters.
    is_hidden = unicodedata.category(character) in {"Cf", "Zl", "Zp", "Co", "Cn"} or character in _SELECTORS
    is_hidden = is_hidden or "FILLER" in unicodedata.name(character, "")
    return f"\\u{ord(character):04x}" if is_hidden and not joins else character


def json_block(arguments: object) -> str:
    return fenced(msgspec.json.format(msgspec.json.encode(arguments)).decode(), "json")
