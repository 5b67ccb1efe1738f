"""Errors of PostgreSQL by their codes: trouble with the server or with a session, and what is a function's own.

Codes and classes: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

import psycopg

_SERVERS = frozenset({"08", "28", "40", "53", "55", "57", "58", "72", "F0"})
"""Classes of trouble with the server or with others: connections, rights to come in, a transaction that was broken off
for another one's sake, too little memory or room, locks, what operators end, the system, old snapshots, settings."""

_SESSIONS = frozenset({"0A000", "25006", "26000", "42P05"})
"""Codes that another session may not meet: a plan that a migration has outdated, a server that is read-only (or has
become a replica), and prepared statements that a pooler has lost or kept."""

_ENDED = frozenset({"25P03", "25P04"})
"""Codes of a session that the server has ended for its transaction: it was silent or open for too long."""

DAMAGE = frozenset({"XX001", "XX002"})
"""Codes of a damaged table or index."""

RIGHTS = "42501"
"""Code of a right that the role does not have."""


def is_trouble(error: BaseException) -> bool:
    """True for trouble that has nothing to do with the statement: it may run again, and so may its neighbours.

    Limits that a statement's own values have passed (class 54) are none: it would fail for ever.
    """
    code = _code(error)
    if code is None:  # of the library: there is no server to ask
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code[:2] in _SERVERS or code in _SESSIONS or code in _ENDED


def ends_session(error: BaseException) -> bool:
    """True for trouble that stays for as long as the session does."""
    return _code(error) in _SESSIONS


def _code(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None
