"""Format of a trajectory: one line of JSON. Only its turns are parsed, and unchanged parts are kept byte for byte.

Role names that other programs use are accepted if they are unambiguous.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Self

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from agent.model.usage import MESSAGE_TOKENS, estimated_text_tokens
from hermes_state.errors import HermesError


class TrajectoryRejected(HermesError):
    """A line is not a trajectory. The message gives the reason."""


class TurnRole(StrEnum):
    SYSTEM = "system"
    HUMAN = "human"
    GPT = "gpt"
    TOOL = "tool"


_NAMES: Final[Mapping[TurnRole, str]] = {
    TurnRole.SYSTEM: "system developer",
    TurnRole.HUMAN: "human user prompter",
    TurnRole.GPT: "gpt assistant model bot chatbot ai chatgpt bing bard function_call tool_call",
    TurnRole.TOOL: "tool observation function ipython function_response function_result tool_response tool_result",
}
_ROLES: Final = {name: role for role, names in _NAMES.items() for name in names.split()}
BOM: Final = b"\xef\xbb\xbf"
_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_read_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: TurnRole
    text: str
    tokens: int
    """Estimated number of tokens in the turn, including the frame around a message."""
    raw: Raw
    form: tuple[str, str]
    """Names of the keys for the role and the text."""
    name: str

    def saying(self, text: str) -> Self:
        fields = {**_read_fields(self.raw), self.form[1]: text}
        return replace(self, text=text, tokens=_tokens(text), raw=Raw(_encode(fields)))


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation: its turns and the other keys of its line."""

    turns: tuple[Turn, ...]
    fields: Mapping[str, Raw]
    key: str

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Parse a line, with or without a newline and a byte order mark.

        Raises `TrajectoryRejected` if the line is not a trajectory.
        """
        try:
            line.decode()  # the other keys must also be UTF-8
            fields = _read_fields(line.removeprefix(BOM))
            found = [key for key in ("conversations", "conversation", "messages") if key in fields]
            if len(found) != 1:
                raise TrajectoryRejected(f"it must have one list of turns, but has {' and '.join(found) or 'none'}")
            turns = [_turn(raw, number) for number, raw in enumerate(_read_list(fields[found[0]]), start=1)]
        except UnicodeDecodeError as error:
            raise TrajectoryRejected(f"it is not UTF-8 (byte {error.start + 1})") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise TrajectoryRejected(f"it is not JSON in the expected format: {error}") from error
        return cls(turns=tuple(turns), fields=fields, key=found[0])

    def human(self, text: str) -> Turn:
        """Return a human turn that uses this line's name for the role."""
        like = next((turn for turn in self.turns if turn.role is TurnRole.HUMAN), None)
        form = (like or self.turns[0]).form
        name = like.name if like else "human" if form[0] == "from" else "user"
        raw = Raw(_encode({form[0]: name, form[1]: text}))
        return Turn(role=TurnRole.HUMAN, text=text, tokens=_tokens(text), raw=raw, form=form, name=name)

    def encoded(self, turns: Sequence[Turn]) -> bytes:
        return _encode({**self.fields, self.key: [turn.raw for turn in turns]})


def _turn(raw: Raw, number: int) -> Turn:
    try:
        fields = _read_fields(raw)
    except msgspec.ValidationError:
        raise TrajectoryRejected(f"turn {number} is not an object") from None
    found = [[key for key in keys if key in fields] for keys in (("from", "role"), ("value", "content"))]
    if [len(keys) for keys in found] != [1, 1]:
        raise TrajectoryRejected(
            f"turn {number} must have one role and one text, but has {', '.join(fields) or 'no key'}"
        )
    form = (found[0][0], found[1][0])
    name, text = (_read_any(fields[key]) for key in form)
    role = _ROLES.get(name.strip().lower().replace("-", "_").replace(" ", "_")) if isinstance(name, str) else None
    if role is None:
        raise TrajectoryRejected(f"turn {number} has the role {str(name)[:40]!r}; use one of {', '.join(TurnRole)}")
    values = [bytes(fields[key]) for key in ("tool_calls", "function_call") if key in fields]
    calls = [value.decode() for value in values if value != b"null"]
    if not isinstance(text, str) and not (text is None and calls):
        raise TrajectoryRejected(f"turn {number} has a value of type {type(text).__name__} instead of text")
    said = "\n".join(filter(None, (text, *calls)))
    return Turn(role=role, text=said, tokens=_tokens(said), raw=raw, form=form, name=name)


def _tokens(text: str) -> int:
    return MESSAGE_TOKENS + estimated_text_tokens(text)
