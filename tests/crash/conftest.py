"""Fixtures for crash tests."""

import pytest

from tests.e2e.protocols import CHAT_COMPLETIONS, ModelProtocol, chosen


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> ModelProtocol:
    """Protocol between the daemon and its model."""
    return chosen(pytestconfig) or CHAT_COMPLETIONS
