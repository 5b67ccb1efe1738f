"""Marks for the fields of a part's settings that operators may set, as `gateway/config` reads them.

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True, kw_only=True)
... class QueueSettings:
...     length: Annotated[int, Setting(ge=1, le=100, unit="messages")] = 20
...     pause: float = 0.5
>>> QueueSettings().length
20

`length` is a key of the configuration; `pause` is a bound that only code sets. The docstring below a field is what
people read about it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from annotated_types import Ge, GroupedMetadata, Le


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(GroupedMetadata):
    """Range, unit and default in words of a key. `restart`: a changed value waits for the next start."""

    ge: float | None = None
    le: float | None = None
    unit: str = ""
    default_text: str = ""
    restart: bool = False

    def __iter__(self) -> Iterator[object]:
        if self.ge is not None:
            yield Ge(self.ge)
        if self.le is not None:
            yield Le(self.le)
