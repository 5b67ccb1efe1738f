"""Model profiles: what is learned of a model on a route while it is used, its counting of tokens and its window."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Self

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none, select_one
from hermes_state.values import Millis, Tokens

MIN_SCALE, MAX_SCALE = 0.2, 5.0
"""Bounds of `Calibration.scale`: no tokenizer is further than this from the one that estimates are fitted to."""
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 50.0, 10_000.0
"""Bounds of an image's price, in tokens; what providers charge lies well inside."""
MAX_REFUSED = 200
"""Refused images that are remembered for a model."""
MAX_LIMIT_AGE_MS = 7 * 86_400_000
"""Age from which on a limit that a refusal taught is tried again, in milliseconds: a week."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration of our estimates to a model's counts."""

    scale: Annotated[float, msgspec.Meta(ge=MIN_SCALE, le=MAX_SCALE)] = 1.0
    """Reported tokens for each estimated one."""
    image_tokens: Annotated[float, msgspec.Meta(ge=MIN_IMAGE_TOKENS, le=MAX_IMAGE_TOKENS)] = 1_000.0
    """The price of one image, between what providers charge for a small and for a large one until it is learned."""
    samples: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of reports that `scale` was learned from."""
    image_samples: Annotated[int, msgspec.Meta(ge=0)] = 0


_DEFAULT_CALIBRATION = Calibration()


class LearnedImageLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of images that a provider's refusals have taught; None: nothing was refused for that."""

    mark: str = ""
    """Fingerprint of the route's configuration then."""
    learned_at: int = 0
    """Time of the newest of these limits, in milliseconds; they are tried anew some time later."""
    takes_none: bool = False
    max_side: int | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    refused: tuple[int, ...] = ()
    """Images that cannot be processed, by attachment id; they stay refused."""

    def holding(self, mark: str, now: Millis) -> Self:
        """Limits that hold with the configuration of `mark` now."""
        is_valid = self.mark == mark and 0 <= now - self.learned_at < MAX_LIMIT_AGE_MS
        return self if is_valid else type(self)(mark=mark, refused=self.refused)

    def merged(self, others: Self, now: Millis) -> Self:
        """The limits with what `others` have learned besides: each the lower of both."""
        others = others.holding(self.mark, now)
        return msgspec.structs.replace(
            self,
            takes_none=self.takes_none or others.takes_none,
            max_side=_lower(self.max_side, others.max_side),
            max_bytes=_lower(self.max_bytes, others.max_bytes),
            max_count=_lower(self.max_count, others.max_count),
            refused=tuple(dict.fromkeys((*others.refused, *self.refused)))[-MAX_REFUSED:],
        )


def _lower(known: int | None, other: int | None) -> int | None:
    return min((limit for limit in (known, other) if limit is not None), default=None)


_decode_image_limits = msgspec.json.Decoder(LearnedImageLimits).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSize:
    """Sizes that a provider stated for its model when it was asked; None: it said nothing of that."""

    context_length: Tokens | None
    max_output_tokens: Tokens | None
    at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One row of `model_profiles`; a model that is not known yet has the defaults."""

    calibration: Calibration = _DEFAULT_CALIBRATION
    learned_context: Tokens | None = None
    """The smallest context window that the provider has stated when it refused prompts."""
    learned_input: Tokens | None = None
    """The smallest bound of a prompt alone that it has stated so."""
    learned_beside: Tokens | None = None
    """The context length that was in force then: beside another one what was learned does not apply."""
    offer: OfferedSize | None = None

    def window(self, in_force: Tokens) -> Tokens:
        """The context length that is in force, or what was learned beside it if that is smaller."""
        if self.learned_context is None or self.learned_beside != in_force:
            return in_force
        return min(in_force, self.learned_context)

    def max_input(self, in_force: Tokens, known: Tokens | None) -> Tokens | None:
        """The longest prompt that is `known`, or learned beside the context length in force if that is smaller."""
        learned = self.learned_input if self.learned_beside == in_force else None
        return min((bound for bound in (known, learned) if bound is not None), default=None)

    def learned(self, stated: Tokens, *, beside: Tokens, is_of_input: bool) -> "ModelProfile":
        """The profile with a stated window, or a bound of prompts alone, unless a smaller one is known.

        What was learned beside another context length goes.
        """
        known = self if self.learned_beside == beside else replace(self, learned_context=None, learned_input=None)
        if is_of_input:
            return replace(known, learned_input=min(stated, known.learned_input or stated), learned_beside=beside)
        return replace(known, learned_context=min(stated, known.learned_context or stated), learned_beside=beside)

    def merged(self, known: "ModelProfile", in_force: Tokens) -> "ModelProfile":
        """The profile with what is `known` besides of bounds beside the length in force."""
        if known.learned_beside != in_force:
            return self
        merged = self
        for bound, is_of_input in ((known.learned_context, False), (known.learned_input, True)):
            if bound is not None:
                merged = merged.learned(bound, beside=in_force, is_of_input=is_of_input)
        return merged


# Purpose: the profile of one model, `{}`: with its calibration or without.
_LOAD = """
SELECT {} learned_context, learned_input, learned_beside, offered_context AS "offer.context_length",
  offered_output AS "offer.max_output_tokens", offered_at AS "offer.at"
