"""Size of random and table tests: a sample with `make test`, and many more cases with `make fuzz`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import hypothesis
import pytest

# No deadlines, because the time for an example depends on the machine's load.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("fuzz", hypothesis.settings.get_profile("default"), max_examples=20_000)
hypothesis.settings.load_profile("default")

Test = TypeVar("Test", bound=Callable[..., object])
Cell = TypeVar("Cell")
Column = TypeVar("Column")


def sample(few: int, many: int) -> int:
    """Return the number of random cases: `few` with `make test`, `many` with `make fuzz`."""
    return many if hypothesis.settings().max_examples >= 20_000 else few


def examples(few: int, many: int = 3_000, **options: Any) -> Callable[[Test], Test]:
    """Decorate a property test to use `few` examples with `make test` and `many` with `make fuzz`.

    `options` are additional settings for Hypothesis.
    """
    settings = hypothesis.settings(max_examples=sample(few, many), **options)
    return lambda test: pytest.mark.fuzz(settings(test))


def every(step: int, cells: Sequence[Cell]) -> list[Cell]:
    """Return each `step`-th cell of a table, starting with the first. With `make fuzz`, return all cells."""
    return list(cells[:: sample(step, 1)])


def crossed(step: int, rows: Iterable[Cell], columns: Sequence[Column]) -> list[tuple[Cell, Column]]:
    """Return each `step`-th cell of every row, with a different start per row. With `make fuzz`, return all cells."""
    step = sample(step, 1)
    return [(one, column) for row, one in enumerate(rows) for column in columns[row % step :: step]]
