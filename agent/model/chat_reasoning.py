"""Reasoning beside chat completions: collected while it arrives, and handed back in front of the calls it led to.

The API itself has no place for it, so servers have their own: `reasoning_details` (OpenRouter), `reasoning_content`
(DeepSeek, and many local servers) or `reasoning`. A block that is stored is the fields of one message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent.model.replies import replayable
from agent.model.wire import REASONING, WireMessage
from hermes_state.values import Reasoning

_DETAILS: Final = "reasoning_details"
_CONTENT: Final = "reasoning_content"
_TEXTS: Final = (_CONTENT, "reasoning")
_IN_PIECES: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Details that a stream brings piece by piece, and the field that goes on."""


class ReasoningPieces:
    """The reasoning of one reply in the making; `counted` refuses what is no text, and what is too much."""

    def __init__(self, counted: Callable[[object], str]) -> None:
        self._counted = counted
        self._texts: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []
        self._further: list[list[str]] = []
        """How the text of each detail goes on."""

    def add(self, message: Mapping[str, Any], *, is_piece: bool) -> None:
        """Take in what a message, or a piece of one, holds."""
        for key in _TEXTS:
            if text := message.get(key):
                self._texts.setdefault(key, []).append(self._counted(text))
        for detail in message.get(_DETAILS) or ():
            if not (is_piece and self._continued(detail)):
                self._counted(json.dumps(detail))
                self._details.append(dict(detail))
                self._further.append([])

    def _continued(self, piece: Mapping[str, Any]) -> bool:
        """Whether the piece was joined to the one before it: a signature is valid for the whole text only."""
        before = self._details[-1] if self._details else {}
        field = _IN_PIECES.get(str(piece.get("type")))
        if field is None or any(before.get(key) != piece.get(key) for key in ("type", "index")):
            return False
        if not isinstance(before.get(field) or "", str):
            raise TypeError("text is expected here")
        self._further[-1].append(self._counted(piece.get(field) or ""))
        # What every piece says again is not counted again: it is most of a stream of single words.
        news = {key: value for key, value in piece.items() if value not in (None, before.get(key)) and key != field}
        if news:
            self._counted(json.dumps(news))
            before |= news
        return True

    def whole(self, made_by: str) -> Reasoning | None:
        """What is to be stored beside the calls. Details say everything that the text beside them says."""
        fields: dict[str, Any] = {}
        if self._details:
            fields = {_DETAILS: [_joined(*one) for one in zip(self._details, self._further, strict=True)]}
        elif self._texts:
            key, pieces = next(iter(self._texts.items()))
            fields = {key: "".join(pieces)}
        if not fields:
            return None
        return replayable(made_by, [fields])


def _joined(detail: Mapping[str, Any], further: Sequence[str]) -> Mapping[str, Any]:
    if not further:
        return detail
    field = _IN_PIECES[detail["type"]]
    return {**detail, field: (detail.get(field) or "") + "".join(further)}


def put_back(messages: Sequence[WireMessage], *, always: bool) -> None:
    """Give each message of the list its reasoning in the server's own form.

    `always`: every answer gets some, empty where there is none. DeepSeek insists, also for the answers of other models.
    """
    for message in messages:
        for fields in message.pop(REASONING, ()):
            message |= fields
        if always and message["role"] == "assistant" and not any(key in message for key in (_DETAILS, *_TEXTS)):
            message[_CONTENT] = ""
