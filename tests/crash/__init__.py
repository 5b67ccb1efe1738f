"""The daemon is killed everywhere, and every promise is kept.

A scenario (`scenarios.py`: people talking, and a conversation that outgrows its window) is run without a kill to list
what can be killed at: the commits of the store's writer and the requests at the fake services, in order (`kills.py`).
Then it is run once for each of these places and each side of it, with a kill -9 there (`commits.py` at commits,
`world.py` at requests) and a restart; its invariants say what must hold at the end.

    make test                                       some kills; the head of the run shows HERMES_CRASH_SEED
    make crash                                      every kill, and pairs: a second one during recovery
    make crash ARGS="-k compressing"                of one scenario
    make crash ARGS="--protocol anthropic"          with the model spoken to over another protocol
    KILL=commit:17:before make crash ARGS="-k talking"    one kill again; two with a comma between them
    HERMES_CRASH_SEED=123 make test ARGS=tests/crash    the same sample again

A failure prints the kill, what was committed and asked for in each life, and the end of the daemon's log.
"""
