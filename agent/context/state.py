"""State of a conversation's compressions: strikes, cooldowns and what its people were told already.

The value is stored with the session and copied by a split, so that a restart forgets none of it. Every change is a
function from one state to the next.
"""

from typing import TypeAlias

import msgspec

from agent.context.limits import Limits
from hermes_state.compressions import Layer
from hermes_state.values import Millis

STRIKES_TO_BLOCK = 2
MIN_GAIN_PERCENT = 10
"""A pass that frees less of the prompt, or leaves the next one closer to the threshold, is a strike."""
TIMEOUT_LADDER_SECONDS = (60, 300, 900)
NO_MODEL_SECONDS = 600
"""After a failure that a minute does not mend: a refused key, an empty account, a wrong name."""
LASTING_FAILURES = frozenset({"auth", "quota", "not_offered", "rejected", "unpriced"})

CooldownKey: TypeAlias = str
"""`loop` or `hygiene`, who is left alone, and the mark of the settings behind that."""


def cooldown_key(layer: Layer, who: str, mark: str) -> CooldownKey:
    """Hygiene cools down by itself: it waits less long than the loop, so its timeouts say nothing about the loop's.

    `mark` changes with the settings: with other settings, what failed before may work.
    """
    return f"{'hygiene' if layer == 'hygiene' else 'loop'}:{who}:{mark}"


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    """A summary route, or an engine, that failed. Kept beyond its end: who fails again rests longer."""

    until: int
    """UTC milliseconds."""
    failures: int = 1


class UnverifiedCompression(msgspec.Struct, frozen=True, kw_only=True):
    """A compression whose effect the next reported prompt will show."""

    tokens_before: int
    grown: int = 0
    """Tokens that the prompt has grown by while it was prepared: nothing of them was in it."""


