"""Where a run may be killed: just before or just after the k-th commit of the writer or the k-th request at a fake."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast

Place = Literal["commit", "request"]
Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill point. `before`: it takes no effect. `after`: it took effect, and nobody here learns of it."""

    place: Place
    number: int
    """From 1 up, in the order of the first life."""
    side: Side

    @classmethod
    def parse(cls, text: str) -> Self:
        """`commit:17:before` and the like. Raises `ValueError`."""
        place, number, side = text.split(":")
        if place not in ("commit", "request") or side not in ("before", "after"):
            raise ValueError(f"{text!r} is not a kill point; write commit:17:before or request:5:after")
        return cls(place=cast("Place", place), number=int(number), side=cast("Side", side))

    def __str__(self) -> str:
        return f"{self.place}:{self.number}:{self.side}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a run without a kill went through, in order; the names are for people."""

    commits: Sequence[str]
    requests: Sequence[str]

    def kills(self) -> list[Kill]:
        """Every kill point."""
        lengths: dict[Place, int] = {"commit": len(self.commits), "request": len(self.requests)}
        sides: tuple[Side, ...] = ("before", "after")
        return [
            Kill(place=place, number=number, side=side)
            for place, length in lengths.items()
            for number in range(1, length + 1)
            for side in sides
        ]

    def sample(self, count: int, seed: int) -> list[Kill]:
        """`count` different kill points in the order of `seed`; all of them when there are not so many."""
        kills = self.kills()
        return random.Random(seed).sample(kills, min(count, len(kills)))

    def name_of(self, kill: Kill) -> str:
        """What happens at a kill point, as far as two runs are alike."""
        names = self.commits if kill.place == "commit" else self.requests
        return names[kill.number - 1] if kill.number <= len(names) else "?"
