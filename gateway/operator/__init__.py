"""Tools for the operator: control socket, `doctor`, service probes, look-ups and spending reports.

    ask(state.control_socket, "status")     # in the command line
    serve_control(path, handlers)           # in the daemon

`socket.py` has both ends of the control socket, `handlers.py` the daemon's answers. `lookups.py` and `spending.py`
give the same results from a running daemon and from a database that no daemon has open. `doctor.py` runs all checks
in the command line, and uses `probes.py` to test services. `checks.py` contains the checks that a running daemon
makes.
"""
