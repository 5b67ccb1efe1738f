"""State of a conversation's compressions: strikes, cooldowns, and the last warning to people.

A session stores the state, and a split copies it. Each change is a function from one state to the next.
"""

from typing import TypeAlias

import msgspec

from agent.context.limits import Limits
from hermes_state.compressions import Layer
from hermes_state.values import Millis

STRIKES_TO_BLOCK = 2
MIN_GAIN_PERCENT = 10
"""Minimum gain in percent. A compression that leaves over 90 % of the earlier size or the threshold is a strike."""
TIMEOUT_LADDER_SECONDS = (60, 300, 900)
NO_MODEL_SECONDS = 600
"""Cooldown in seconds after a lasting failure, such as a rejected key, missing credit or a wrong model name."""
LASTING_FAILURES = frozenset({"auth", "quota", "not_offered", "rejected", "unpriced"})
CooldownKey: TypeAlias = str
"""Key made of `loop` or `hygiene`, the failed route or engine, and the fingerprint (`mark`) of its settings."""


def cooldown_key(layer: Layer, who: str, mark: str) -> CooldownKey:
    """Return the key of a cooldown. Hygiene has its own keys, because it waits for a shorter time than the loop.

    `mark` changes with the settings, because a failed route may work with other settings.
    """
    return f"{'hygiene' if layer == 'hygiene' else 'loop'}:{who}:{mark}"


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    """Pause of a failed summary route or engine. It is kept after it ends, so that the next pause can be longer."""

    until: int
    """End of the pause, in UTC milliseconds."""
    failures: int = 1


class UnverifiedCompression(msgspec.Struct, frozen=True, kw_only=True):
    """A compression that will be judged by the next prompt size that the provider reports."""

    tokens_before: int
    grown: int = 0
    """Tokens added to the prompt while the compression was prepared. They do not count against the compression."""


