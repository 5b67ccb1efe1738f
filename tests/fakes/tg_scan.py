"""What the markup parsers share: a cursor over the source, and the text and entities that come out."""

from typing import Any

Entity = dict[str, Any]
"""As in the Bot API: `type`, `offset`, `length` in UTF-16 units, and what the type needs."""
Entities = list[Entity]


class MarkupError(ValueError):
    """The message is what the Bot API would say."""


def u16(text: str) -> int:
    """Length in UTF-16 units."""
    return len(text.encode("utf-16-le")) // 2


class Scanner:
    """Reads `source` from `at` on and collects text and entities; open entities lie on a stack.

    Keys that begin with `_` are the parser's own and leave no trace in the result.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.units = 0
        self.open: Entities = []
        self._text: list[str] = []
        self._entities: Entities = []

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.source)

    @property
    def top(self) -> str | None:
        """Type of the innermost open entity."""
        return self.open[-1]["type"] if self.open else None

    def byte(self, at: int) -> int:
        return len(self.source[:at].encode())

    def ahead(self, count: int) -> str:
        return self.source[self.at : self.at + count]

    def emit(self, text: str, skip: int | None = None) -> None:
        """Add `text` to the result and move on, by its own length unless told otherwise."""
        self._text.append(text)
        self.units += u16(text)
        self.at += len(text) if skip is None else skip

    def begin(self, kind: str, skip: int, **extra: object) -> None:
        self.open.append({"type": kind, "offset": self.units, "_byte": self.byte(self.at), **extra})
        self.at += skip

    def end(self, skip: int = 0, **extra: object) -> Entity:
        """Close the innermost entity; an empty one vanishes."""
        entity = self.open.pop()
        self.at += skip
        length = self.units - entity["offset"]
        if length > 0:
            shown = {key: value for key, value in entity.items() if not key.startswith("_")}
            self._entities.append({**shown, "length": length, **extra})
        return entity

    def result(self) -> tuple[str, Entities]:
        ordered = sorted(self._entities, key=lambda entity: (entity["offset"], -entity["length"]))
        return "".join(self._text), ordered
