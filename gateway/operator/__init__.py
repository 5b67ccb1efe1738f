"""Tools for the operator: control socket, `doctor`, service probes, look-ups and spending reports.

    ask(state.control_socket, "status")     # in the command line
    serve_control(path, handlers)           # in the daemon

`socket.py` has both ends of the control socket, and `handlers.py` computes the daemon's responses. `lookups.py` and
`spending.py` give the same results whether a daemon is running or the command reads the database. `doctor.py` runs all
checks in the command line, and uses `probes.py` to test services. `checks.py` contains the checks that a running daemon
makes.
"""
