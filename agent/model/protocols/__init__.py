"""Provider protocols, each with its own `ChatModel`.

- `chat_completions`: OpenAI and compatible servers
- `responses`: OpenAI's newer API; `openai` contains the code that these two protocols share
- `anthropic`: Claude at Anthropic's own API; the SDK is an optional extra
- `offline`: the built-in model, which needs no provider

Create a model with `ChatCompletionsModel(Endpoint(…))`, call it through a `ModelClient`, and close it.
"""

import importlib.util
from collections.abc import Mapping
from typing import Final

from hermes_state.imports import defer

defer("httpcore2")  # an unused transport, which httpx2 imports to load certificates

EXTRAS: Final[Mapping[str, str]] = {"anthropic": "anthropic"}
"""Python package that each protocol needs. The pip extra and the `make` target have the protocol's name."""


def missing_extra(protocol: str) -> str | None:
    """Return advice on how to install a protocol's package, or None if it is installed. Does not import the package."""
    if protocol not in EXTRAS or importlib.util.find_spec(EXTRAS[protocol]) is not None:
        return None
    return (
        f"the SDK for the protocol {protocol} is not installed: run `make {protocol}` in a clone of the repository, or "
        f"`pip install 'hermes-gateway[{protocol}]'`"
    )
