"""Commits of a daemon that may be killed: the writer's k-th commit kills the process.

`CRASH_KILL` is `commit:K:before` or `commit:K:after`; `CRASH_COMMITS` names a file that gets a line for each commit,
the functions that are committed together.
"""

import os
import signal
from sqlite3 import Connection
from sys import _getframe

from hermes_state.store import batch

_real_commit = batch.commit_batch
_count = 0


def _commit_batch(db: Connection) -> None:
    global _count
    _count += 1
    _note(_functions())
    _kill_at(f"commit:{_count}:before")
    _real_commit(db)
    _kill_at(f"commit:{_count}:after")


def _kill_at(point: str) -> None:
    if os.environ.get("CRASH_KILL") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def _note(line: str) -> None:
    path = os.environ.get("CRASH_COMMITS")
    if path:
        with open(path, "a") as file:
            file.write(line + "\n")


def _functions() -> str:
    """What the batch being committed consists of; only for people, so that not finding it out breaks nothing."""
    writes = _getframe(2).f_locals.get("batch", ())
    names = (getattr(getattr(write, "fn", None), "__name__", "?") for write in writes)
    return "+".join(names) or "?"


def wrap_commits() -> None:
    """Count the commits of this process from now on, and die at the one that the environment names."""
    batch.commit_batch = _commit_batch
