"""Fixtures that more than one package's tests use."""

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
from tests.sampling import sample  # registers the profiles of Hypothesis before a test module asks for one

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

# Without the values of all locals: a crash that a test provokes would cost seconds of formatting.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Event loops as the gateway's, for the tests that run parts of it in their own process."""
    return {"loop": loop_factory(os.environ) or asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # next to nothing of what is imported and collected is garbage


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # it stays to the end: no collection walks over it again


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty database of its own, open for the length of the test."""
    opened = await open_store(tmp_path / "home" / "state.db")
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """Address of a database of the test's own that has the newest schema."""
    with reused_databases(postgres).database() as url:
        yield url


if IS_POSTGRES:

    @pytest.fixture(autouse=True)
    def databases_end_with_their_test() -> Iterator[None]:
        """Drop what a test opened as files; a database takes eight megabytes."""
        yield
        drop_databases()


@pytest.fixture(autouse=True)
def every_message_list_is_legal() -> Iterator[None]:
    """Whatever a test sends to a fake model server must be legal and tidy."""
    FINDINGS.clear()
    yield
    assert untidy(FINDINGS) == []
