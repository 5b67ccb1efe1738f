"""Shared parts of the markup parsers: a cursor in the source, and the resulting text and entities."""

from typing import Any

Entity = dict[str, Any]
"""Entity in the Bot API's format: `type`, `offset` and `length` in UTF-16 units, and fields that depend on the type."""
Entities = list[Entity]


class MarkupError(ValueError):
    """Invalid markup. The exception's text is the Bot API's error text."""


def u16(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text.encode("utf-16-le")) // 2


class Scanner:
    """Scanner of `source` from position `at`, which collects text and entities. Open entities form a stack.

    Entity keys that begin with `_` are internal and do not appear in the result.
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
        """Add `text` to the result, and move on by `skip` or else by its length."""
        self._text.append(text)
        self.units += u16(text)
        self.at += len(text) if skip is None else skip

    def begin(self, kind: str, skip: int, **extra: object) -> None:
        self.open.append({"type": kind, "offset": self.units, "_byte": self.byte(self.at), **extra})
        self.at += skip

    def end(self, skip: int = 0, **extra: object) -> Entity:
        """Close the innermost entity. An empty entity is dropped."""
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