class ContextState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a conversation's compressions. The defaults describe a new conversation."""

    strikes: int = 0
    blocked_at: int = 0
    """Prompt size at the second strike, in tokens. 0: automatic compression is not blocked."""
    held_at: int = 0
    """Prompt size after `/compress undo`, in tokens. 0: automatic compression is not on hold."""
    awaited: UnverifiedCompression | None = None
    cooldowns: dict[CooldownKey, Cooldown] = {}
    unexplained: tuple[str, ...] = ()
    """Models that rejected even a compressed prompt without giving a reason, so its length was not the problem."""
    pressure_level: int = 0
    """Pressure line in tokens for which the last warning was sent. 0: no warning was sent."""
    owes_notes: bool = False
    """True if the session was compressed and no model has taken notes from it yet."""

    def rebased(self, before: "ContextState", after: "ContextState") -> "ContextState":
        """Return this state, updated with everything that changed from the state `before` to the state `after`."""
        fields = (field for field in self.__struct_fields__ if getattr(after, field) != getattr(before, field))
        return msgspec.structs.replace(self, **{field: getattr(after, field) for field in fields})

    @property
    def is_blocked(self) -> bool:
        return self.blocked_at > 0

    def judged(self, reported: int, threshold: int) -> "ContextState":
        """Judge the last compression by the size of the prompt after it."""
        if self.awaited is None:
            return self
        before, after = self.awaited.tokens_before, reported - self.awaited.grown
        has_helped = after * 100 <= min(before, threshold) * (100 - MIN_GAIN_PERCENT)
        settled = msgspec.structs.replace(self, awaited=None)
        if has_helped:
            return msgspec.structs.replace(settled, strikes=0, blocked_at=0)
        return settled.struck(max(reported, threshold))

    def struck(self, tokens: int) -> "ContextState":
        """Count a compression that did not help. The second in a row blocks automatic compression."""
        strikes = self.strikes + 1
        blocked_at = tokens if strikes >= STRIKES_TO_BLOCK else self.blocked_at
        return msgspec.structs.replace(self, strikes=strikes, blocked_at=blocked_at)

    def rearmed(self, tokens: int, limits: Limits) -> "ContextState":
        """Lift a hold or a block that no longer applies to this prompt.

        A hold ends when the prompt no longer fits. A block ends when the prompt reaches a threshold above `blocked_at`.
        This can happen if the window was smaller at that time, or if the message limit caused the block. If a block
        ended earlier, people would be notified of it twice.
        """
        if not limits.fits(tokens):
            return msgspec.structs.replace(self, held_at=0) if self.held_at else self
        is_outgrown = self.blocked_at < limits.threshold <= tokens
        return msgspec.structs.replace(self, blocked_at=0, strikes=0) if self.is_blocked and is_outgrown else self

    def compressed(self, tokens_before: int, grown: int = 0) -> "ContextState":
        """Record a compression. The next reported prompt size decides whether it helped.

        If several compressions happen before the next report, they are judged together.
        """
        awaited = self.awaited or UnverifiedCompression(tokens_before=tokens_before, grown=grown)
        return msgspec.structs.replace(self, awaited=awaited, held_at=0, pressure_level=0)

    def undone(self, tokens: int) -> "ContextState":
        return msgspec.structs.replace(self, held_at=tokens, awaited=None, strikes=0, blocked_at=0, pressure_level=0)

    def refused_again(self, maker: str) -> "ContextState":
        """Record that a model rejected the compressed prompt as well, without giving a reason."""
        return msgspec.structs.replace(self, unexplained=(*self.unexplained, maker))

    def answered_by(self, maker: str) -> "ContextState":
        """Record that a model answered. After that, a refusal can again be due to the prompt's length."""
        others = tuple(other for other in self.unexplained if other != maker)
        return self if others == self.unexplained else msgspec.structs.replace(self, unexplained=others)

    def told_of(self, level: int) -> "ContextState":
        return msgspec.structs.replace(self, pressure_level=level)

    def is_cooling(self, key: CooldownKey, now: Millis) -> bool:
        cooldown = self.cooldowns.get(key)
        return cooldown is not None and 0 < cooldown.until - now <= TIMEOUT_LADDER_SECONDS[-1] * 1_000

    def failed(self, key: CooldownKey, outcome: str, now: Millis) -> "ContextState":
        """Pause a route or engine after a failure. Repeated failures make the pause longer."""
        failures = (self.cooldowns[key].failures if key in self.cooldowns else 0) + 1
        step = TIMEOUT_LADDER_SECONDS[min(failures, len(TIMEOUT_LADDER_SECONDS)) - 1]
        seconds = NO_MODEL_SECONDS if outcome in LASTING_FAILURES else step
        cooldown = Cooldown(until=now + seconds * 1_000, failures=failures)
        return msgspec.structs.replace(self, cooldowns={**self._cooldowns_beside(key), key: cooldown})

    def answered(self, key: CooldownKey) -> "ContextState":
        others = self._cooldowns_beside(key)
        return self if others == self.cooldowns else msgspec.structs.replace(self, cooldowns=others)

    def _cooldowns_beside(self, key: CooldownKey) -> dict[CooldownKey, Cooldown]:
        """Return the other cooldowns with the same `mark`. Those with a different `mark` are outdated."""
        mark = key.rpartition(":")[2]
        return {
            other: cooldown
            for other, cooldown in self.cooldowns.items()
            if other != key and other.rpartition(":")[2] == mark
        }

    def asked_by_hand(self) -> "ContextState":
        return msgspec.structs.replace(self, cooldowns={}, strikes=0, blocked_at=0, held_at=0)


_decode = msgspec.json.Decoder(ContextState).decode
_encode = msgspec.json.Encoder().encode


def state_of(stored: str | None) -> ContextState:
    """Parse the state that a session stores. A state that cannot be parsed is replaced by the default state."""
    if stored is None:
        return ContextState()
    try:
        return _decode(stored)
    except msgspec.MsgspecError:
        return ContextState()


def stored_form(state: ContextState) -> str:
    return _encode(state).decode()
