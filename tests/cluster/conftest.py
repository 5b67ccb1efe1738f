"""Clusters for tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, cluster_in
from tests.cluster.waits import report

__all__ = ["cluster", "report"]


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    """A cluster with Telegram, a model and a database. No node is started yet."""
    async with cluster_in(tmp_path, postgres_url) as made:
        yield made
