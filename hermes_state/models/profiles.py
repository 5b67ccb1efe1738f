"""Model profiles: what is learned of a model on a route while it is used, its counting of tokens and its window."""

from dataclasses import dataclass, replace
from functools import partial
from sqlite3 import Connection
from typing import Annotated

import msgspec

from hermes_state.store.sql import scalar_or_none, select_one
from hermes_state.values import Millis, Tokens

MIN_SCALE, MAX_SCALE = 0.2, 5.0
"""Bounds of `Calibration.scale`: no tokenizer is further than this from the one that estimates are fitted to."""
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 50.0, 10_000.0
"""Bounds of an image's price, in tokens; what providers charge lies well inside."""
MAX_OUTPUT_CAP_AGE_MS = 7 * 86_400_000
"""Age from which on a stated output limit is tried again, in milliseconds: a week."""


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


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about images that a provider's refusals have taught; None: nothing was refused for that."""

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
        """The profile with a stated window, or a bound of prompts alone; what was learned beside another one goes."""
        known = self if self.learned_beside == beside else replace(self, learned_context=None, learned_input=None)
        if is_of_input:
            return replace(known, learned_input=stated, learned_beside=beside)
        return replace(known, learned_context=stated, learned_beside=beside)


# Purpose: the profile of one model, `{}`: with its calibration or without.
_LOAD = """
SELECT {} learned_context, learned_input, learned_beside, offered_context AS "offer.context_length",
  offered_output AS "offer.max_output_tokens", offered_at AS "offer.at"
FROM model_profiles WHERE route = ? AND model = ?
"""
# Purpose: a calibration, in place of the one before.
_SAVE_CALIBRATION = """
INSERT INTO model_profiles (route, model, calibration, updated_at) VALUES (?, ?, ?, ?)
ON CONFLICT (route, model) DO UPDATE SET calibration = excluded.calibration, updated_at = excluded.updated_at
"""
# Purpose: keep a stated window or bound of prompts if it is smaller than what is known, or if that no longer applies.
_LEARN = """
INSERT INTO model_profiles (route, model, calibration, learned_context, learned_input, learned_beside, updated_at)
VALUES (?, ?, '{}', ?, ?, ?, ?)
ON CONFLICT (route, model) DO UPDATE SET updated_at = excluded.updated_at, learned_beside = excluded.learned_beside,
  learned_context = CASE WHEN learned_beside IS NOT excluded.learned_beside THEN excluded.learned_context
    ELSE min(ifnull(learned_context, excluded.learned_context), ifnull(excluded.learned_context, learned_context)) END,
  learned_input = CASE WHEN learned_beside IS NOT excluded.learned_beside THEN excluded.learned_input
    ELSE min(ifnull(learned_input, excluded.learned_input), ifnull(excluded.learned_input, learned_input)) END
"""
# Purpose: sizes that a provider states, in place of the ones before.
_SAVE_OFFER = """
INSERT INTO model_profiles (route, model, calibration, offered_context, offered_output, offered_at, updated_at)
VALUES (?, ?, '{}', ?, ?, ?, ?)
ON CONFLICT (route, model) DO UPDATE SET updated_at = excluded.updated_at, offered_at = excluded.offered_at,
  offered_context = excluded.offered_context, offered_output = excluded.offered_output
"""


# Purpose: an output limit that a provider has stated, in place of the one before.
_LEARN_OUTPUT_CAP = """
INSERT INTO model_profiles (route, model, calibration, learned_output, learned_output_at, updated_at)
VALUES (?, ?, '{}', ?, ?, ?)
ON CONFLICT (route, model) DO UPDATE SET updated_at = excluded.updated_at, learned_output = excluded.learned_output,
  learned_output_at = excluded.learned_output_at
"""
# Purpose: the output limit that a provider has stated after a moment.
_LOAD_OUTPUT_CAP = """
SELECT learned_output FROM model_profiles WHERE route = ? AND model = ? AND learned_output_at > ?
"""


# Purpose: facts about images, in place of the ones before.
_SAVE_IMAGE_FACTS = """
INSERT INTO model_profiles (route, model, calibration, image_facts, updated_at) VALUES (?, ?, '{}', ?, ?)
ON CONFLICT (route, model) DO UPDATE SET image_facts = excluded.image_facts, updated_at = excluded.updated_at
"""


def load_image_facts(db: Connection, route: str, model: str) -> ImageFacts:
    """Facts about images for a model; none where they cannot be read."""
    query = "SELECT image_facts FROM model_profiles WHERE route = ? AND model = ?"
    try:
        return scalar_or_none(db, partial(msgspec.json.decode, type=ImageFacts), query, (route, model)) or ImageFacts()
    except msgspec.DecodeError:
        return ImageFacts()


def save_image_facts(db: Connection, route: str, model: str, facts: ImageFacts, now: Millis) -> None:
    """Store what was learned of images, in place of what was before."""
    db.execute(_SAVE_IMAGE_FACTS, (route, model, msgspec.json.encode(facts).decode(), now))


def load_profile(db: Connection, route: str, model: str) -> ModelProfile:
    """The profile of a model. A calibration that cannot be read counts as none: it is learned again."""
    try:
        found = select_one(db, ModelProfile, _LOAD.format("calibration,"), (route, model))
    except msgspec.DecodeError:
        found = select_one(db, ModelProfile, _LOAD.format(""), (route, model))
    return found or ModelProfile()


def save_offer(db: Connection, route: str, model: str, offer: OfferedSize) -> None:
    """Store the sizes that the provider states, in place of earlier ones."""
    db.execute(_SAVE_OFFER, (route, model, offer.context_length, offer.max_output_tokens, offer.at, offer.at))


def save_calibration(db: Connection, route: str, model: str, calibration: Calibration, now: Millis) -> None:
    """Store a calibration; the learned window stays."""
    db.execute(_SAVE_CALIBRATION, (route, model, msgspec.json.encode(calibration).decode(), now))


def load_output_cap(db: Connection, route: str, model: str, now: Millis) -> int | None:
    """Most tokens of a model's answer, if its provider has stated them within a week: limits are raised, too."""
    return scalar_or_none(db, int, _LOAD_OUTPUT_CAP, (route, model, now - MAX_OUTPUT_CAP_AGE_MS))


def learn_output_cap(db: Connection, route: str, model: str, cap: int, now: Millis) -> None:
    """Store an output limit that the provider stated when it refused a higher one."""
    db.execute(_LEARN_OUTPUT_CAP, (route, model, cap, now, now))


def learn_context(db: Connection, route: str, model: str, stated: Tokens, beside: Tokens, now: Millis) -> None:
    """Store a window that the provider stated, unless a smaller one is known beside the same context length."""
    db.execute(_LEARN, (route, model, stated, None, beside, now))


def learn_input(db: Connection, route: str, model: str, stated: Tokens, beside: Tokens, now: Millis) -> None:
    """Store a bound of prompts alone that the provider stated, as `learn_context` stores a window."""
    db.execute(_LEARN, (route, model, None, stated, beside, now))
