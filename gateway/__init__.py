"""The daemon: configuration, intake, lanes, commands, delivery and command line.

This package can import every other package.
"""


def installed_version() -> str:
    """Return the version of the installed package, or `unknown` in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # this module is slow to import and rarely needed

    try:
        return version("hermes-gateway")
    except PackageNotFoundError:
        return "unknown"
