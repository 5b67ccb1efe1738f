"""The interface of context engines: `ContextEngine`, which plugins subclass (docs/reference/plugins.md).

Its methods accept and return message lists in the format of the chat completions API.
"""

import json
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from agent.context.job import CompressionRequest

ListMessage: TypeAlias = dict[str, Any]  # the provider's JSON, as plugins receive it


class EngineError(Exception):
    """An engine failed. The message completes the sentence `The context engine …`."""


class ContextEngine(ABC):
    """Keeps a conversation inside its context window. Each conversation has its own object.

    In a subclass, every method except `get_tool_schemas` can be `async`. Sync methods run in a thread, one at a time.
    Only `compress` and tools are allowed to take long.
    """

    last_prompt_tokens: int = 0
    last_completion_tokens: int = 0
    last_total_tokens: int = 0
    threshold_tokens: int = 0
    context_length: int = 0
    compression_count: int = 0
    threshold_percent: float = 0.75
    """Share of `context_length` at which to compress."""
    protect_first_n: int = 3
    protect_last_n: int = 6

    _requested: CompressionRequest | None = None

    # ---- required methods

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name for logs and people."""

    @abstractmethod
    def update_from_response(self, usage: dict[str, Any]) -> None:
        """Store the provider's usage of a reply: `prompt_tokens`, `completion_tokens`, `total_tokens`."""

    @abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Return True to compress before a prompt of this size is sent. None means `last_prompt_tokens`."""

    @abstractmethod
    def compress(
        self, messages: list[ListMessage], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[ListMessage]:
        """Return a shorter, valid list to replace `messages`. Reuse the objects of unchanged messages."""

    # ---- optional methods

    def should_compress_preflight(self, messages: list[ListMessage]) -> bool:
        """Return True to compress before the first model call of a turn, even if `should_compress` returns False."""
        return False

    def has_content_to_compress(self, messages: list[ListMessage]) -> bool:
        """Return False if a compression would save nothing, whatever the prompt's size."""
        return True

    def on_session_start(self, session_id: str, **kwargs: Any) -> None:  # noqa: B027  optional
        """Receive the current session. The keyword `reason` is `started`, `resumed`, `compression` or `undo`.

        After a compression or an undo, `session_id` is a child of the session in the keyword `parent`.
        """

    def on_session_end(self, session_id: str, messages: list[ListMessage]) -> None:  # noqa: B027  optional
        """Handle the end of the conversation. This is not called after a turn or a compression."""

    def on_session_reset(self) -> None:
        """Reset the counts of the conversation that `/new` ended."""
        self.last_prompt_tokens = self.last_completion_tokens = self.last_total_tokens = 0
        self.compression_count = 0
        self._requested = None

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the engine's tools for the model: `name`, `description`, `parameters`."""
        return []

    def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """Run a tool of this engine, and return its result as JSON text."""
        return json.dumps({"error": f"Unknown tool: {name}"})

    def get_status(self) -> dict[str, Any]:
        """Return the prompt size, the limits, the usage and the compression count. `usage_percent` is at most 100."""
        used = self.last_prompt_tokens * 100 / self.context_length if self.context_length > 0 else 0.0
        return {
            "last_prompt_tokens": self.last_prompt_tokens,
            "threshold_tokens": self.threshold_tokens,
            "context_length": self.context_length,
            "usage_percent": min(100.0, used),
            "compression_count": self.compression_count,
        }

    def update_model(
        self, model: str, context_length: int, base_url: str = "", api_key: str = "", provider: str = ""
    ) -> None:
        """Switch to another model, or to another context length of the same model."""
        self.context_length = context_length
        self.threshold_tokens = int(context_length * self.threshold_percent)

    # ---- requests of an engine; do not override these methods

    def request_compression(self, reason: str, focus_topic: str | None = None) -> None:
        """Request a compression before the next model call. It is skipped while automatic compression is held back."""
        self._requested = CompressionRequest(reason=reason, focus=focus_topic)

    def take_request(self) -> CompressionRequest | None:
        """Return the request made since the last call of this method, and clear it."""
        requested, self._requested = self._requested, None
        return requested
