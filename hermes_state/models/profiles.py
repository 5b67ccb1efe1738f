"""Model profiles: token calibration, context windows and image limits learned for a model on a route."""

from contextlib import suppress
from typing import Annotated, Self

import msgspec
from msgspec.structs import replace

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none, select_one
from hermes_state.values import Millis, Tokens

MIN_SCALE, MAX_SCALE = 0.2, 5.0
"""Bounds of `Calibration.scale`. The counts of real tokenizers differ from our estimates by less than this."""
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 50.0, 10_000.0
"""Bounds of an image's size in tokens. The sizes that providers document are well within these bounds."""
MAX_LIMIT_AGE_MS = 7 * 86_400_000
"""Age in milliseconds (one week) after which a limit learned from a refusal is no longer trusted."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration of token estimates for a model."""

    scale: Annotated[float, msgspec.Meta(ge=MIN_SCALE, le=MAX_SCALE)] = 1.0
    """Number of tokens that the provider reports per estimated token."""
    image_tokens: Annotated[float, msgspec.Meta(ge=MIN_IMAGE_TOKENS, le=MAX_IMAGE_TOKENS)] = 1_000.0
    """Number of tokens per image. The default lies between the sizes of small and large images."""
    samples: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of provider reports from which `scale` was learned."""
    image_samples: Annotated[int, msgspec.Meta(ge=0)] = 0


class LearnedImageLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Image limits learned from a provider's refusals. A limit is None if no refusal has revealed it."""

    mark: str = ""
    """Fingerprint of the route's configuration when the limits were learned."""
    learned_at: int = 0
    """Time when the newest limit was learned, in milliseconds. Limits are valid for `MAX_LIMIT_AGE_MS`."""
    takes_none: bool = False
    max_side: int | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    refused: tuple[int, ...] = ()
    """Attachment ids of images that cannot be processed. These entries do not expire."""

    def holding(self, mark: str, now: Millis) -> Self:
        """Return the limits that are still valid at `now` for the configuration with the fingerprint `mark`."""
        is_valid = self.mark == mark and 0 <= now - self.learned_at < MAX_LIMIT_AGE_MS
        return self if is_valid else type(self)(mark=mark, refused=self.refused)

    def merged(self, others: Self, now: Millis) -> Self:
        """Return both sets of limits combined. If both have a limit, the lower value is kept."""
        others = others.holding(self.mark, now)
        return msgspec.structs.replace(
            self,
            takes_none=self.takes_none or others.takes_none,
            max_side=_lower(self.max_side, others.max_side),
            max_bytes=_lower(self.max_bytes, others.max_bytes),
            max_count=_lower(self.max_count, others.max_count),
            refused=tuple(dict.fromkeys((*others.refused, *self.refused)))[-200:],
        )


def _lower(known: int | None, other: int | None) -> int | None:
    return min((limit for limit in (known, other) if limit is not None), default=None)


class OfferedSize(msgspec.Struct, frozen=True, kw_only=True):
    """Context length and output limit that the provider states for the model. A limit is None if it is not stated."""

    context_length: Tokens | None
    max_output_tokens: Tokens | None
    at: Millis


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `model_profiles`. A model without a row has the defaults."""

    calibration: Calibration = msgspec.field(default_factory=Calibration)
    learned_context: Tokens | None = None
    """Smallest context window that the provider stated when it refused a prompt."""
    learned_input: Tokens | None = None
    """Smallest limit for the prompt alone, without the answer, that the provider stated when it refused a prompt."""
    learned_beside: Tokens | None = None
    """Context length that was configured when the limits were learned. With another length, they do not apply."""
    offer: OfferedSize | None = None

    def window(self, in_force: Tokens) -> Tokens:
        """Return the configured context length `in_force`, or the window learned with this length if it is smaller."""
        if self.learned_context is None or self.learned_beside != in_force:
            return in_force
        return min(in_force, self.learned_context)

    def max_input(self, in_force: Tokens, known: Tokens | None) -> Tokens | None:
        """Return the prompt limit: the smaller of `known` and the limit learned with the context length `in_force`."""
        learned = self.learned_input if self.learned_beside == in_force else None
        return min((bound for bound in (known, learned) if bound is not None), default=None)

    def learned(self, stated: Tokens, *, beside: Tokens, is_of_input: bool) -> "ModelProfile":
        """Return an updated profile, in which `stated` is the window or prompt limit that a provider stated.

        A smaller limit that was learned earlier is kept. Limits learned with another context length are dropped.
        """
        known = self if self.learned_beside == beside else replace(self, learned_context=None, learned_input=None)
        if is_of_input:
            return replace(known, learned_input=min(stated, known.learned_input or stated), learned_beside=beside)
        return replace(known, learned_context=min(stated, known.learned_context or stated), learned_beside=beside)

    def merged(self, known: "ModelProfile", in_force: Tokens) -> "ModelProfile":
        """Return the profile with the limits of `known`, if these were learned with the context length `in_force`."""
        if known.learned_beside != in_force:
            return self
        merged = self
        for bound, is_of_input in ((known.learned_context, False), (known.learned_input, True)):
            if bound is not None:
                merged = merged.learned(bound, beside=in_force, is_of_input=is_of_input)
        return merged


# Purpose: load the profile of a model, with or without its calibration (`{}`).
_LOAD = """
SELECT {} learned_context, learned_input, learned_beside, offered_context AS "offer.context_length",
  offered_output AS "offer.max_output_tokens", offered_at AS "offer.at"
