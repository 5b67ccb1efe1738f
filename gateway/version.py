"""The version of this gateway."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The version of the installed distribution; `unknown` when run from a bare checkout."""
    try:
        return version("hermes-gateway")
    except PackageNotFoundError:
        return "unknown"
