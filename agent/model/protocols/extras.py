"""What not everybody needs is not installed with the gateway: which protocol needs it, and how to get it."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPackage:
    """A package beside the gateway's own."""

    module: str
    target: str
    """Of `make`, for those who run from a clone."""


EXTRAS: Final[Mapping[str, OptionalPackage]] = {"anthropic": OptionalPackage(module="anthropic", target="anthropic")}
"""By protocol. The name of an extra of the package is the protocol's."""


def missing_extra(protocol: str) -> str | None:
    """What to do before the protocol can be spoken; None if nothing. Imports nothing: an SDK takes a second."""
    extra = EXTRAS.get(protocol)
    if extra is None or importlib.util.find_spec(extra.module) is not None:
        return None
    return (
        f"the protocol {protocol} needs an SDK that is not installed: run `make {extra.target}` in a clone, or "
        f"`pip install 'hermes-gateway[{protocol}]'` where the gateway is installed as a package"
    )