class ContextState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a conversation's compressions. The default is a conversation to which nothing has happened."""

    strikes: int = 0
    blocked_at: int = 0
    """Prompt tokens at which the second strike fell; 0: not blocked."""
    held_at: int = 0
    """Prompt tokens after `/compress undo`; 0: not held."""
    awaited: UnverifiedCompression | None = None
    cooldowns: dict[CooldownKey, Cooldown] = {}
    unexplained: tuple[str, ...] = ()
    """Models that refused a compressed prompt as they had refused the one before it: its length was not the reason."""
    pressure_level: int = 0
    """The highest line, in tokens, that people were told the prompt has crossed."""
    owes_notes: bool = False
    """The session was compressed before notes were taken of its view."""

    def rebased(self, before: "ContextState", after: "ContextState") -> "ContextState":
        """This state with what was changed from `before` to `after`, which were read and made a while ago."""
        fields = (field for field in self.__struct_fields__ if getattr(after, field) != getattr(before, field))
        return msgspec.structs.replace(self, **{field: getattr(after, field) for field in fields})

    # ---- strikes

    @property
    def is_blocked(self) -> bool:
        return self.blocked_at > 0

    def judged(self, reported: int, threshold: int) -> "ContextState":
        """After a report: whether the last compression has helped."""
        if self.awaited is None:
            return self
        before, after = self.awaited.tokens_before, reported - self.awaited.grown
        has_helped = after * 100 <= min(before, threshold) * (100 - MIN_GAIN_PERCENT)
        settled = msgspec.structs.replace(self, awaited=None)
        if has_helped:
            return msgspec.structs.replace(settled, strikes=0, blocked_at=0)
        return settled.struck(max(reported, threshold))

    def struck(self, tokens: int) -> "ContextState":
        """One more pass that did not help; the second in a row blocks."""
        strikes = self.strikes + 1
        blocked_at = tokens if strikes >= STRIKES_TO_BLOCK else self.blocked_at
        return msgspec.structs.replace(self, strikes=strikes, blocked_at=blocked_at)

    def rearmed(self, tokens: int, limits: Limits) -> "ContextState":
        """Return the state without the hold after an undo, or the block, that no longer applies to this prompt.

        A hold ends when the prompt no longer fits. A block outlasts that, so that people are told of it once; it ends
        when the prompt reaches a threshold that it was below: its window was a smaller one, or messages were counted.
        """
        if not limits.fits(tokens):
            return msgspec.structs.replace(self, held_at=0) if self.held_at else self
        is_outgrown = self.blocked_at < limits.threshold <= tokens
        return msgspec.structs.replace(self, blocked_at=0, strikes=0) if self.is_blocked and is_outgrown else self

    def compressed(self, tokens_before: int, grown: int = 0) -> "ContextState":
        """A compression is about to be committed. A route that failed meanwhile goes on cooling down.

        Passes that follow one another without a report between them are judged as one.
        """
        awaited = self.awaited or UnverifiedCompression(tokens_before=tokens_before, grown=grown)
        return msgspec.structs.replace(self, awaited=awaited, held_at=0, pressure_level=0)

    def undone(self, tokens: int) -> "ContextState":
        """After `/compress undo`: what was taken back must not be compressed again at once."""
        return msgspec.structs.replace(self, held_at=tokens, awaited=None, strikes=0, blocked_at=0, pressure_level=0)

    def refused_again(self, maker: str) -> "ContextState":
        """A model has refused the compressed prompt, too, and given no reason."""
        return msgspec.structs.replace(self, unexplained=(*self.unexplained, maker))

    def answered_by(self, maker: str) -> "ContextState":
        """A model has answered: what it refuses next may be too long again."""
        others = tuple(other for other in self.unexplained if other != maker)
        return self if others == self.unexplained else msgspec.structs.replace(self, unexplained=others)

    def told_of(self, level: int) -> "ContextState":
        """People know how full the window is, up to this many tokens."""
        return msgspec.structs.replace(self, pressure_level=level)

    # ---- cooldowns

    def is_cooling(self, key: CooldownKey, now: Millis) -> bool:
        cooldown = self.cooldowns.get(key)
        return cooldown is not None and 0 < cooldown.until - now <= TIMEOUT_LADDER_SECONDS[-1] * 1_000

    def failed(self, key: CooldownKey, outcome: str, now: Millis) -> "ContextState":
        """A summary could not be had: leave who was asked alone for a while, longer each time."""
        failures = (self.cooldowns[key].failures if key in self.cooldowns else 0) + 1
        step = TIMEOUT_LADDER_SECONDS[min(failures, len(TIMEOUT_LADDER_SECONDS)) - 1]
        seconds = NO_MODEL_SECONDS if outcome in LASTING_FAILURES else step
        cooldown = Cooldown(until=now + seconds * 1_000, failures=failures)
        return msgspec.structs.replace(self, cooldowns={**self._cooldowns_beside(key), key: cooldown})

    def answered(self, key: CooldownKey) -> "ContextState":
        """A summary came from who was asked: the failures are forgotten."""
        others = self._cooldowns_beside(key)
        return self if others == self.cooldowns else msgspec.structs.replace(self, cooldowns=others)

    def _cooldowns_beside(self, key: CooldownKey) -> dict[CooldownKey, Cooldown]:
        """Those of others under the same settings. Nobody asks for those of earlier settings any more."""
        mark = _mark_of(key)
        return {
            other: cooldown for other, cooldown in self.cooldowns.items() if other != key and _mark_of(other) == mark
        }

    def asked_by_hand(self) -> "ContextState":
        """`/compress` clears what holds the automatic layers back."""
        return msgspec.structs.replace(self, cooldowns={}, strikes=0, blocked_at=0, held_at=0)


def _mark_of(key: CooldownKey) -> str:
    return key.rpartition(":")[2]


_decode = msgspec.json.Decoder(ContextState).decode
_encode = msgspec.json.Encoder().encode


def state_of(stored: str | None) -> ContextState:
    """The state in a session's column. One that cannot be read (another engine's) counts as none."""
    if stored is None:
        return ContextState()
    try:
        return _decode(stored)
    except msgspec.MsgspecError:
        return ContextState()


def stored_form(state: ContextState) -> str:
    return _encode(state).decode()
