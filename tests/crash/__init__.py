"""Crash tests: the daemon is killed at every commit and request, and must still keep every promise.

Each scenario (`scenarios.py`) first runs without a kill, to list its kill points in order (`kills.py`): the commits of
the store's writer, and the requests to the fake services. Then it runs once for each kill point, with SIGKILL before or
after it (`commits.py` for commits, `world.py` for requests) and a restart. The scenario's invariants are checked at the
end.

    make test                                       some kill points; the first lines of output show HERMES_CRASH_SEED
    make crash                                      every kill point, and pairs with a second kill during recovery
    make crash ARGS="-k compressing"                only one scenario
    make crash ARGS="--protocol anthropic"          another protocol between daemon and model
    KILL=commit:17:before make crash ARGS="-k talking"    repeat one kill; separate two kills by a comma
    HERMES_CRASH_SEED=123 make test ARGS=tests/crash    repeat the same sample

A failure prints the kill point, the commits and requests of each process, and the end of the daemon's log.
"""
