"""How much of a random or a wide world a run sees: a sample under `make test`, far more under `make fuzz`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import hypothesis
import pytest

# Without deadlines: how long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("fuzz", hypothesis.settings.get_profile("default"), max_examples=20_000)
hypothesis.settings.load_profile("default")

Test = TypeVar("Test", bound=Callable[..., object])
Cell = TypeVar("Cell")
Column = TypeVar("Column")


def sample(few: int, many: int) -> int:
    """Number of random cases of a test: `few` under `make test`, `many` under `make fuzz`."""
    return many if hypothesis.settings().max_examples >= 20_000 else few


def examples(few: int, many: int = 3_000, **options: Any) -> Callable[[Test], Test]:
    """Decorator of a property test that sees `few` examples under `make test` and `many` under `make fuzz`.

    `options`: further settings of Hypothesis.
    """
    settings = hypothesis.settings(max_examples=sample(few, many), **options)
    return lambda test: pytest.mark.fuzz(settings(test))


def every(step: int, cells: Sequence[Cell]) -> list[Cell]:
    """Each `step`-th cell of a table, the first included; all of them under `make fuzz`."""
    return list(cells[:: sample(step, 1)])


def crossed(step: int, rows: Iterable[Cell], columns: Sequence[Column]) -> list[tuple[Cell, Column]]:
    """Cells of a table: each `step`-th of every row, another start in each row; all of them under `make fuzz`."""
    step = sample(step, 1)
    return [(one, column) for row, one in enumerate(rows) for column in columns[row % step :: step]]
