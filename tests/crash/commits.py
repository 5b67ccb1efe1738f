"""Kills at commits: the process dies at the writer's k-th commit.

`CRASH_KILL` is `commit:K:before` or `commit:K:after`, or `NAME:K:before` for the k-th commit of a function. It can list
several kill points, separated by commas; the first one that is reached kills the process. `CRASH_SIGNAL` replaces
`SIGKILL`. `CRASH_ONCE` is a file path: only one of the processes that share it dies. `CRASH_COMMITS` is a file that
gets a line for each commit with the functions that are committed together.
"""

import os
import signal
from collections import Counter
from pathlib import Path
from sys import _getframe

from hermes_state.store import sql
from hermes_state.store.sql import Connection

_real_commit = sql.commit_batch
_counts: Counter[str] = Counter()


def _commit_batch(db: Connection) -> None:
    names = _functions()
    points = {"commit", *names}
    _counts.update(points)
    reached = {f"{point}:{_counts[point]}" for point in points}
    _note("+".join(names))
    _kill_at(reached, "before")
    _real_commit(db)
    _kill_at(reached, "after")


def _kill_at(reached: set[str], side: str) -> None:
    wanted = os.environ.get("CRASH_KILL", "").split(",")
    if any(f"{point}:{side}" in wanted for point in reached) and is_first(os.environ.get("CRASH_ONCE")):
        os.kill(os.getpid(), signal.Signals[os.environ.get("CRASH_SIGNAL", "SIGKILL")])


def is_first(path: str | None) -> bool:
    """Return True for the first process that asks for this file, and always if `path` is None."""
    if path is None:
        return True
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _note(line: str) -> None:
    path = os.environ.get("CRASH_COMMITS")
    if path:
        with open(path, "a") as file:
            file.write(line + "\n")


def _functions() -> list[str]:
    """Return the names of the functions in the batch that is being committed."""
    writes = _getframe(2).f_locals.get("batch", ())
    return [getattr(getattr(write, "fn", None), "__name__", "?") for write in writes] or ["?"]


def wrap_commits() -> None:
    """Count this process's commits from now on, and die at the commit that the environment names."""
    sql.commit_batch = _commit_batch
