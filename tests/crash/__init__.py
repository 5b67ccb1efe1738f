"""The daemon is killed everywhere, and every promise is kept.

One scenario (`scenario.py`) is run without a kill to list what can be killed at: the commits of the store's writer and
the requests at the fake services, in order (`kills.py`). Then it is run once for each of these places and each side
of it, with a kill -9 there (`sitecustomize/` at commits, `world.py` at requests) and a restart; `invariants.py` says
what must hold at the end.

    make test                                       sixty kills; the head of the run shows HERMES_CRASH_SEED
    make crash                                      every kill, and sixty pairs: a second one during recovery
    KILL=commit:17:before make crash                one kill again; two with a comma between them
    HERMES_CRASH_SEED=123 make test ARGS=tests/crash    the same sixty again

A failure prints the kill, what was committed and asked for in each life, and the end of the daemon's log.
"""
