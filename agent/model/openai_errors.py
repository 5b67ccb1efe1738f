"""What the OpenAI SDK raises, as our errors; the same for every endpoint that it calls."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import httpx2
import openai

from agent.model.provider_errors import status_error, stream_error, text_of_error
from hermes_state.errors import ModelError, ModelTimeout, ModelUnavailable, NotOffered, ReplyMalformed

_NEWER_LIMIT = re.compile(r"max_tokens\b.{0,80}\buse\b.{0,10}max_completion_tokens", re.IGNORECASE)
"""Servers that pass on what OpenAI said may leave its codes out."""
_UNSUPPORTED_ENCRYPTION = re.compile(r"encrypted[ _]content is not supported", re.IGNORECASE)
_MISSING_REASONING = re.compile(r"reasoning_content.{0,60}must be passed back", re.IGNORECASE | re.DOTALL)
_REASONING = re.compile(r"\b(?:reasoning|thinking|encrypted[ _]content)", re.IGNORECASE)


class Refusal(StrEnum):
    """What about a request a provider does not take, where the same can be asked in another way."""

    LIMIT_NAME = "limit_name"
    """The output limit goes by another name there."""
    STREAM_OPTIONS = "stream_options"
    """A stream cannot be asked to end with what it used: it does so anyway, or never."""
    ENCRYPTED_REASONING = "encrypted_reasoning"
    """The model has no reasoning that could be sent along."""
    MISSING_REASONING = "missing_reasoning"
    """Every answer has to say what was thought before it, if only that nothing was."""
    REPLAYED_REASONING = "replayed_reasoning"
    """Reasoning that came from there is not taken back: it was made for another account, say."""


@contextmanager
def errors_translated() -> Iterator[None]:
    """What the SDK raises while a call is made or its answer is read becomes a kind of `ModelError`."""
    try:
        yield
    except (openai.APITimeoutError, httpx2.TimeoutException) as error:
        raise ModelTimeout("the provider stopped answering") from error
    except (openai.APIConnectionError, httpx2.HTTPError) as error:
        raise ModelUnavailable("the connection to the provider failed") from error
    except openai.APIStatusError as error:
        raise status_error(error.status_code, error.response.headers, error.body) from error
    except openai.APIError as error:
        raise stream_error(error.body) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplyMalformed("the provider's answer is not JSON") from error


def refusal_of(error: ModelError) -> Refusal | None:
    """What the provider did not take, if asking in another way may help."""
    cause = error.__cause__
    if type(error) not in (ModelError, NotOffered) or not isinstance(cause, openai.APIStatusError):
        return None
    text, param = text_of_error(cause.body), str(cause.param or "")
    if (cause.code == "unsupported_parameter" and param == "max_tokens") or _NEWER_LIMIT.search(text):
        return Refusal.LIMIT_NAME
    if "stream_options" in text or param.startswith("stream_options"):
        return Refusal.STREAM_OPTIONS
    if param.startswith("include") or _UNSUPPORTED_ENCRYPTION.search(text):
        return Refusal.ENCRYPTED_REASONING
    if _MISSING_REASONING.search(text):
        return Refusal.MISSING_REASONING
    if cause.code == "invalid_encrypted_content" or _REASONING.search(text):
        return Refusal.REPLAYED_REASONING
    return None
