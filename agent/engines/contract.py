"""The contract of context engines: `ContextEngine`, which plugins subclass (docs/plugins.md).

Its methods take and return message lists in the form of the chat completions API.
"""

import json
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from agent.context.job import CompressionRequest

ListMessage: TypeAlias = dict[str, Any]  # the provider's JSON, in the hands of code that is not ours


class ContextEngine(ABC):
    """Keeps one conversation inside its window. There is an object for each conversation.

    Every method but `get_tool_schemas` may be `async` in a subclass. Sync ones are called in a thread, one at a time;
    none may take long but `compress`.
    """

    last_prompt_tokens: int = 0
    last_completion_tokens: int = 0
    last_total_tokens: int = 0
    threshold_tokens: int = 0
    context_length: int = 0
    compression_count: int = 0
    threshold_percent: float = 0.75
    """Share of `context_length`."""
    protect_first_n: int = 3
    protect_last_n: int = 6

    _requested: CompressionRequest | None = None

    # ---- what every engine does

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for logs and people."""

    @abstractmethod
    def update_from_response(self, usage: dict[str, Any]) -> None:
        """Takes a reply's usage: `prompt_tokens`, `completion_tokens`, `total_tokens`, as the provider counted them."""

    @abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """True: compress before a prompt of this size; None stands for `last_prompt_tokens`."""

    @abstractmethod
    def compress(
        self, messages: list[ListMessage], current_tokens: int | None = None, focus_topic: str | None = None
    ) -> list[ListMessage]:
        """A shorter legal list that stands for `messages`. Keep the objects of messages that stay as they are."""

    # ---- what an engine may do

    def should_compress_preflight(self, messages: list[ListMessage]) -> bool:
        """True: compress before the first model call of a turn, even if `should_compress` says no."""
        return False

    def has_content_to_compress(self, messages: list[ListMessage]) -> bool:
        """False: compressing would be in vain, whatever the size."""
        return True

    def on_session_start(self, session_id: str, **kwargs: Any) -> None:  # noqa: B027  optional
        """A session begins or is taken up: `reason` is `started`, `resumed`, `compression` or `undo`.

        After a compression or its undo `session_id` is the child, and `parent` the session that it continues.
        """

    def on_session_end(self, session_id: str, messages: list[ListMessage]) -> None:  # noqa: B027  optional
        """A conversation has really ended; never after a turn, nor at a compression."""

    def on_session_reset(self) -> None:
        """`/new`: what was counted belongs to a conversation that is over."""
        self.last_prompt_tokens = self.last_completion_tokens = self.last_total_tokens = 0
        self.compression_count = 0
        self._requested = None

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Tools that the engine gives to the model: `name`, `description`, `parameters`."""
        return []

    def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """The result of one of its tools as JSON text."""
        return json.dumps({"error": f"Unknown tool: {name}"})

    def get_status(self) -> dict[str, Any]:
        """Five figures about the window; `usage_percent` is at most 100."""
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
        """Another model answers from now on, or the same one with another window."""
        self.context_length = context_length
        self.threshold_tokens = int(context_length * self.threshold_percent)

    # ---- what an engine may ask for; not to be overridden

    def request_compression(self, reason: str, focus_topic: str | None = None) -> None:
        """Asks for a compression before the next model call. It happens only if nothing holds compressions back."""
        self._requested = CompressionRequest(reason=reason, focus=focus_topic)

    def take_request(self) -> CompressionRequest | None:
        """Returns the request that was made since the last call, and forgets it. For whoever runs the engine."""
        requested, self._requested = self._requested, None
        return requested
