"""Protocols that models are spoken to in: one `ChatModel` each.

- `chat_completions`: OpenAI and everything compatible with it
- `responses`: OpenAI's newer API; `openai` holds the common part of these two, and the SDK's client
- `anthropic`: Claude at Anthropic's own API. Its SDK is an extra
- `offline`: the built-in model, which needs no provider

Make a model, `ChatCompletionsModel(Endpoint(…))`, use it through a `ModelClient`, and close it.
"""

import importlib.util
from collections.abc import Mapping
from typing import Final

from hermes_state.imports import defer

defer("httpcore2")  # another transport, which httpx2 imports for certificates

EXTRAS: Final[Mapping[str, str]] = {"anthropic": "anthropic"}
"""Package of each protocol that needs one. Its extra and its target of `make` have the protocol's name."""


def missing_extra(protocol: str) -> str | None:
    """Return advice how to install a protocol's package; None if it is there. Does not import it, for speed."""
    if protocol not in EXTRAS or importlib.util.find_spec(EXTRAS[protocol]) is not None:
        return None
    return (
        f"the protocol {protocol} needs an SDK that is not installed: run `make {protocol}` in a clone, or "
        f"`pip install 'hermes-gateway[{protocol}]'` where the gateway is installed as a package"
    )
