"""What the daemon that dies is set up with."""

import pytest

from tests.e2e.protocols import CHAT_COMPLETIONS, ModelProtocol, chosen


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> ModelProtocol:
    """What the daemon and its model speak."""
    return chosen(pytestconfig) or CHAT_COMPLETIONS
