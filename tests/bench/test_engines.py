"""A plain turn stays short: on PostgreSQL every statement is a trip."""

import pytest

from bench.engines_bench import MOST_STATEMENTS
from bench.plain_turn import count_on_postgres, count_on_sqlite


def test_a_plain_turn_takes_sqlite_few_statements() -> None:
    assert 10 < count_on_sqlite() <= MOST_STATEMENTS


@pytest.mark.cluster
def test_a_plain_turn_takes_few_trips_to_postgresql(postgres_url: str) -> None:
    assert 5 < count_on_postgres(postgres_url) <= MOST_STATEMENTS
