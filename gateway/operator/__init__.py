"""Tools of the operator: control socket, `doctor`, probes of services, look-ups and spending reports.

    ask(state.control_socket, "status")     # in the command line
    serve_control(path, handlers)           # in the daemon

`socket.py` is both ends of the control socket, `handlers.py` the daemon's answers. `lookups.py` and `spending.py`
answer the same from a running daemon and from a database at rest, as rows that `--json` prints; `render.py` makes
text of spending, also for chats. `doctor.py` runs the checks, with `probes.py` for services; both belong to the
command line.
"""
