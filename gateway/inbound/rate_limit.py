"""Rate limits: most messages and commands of one person within a minute or so."""

from hermes_state.values import InboundMessage, Millis, UserRef

COMMANDS_PER_MINUTE = 30
"""Most commands of one person within a minute that run at once.

Far more than people type, and few enough for the database and a platform's flood control.
"""

TOO_FAST = (
    f"That is more than {COMMANDS_PER_MINUTE} commands within a minute, so I did not take this one; please wait a "
    "little. /stop still ends a running turn."
)
TOO_MANY = (
    "That is more than {limit} messages within a minute: I did not take this one, and take none of yours for the next "
    "{seconds} seconds. Nothing of what you send until then is kept; please send it again afterwards."
)

MINUTE_MS = 60_000


class RateLimiter:
    """Counts each person's events in windows of one length; the first event after a window opens the next one.

    Counts by the platform's time: messages that arrive together after an outage were not written fast.
    """

    def __init__(self, window_ms: int = MINUTE_MS) -> None:
        self._window_ms = window_ms
        self._windows: dict[UserRef, tuple[Millis, set[str]]] = {}
        """Beginning of each person's window and the events in it; the person of the newest event is at the end."""

    def full_since(self, message: InboundMessage, limit: int) -> Millis | None:
        """Return the beginning of a window that has `limit` events already (0: any number); None: the message passes.

        A message that has passed passes again.
        """
        if not limit:
            return None
        begun, events = self._windows.pop(message.sender.ref, (message.sent_at, set()))
        if abs(message.sent_at - begun) >= self._window_ms:
            begun, events = message.sent_at, set()
        self._windows[message.sender.ref] = begun, events
        if len(self._windows) > 1_000:
            del self._windows[next(iter(self._windows))]
        if len(events) >= limit and message.event_ref not in events:
            return begun
        events.add(message.event_ref)
        return None