FROM model_profiles WHERE route = ? AND model = ?
"""
# Purpose: the output limit that a provider has stated between two moments.
_LOAD_OUTPUT_CAP = """
SELECT learned_output FROM model_profiles WHERE route = ? AND model = ? AND learned_output_at BETWEEN ? AND ?
"""
# Purpose: a row for a model that has none yet.
_ENSURE = """
INSERT INTO model_profiles (route, model, calibration, updated_at) VALUES (?, ?, '{}', ?)
ON CONFLICT (route, model) DO UPDATE SET updated_at = excluded.updated_at
"""


def load_image_limits(db: Connection, route: str, model: str) -> LearnedImageLimits:
    """Limits of images that were learned for a model; none where they cannot be read."""
    query = "SELECT image_facts FROM model_profiles WHERE route = ? AND model = ?"
    with suppress(msgspec.DecodeError):
        return scalar_or_none(db, _decode_image_limits, query, (route, model)) or LearnedImageLimits()
    return LearnedImageLimits()


@locks("profiles")
def save_image_limits(
    db: Connection, route: str, model: str, learned: LearnedImageLimits, now: Millis
) -> LearnedImageLimits:
    """Store what was learned of images, with what is stored besides; returns both."""
    merged = learned.merged(load_image_limits(db, route, model), now)
    _save(db, route, model, now, image_facts=msgspec.json.encode(merged).decode())
    return merged


def load_profile(db: Connection, route: str, model: str) -> ModelProfile:
    """The profile of a model. A calibration that cannot be read counts as none: it is learned again."""
    try:
        found = select_one(db, ModelProfile, _LOAD.format("calibration,"), (route, model))
    except msgspec.DecodeError:
        found = select_one(db, ModelProfile, _LOAD.format(""), (route, model))
    return found or ModelProfile()


@locks("profiles")
def save_offer(db: Connection, route: str, model: str, offer: OfferedSize) -> None:
    """Store the sizes that the provider states, in place of earlier ones."""
    sizes = {"offered_context": offer.context_length, "offered_output": offer.max_output_tokens}
    _save(db, route, model, offer.at, **sizes, offered_at=offer.at)


@locks("profiles")
def save_calibration(db: Connection, route: str, model: str, calibration: Calibration, now: Millis) -> None:
    """Store a calibration; the learned window stays."""
    _save(db, route, model, now, calibration=msgspec.json.encode(calibration).decode())


def load_output_cap(db: Connection, route: str, model: str, now: Millis) -> int | None:
    """Most tokens of a model's answer, if its provider has stated them within a week: limits are raised, too."""
    return scalar_or_none(db, int, _LOAD_OUTPUT_CAP, (route, model, now - MAX_LIMIT_AGE_MS, now))


@locks("profiles")
def learn_output_cap(db: Connection, route: str, model: str, cap: int, now: Millis) -> None:
    """Store an output limit that the provider stated when it refused a higher one."""
    _save(db, route, model, now, learned_output=cap, learned_output_at=now)


@locks("profiles")
def learn_context(
    db: Connection, route: str, model: str, stated: Tokens, beside: Tokens, now: Millis, *, is_of_input: bool = False
) -> None:
    """Store what the provider stated, unless a smaller one is known, see `ModelProfile.learned`."""
    known = load_profile(db, route, model).learned(stated, beside=beside, is_of_input=is_of_input)
    bounds = {"learned_context": known.learned_context, "learned_input": known.learned_input}
    _save(db, route, model, now, **bounds, learned_beside=beside)


def _save(db: Connection, route: str, model: str, now: Millis, **values: object) -> None:
    """Put values into columns of a model's row, in place of the ones before."""
    db.execute(_ENSURE, (route, model, now))
    columns = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE model_profiles SET {columns} WHERE route = ? AND model = ?", (*values.values(), route, model))
