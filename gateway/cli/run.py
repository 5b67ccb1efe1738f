"""`hermes-gateway run`: the daemon in the foreground."""

import typer

from gateway.config import process_environment


def run() -> None:
    """Run the gateway in the foreground until SIGTERM or Ctrl-C.

    With nothing configured it serves the web chat on 127.0.0.1 with the offline model. SIGHUP reloads the
    configuration. Exit codes: 0 clean, 75 token or database held by another process, 78 configuration.
    """
    from gateway.process import serve  # what writes the logs takes longer to import than all of the command line

    raise typer.Exit(serve(process_environment()))
