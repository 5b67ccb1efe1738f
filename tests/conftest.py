"""Fixtures for the tests of several packages."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from gateway.daemon.process import loop_factory
from hermes_state.store.writer import Store
from tests.cluster.waits import pytest_terminal_summary
from tests.crash.seed import pytest_configure, pytest_configure_node, pytest_report_header
from tests.databases import IS_POSTGRES, drop_databases, open_store
from tests.e2e.protocols import pytest_addoption
from tests.fakes.llm_http import FINDINGS
from tests.fakes.llm_legality import untidy
from tests.postgres import Postgres, postgres
from tests.reused_databases import reused_databases
from tests.sampling import sample  # registers the Hypothesis profiles before a test module uses them

__all__ = [
    "every_message_list_is_legal",
    "postgres",
    "pytest_addoption",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_terminal_summary",
    "sample",
    "store",
]

# Do not print the values of local variables, because formatting a provoked crash would take seconds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the gateway's event loop factory, for tests that run parts of the gateway in their own process."""
    return {"loop": loop_factory(os.environ) or asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # imports and collection create almost no garbage


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # these objects live until the end, so the collector can ignore them


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty database for one test, which is open during the test."""
    opened = await open_store(tmp_path / "home" / "state.db")
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """Address of a database for one test, with the newest schema."""
    with reused_databases(postgres).database() as url:
        yield url


if IS_POSTGRES:

    @pytest.fixture(autouse=True)
    def databases_end_with_their_test() -> Iterator[None]:
        """Drop the databases that replace the test's files. A database takes eight megabytes."""
        yield
        drop_databases()


@pytest.fixture(autouse=True)
def every_message_list_is_legal() -> Iterator[None]:
    """Check that everything a test sends to a fake model server is legal and tidy."""
    FINDINGS.clear()
    yield
    assert untidy(FINDINGS) == []
