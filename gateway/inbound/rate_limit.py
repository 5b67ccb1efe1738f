"""Rate limit of one person's commands that run at once: they wait behind nothing that would slow them down."""

from collections import deque

from hermes_state.values import InboundMessage, Millis, UserRef

COMMANDS_PER_MINUTE = 30
"""Most commands of one person within a minute.

Far more than people type; few enough that neither the database nor a platform's flood control suffers.
"""

TOO_FAST = (
    f"That is more than {COMMANDS_PER_MINUTE} commands within a minute, so I did not take this one; please wait a "
    "little. /stop still ends a running turn."
)

_WINDOW_MS = 60_000
_MAX_SENDERS = 1_000
"""People remembered; of those whose last command is longest ago nothing is known."""


class CommandRateLimiter:
    """Sliding window over each person's commands.

    By the platform's time: what comes late, after an outage, was not written fast.
    """

    def __init__(self) -> None:
        self._recent: dict[UserRef, deque[tuple[str, Millis]]] = {}
        """Event and time of each person's newest commands; whoever gave one last is at the end."""

    def admits(self, message: InboundMessage) -> bool:
        """Tell whether the command may run; one that ran before, and comes again, may."""
        sender = message.sender.ref
        recent = self._recent.pop(sender, None) or deque(maxlen=COMMANDS_PER_MINUTE)
        self._recent[sender] = recent
        if len(self._recent) > _MAX_SENDERS:
            del self._recent[next(iter(self._recent))]
        if any(event_ref == message.event_ref for event_ref, _ in recent):
            return True
        if len(recent) == COMMANDS_PER_MINUTE and abs(message.sent_at - recent[0][1]) < _WINDOW_MS:
            return False
        recent.append((message.event_ref, message.sent_at))
        return True
