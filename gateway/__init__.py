"""The daemon: configuration, intake, lanes, commands, delivery and command line.

This package can import every other package.
"""


def installed_version() -> str:
    """Return the version of the installed distribution; `unknown` in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import and rarely needed

    try:
        return version("hermes-gateway")
    except PackageNotFoundError:
        return "unknown"
