"""The OpenAI SDK's client and errors, without the types of every request of its API.

This is the only module that imports private modules of `openai`. The public `import openai` loads the types of all
requests, which takes 11 MB and 0.2 to 0.4 s at every start. Typed resources load theirs when they are first used.
"""

from typing import Final

from agent.model.http import Sdk
from hermes_state.imports import defer

for package in ("openai", "openai.types", "openai.lib"):
    defer(package)

from openai._base_client import DefaultAioHttpClient  # noqa: E402  # after `defer`
from openai._client import AsyncOpenAI  # noqa: E402
from openai._exceptions import APIConnectionError, APIStatusError  # noqa: E402

__all__ = ["OPENAI_SDK", "APIStatusError"]

OPENAI_SDK: Final = Sdk(
    client=AsyncOpenAI, http_client=DefaultAioHttpClient, refusal=APIStatusError, connection_error=APIConnectionError
)
