"""Kill points of a run: just before or just after the writer's k-th commit or the k-th request to a fake service."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast

Place = Literal["commit", "request"]
Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill point: `before` the commit or request takes effect, or `after`, but before the daemon learns of it."""

    place: Place
    number: int
    """Number of the commit or request, counted from 1 in the process that is killed."""
    side: Side

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse text such as `commit:17:before`. Raises `ValueError` for any other form."""
        place, number, side = text.split(":")
        if place not in ("commit", "request") or side not in ("before", "after"):
            raise ValueError(f"{text!r} is not a kill point; write commit:17:before or request:5:after")
        return cls(place=cast("Place", place), number=int(number), side=cast("Side", side))

    def __str__(self) -> str:
        return f"{self.place}:{self.number}:{self.side}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Commits and requests of a run without a kill, in order. The names are only for people."""

    commits: Sequence[str]
    requests: Sequence[str]

    def kills(self) -> list[Kill]:
        """Return every kill point."""
        lengths: dict[Place, int] = {"commit": len(self.commits), "request": len(self.requests)}
        sides: tuple[Side, ...] = ("before", "after")
        return [
            Kill(place=place, number=number, side=side)
            for place, length in lengths.items()
            for number in range(1, length + 1)
            for side in sides
        ]

    def sample(self, count: int, seed: int) -> list[Kill]:
        """Return `count` different kill points, chosen with `seed`, or all of them if there are fewer."""
        kills = self.kills()
        return random.Random(seed).sample(kills, min(count, len(kills)))

    def name_of(self, kill: Kill) -> str:
        """Return what probably happens at a kill point. Two runs can differ."""
        names = self.commits if kill.place == "commit" else self.requests
        return names[kill.number - 1] if kill.number <= len(names) else "?"