FROM model_profiles WHERE route = ? AND model = ?
"""


def load_image_limits(db: Connection, route: str, model: str) -> LearnedImageLimits:
    """Return the image limits learned for a model, or the defaults if they are unreadable."""
    query = "SELECT image_facts FROM model_profiles WHERE route = ? AND model = ?"
    with suppress(msgspec.DecodeError):
        stored = scalar_or_none(db, str, query, (route, model))
        return msgspec.json.decode(stored, type=LearnedImageLimits) if stored else LearnedImageLimits()
    return LearnedImageLimits()


@locks("profiles")
def save_image_limits(
    db: Connection, route: str, model: str, learned: LearnedImageLimits, now: Millis
) -> LearnedImageLimits:
    """Merge image limits with the stored limits. Return the result."""
    merged = learned.merged(load_image_limits(db, route, model), now)
    _save(db, route, model, now, image_facts=msgspec.json.encode(merged).decode())
    return merged


def load_profile(db: Connection, route: str, model: str) -> ModelProfile:
    """Return the profile of a model. An unreadable calibration is replaced with the default and learned again."""
    try:
        found = select_one(db, ModelProfile, _LOAD.format("calibration,"), (route, model))
    except msgspec.DecodeError:
        found = select_one(db, ModelProfile, _LOAD.format(""), (route, model))
    return found or ModelProfile()


@locks("profiles")
def save_offer(db: Connection, route: str, model: str, offer: OfferedSize) -> None:
    """Store the context length and output limit that the provider states. They replace earlier values."""
    sizes = {"offered_context": offer.context_length, "offered_output": offer.max_output_tokens}
    _save(db, route, model, offer.at, **sizes, offered_at=offer.at)


@locks("profiles")
def save_calibration(db: Connection, route: str, model: str, calibration: Calibration, now: Millis) -> None:
    _save(db, route, model, now, calibration=msgspec.json.encode(calibration).decode())


def load_output_cap(db: Connection, route: str, model: str, now: Millis) -> int | None:
    """Return the output limit that the provider stated within the last week, if any. Older limits may have changed."""
    query = """SELECT learned_output FROM model_profiles
    WHERE route = ? AND model = ? AND learned_output_at BETWEEN ? AND ?"""
    return scalar_or_none(db, int, query, (route, model, now - MAX_LIMIT_AGE_MS, now))


@locks("profiles")
def learn_output_cap(db: Connection, route: str, model: str, cap: int, now: Millis) -> None:
    """Store the output limit that a provider stated when it refused a higher limit."""
    _save(db, route, model, now, learned_output=cap, learned_output_at=now)


@locks("profiles")
def learn_context(
    db: Connection, route: str, model: str, stated: Tokens, beside: Tokens, now: Millis, *, is_of_input: bool = False
) -> None:
    """Store a window or prompt limit that a provider stated, unless a smaller one is known."""
    known = load_profile(db, route, model).learned(stated, beside=beside, is_of_input=is_of_input)
    bounds = {"learned_context": known.learned_context, "learned_input": known.learned_input}
    _save(db, route, model, now, **bounds, learned_beside=beside)


def _save(db: Connection, route: str, model: str, now: Millis, **values: object) -> None:
    row = "INSERT INTO model_profiles (route, model, calibration, updated_at) VALUES (?, ?, '{}', ?)"
    db.execute(f"{row} ON CONFLICT (route, model) DO UPDATE SET updated_at = excluded.updated_at", (route, model, now))
    columns = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE model_profiles SET {columns} WHERE route = ? AND model = ?", (*values.values(), route, model))
