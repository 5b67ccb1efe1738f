"""Protocols that models are spoken to in: one `ChatModel` each.

- `chat_completions`: OpenAI and everything compatible with it
- `responses`: OpenAI's newer API; `openai` holds the common part of these two, and the SDK's client
- `anthropic`: Claude at Anthropic's own API. Its SDK is an extra
- `offline`: the built-in model, which needs no provider

A model is made of its settings, `ChatCompletionsModel(EndpointSettings(model=…, api_key=…))`, used through a
`ModelClient`, and closed.
"""

import importlib.util
from collections.abc import Mapping
from typing import Final

from hermes_state.imports import defer

defer("httpcore2")  # another transport, which httpx2 imports for certificates

EXTRAS: Final[Mapping[str, str]] = {"anthropic": "anthropic"}
"""Package that a protocol needs beside the gateway's own, by protocol.

The protocol's name is also that of the package's extra and of the target of `make` in a clone.
"""


def missing_extra(protocol: str) -> str | None:
    """Advice how to install what the protocol needs; None if nothing is missing.

    Imports nothing: an SDK takes a second.
    """
    if protocol not in EXTRAS or importlib.util.find_spec(EXTRAS[protocol]) is not None:
        return None
    return (
        f"the protocol {protocol} needs an SDK that is not installed: run `make {protocol}` in a clone, or "
        f"`pip install 'hermes-gateway[{protocol}]'` where the gateway is installed as a package"
    )
