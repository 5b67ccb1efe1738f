"""Tools of the operator: control socket, `doctor`, probes of services, look-ups and spending reports.

    ask(state.control_socket, "status")     # in the command line
    serve_control(path, handlers)           # in the daemon

`socket.py` is both ends of the control socket, `handlers.py` the daemon's answers. `lookups.py` and `spending.py`
answer the same from a running daemon and from a database at rest. `doctor.py` runs all checks in the command line, with
`probes.py` for services; `checks.py` has those that a running daemon makes.
"""
