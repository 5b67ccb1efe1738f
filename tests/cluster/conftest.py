from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, cluster_in
from tests.cluster.waits import report

__all__ = ["cluster", "report"]


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster with Telegram, a model and a database, or the one that a module names. No node is started yet."""
    async with getattr(request.module, "CLUSTER", cluster_in)(tmp_path, postgres_url) as made:
        yield made
