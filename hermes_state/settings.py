"""Markers for fields that operators can set. `gateway/config` reads them.

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True, kw_only=True)
... class QueueSettings:
...     length: Annotated[int, Setting(ge=1, le=100, unit="messages")] = 20
...     pause: float = 0.5
>>> QueueSettings().length
20

`length` is a configuration key; only code sets `pause`. The docstring below a field describes the key to operators.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from annotated_types import Ge, GroupedMetadata, Le


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(GroupedMetadata):
    """Range, unit and default (in words) of a configuration key. With `restart`, changes need a restart."""

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
