"""Longest waits that the cluster tests measured. They are printed after the run for people to read, and not
asserted."""

from collections.abc import Callable

import pytest

_WAIT = "longest wait"
Report = Callable[[str, float], None]


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Return a function that records an event and the longest wait for an answer, in seconds."""
    return lambda what, seconds: record_property(_WAIT, f"{seconds:5.1f} s  {what}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    waits = [value for one in reports for name, value in one.user_properties if name == _WAIT]
    if waits:
        terminalreporter.section("longest waits for an answer")
        for line in waits:
            terminalreporter.write_line(str(line))
