"""Images as one model is shown them: the newest of a view, as large as its provider takes them.

What a provider refuses is learned: that the model takes no images, and how large and how many they may be, until the
configuration of its route changes or a week has passed; and which picture cannot be processed, for good (the same
picture sent again is another one).
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import structlog

from agent.images.scaling import ImageLimits, ImageScaler, mime_of
from agent.model.base import ModelRequest
from agent.model.errors import IMAGE_FAULTS
from agent.model.wire import WireSettings
from hermes_state.errors import ImageFault, ImageRejected, ModelError, StoreUnavailable
from hermes_state.models.profiles import LearnedImageLimits, load_image_limits, save_image_limits
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Image, Message, Transcript, recall_id

log = structlog.get_logger()

MAX_IMAGES: Final = 8
"""Most images of one request; some providers take no more."""
MAX_TOTAL_BYTES: Final = 20 * 1024 * 1024
"""Largest sum of all images of one request, in bytes; providers refuse bodies of 32 MB, and base64 adds a third."""
MIN_LIMITS: Final = ImageLimits(max_side=256, max_bytes=100_000)
"""Smallest limits that are learned from refusals which state none."""

_REFUSED: Final = "An image was sent here that the model's provider refuses."


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image of a row: a picture that was shown again stands in more than one."""

    row: Message
    image: Image

    @property
    def key(self) -> tuple[int, int]:
        """Key of it in `WireSettings.image_notes`."""
        return self.row.id, self.image.attachment_id

    @property
    def older_note(self) -> str:
        """Line for an image that is left out for its age; the id in it is the one by which it is shown again."""
        return f'An older image is left out here; history_open(id="{recall_id(self.row.id)}") shows it again.'


class ModelImages:
    """Images for one model on one route, and what its provider has refused of them."""

    def __init__(self, *, scaler: ImageScaler, store: Store, route: str, model: str, mark: str, clock: Clock) -> None:
        """`mark`: fingerprint of the route's configuration; under another one no learned limit applies."""
        self._scaler = scaler
        self._store = store
        self._key = (route, model)
        self._mark = mark
        self._clock = clock
        self._learned: LearnedImageLimits | None = None

    def expire_learned(self) -> None:
        """Let the stored limits be read again: another process may have learned more."""
        self._learned = None

    async def learned(self) -> LearnedImageLimits:
        """Limits that hold for the route now."""
        known = self._learned
        if known is None:
            loaded = await self._store.read(load_image_limits, *self._key)
            known = self._learned = self._learned or loaded  # somebody may have been faster, and have learned more
        return known.holding(self._mark, self._clock.now())

    async def shown_in(self, style: WireSettings, transcript: Transcript) -> WireSettings:
        """The style with the newest images of a view.

        Older ones leave several at a time, so that prompts keep their beginning.
        """
        learned = await self.learned()
        placed = [PlacedImage(row, image) for row in transcript for image in row.body.images]
        start = _first_shown(len(placed), min(learned.max_count or MAX_IMAGES, MAX_IMAGES))
        newest = {one.image.attachment_id: one.key for one in placed}
        notes, wanted = {}, []
        for index, one in enumerate([] if learned.takes_none else placed):
            if one.image.attachment_id in learned.refused:
                notes[one.key] = _REFUSED
            elif index < start or newest[one.image.attachment_id] != one.key:
                notes[one.key] = one.older_note
            else:
                wanted.append(one)
        return await self._styled(style, wanted, notes, _limits_in(learned))

    async def load_fewer(self, request: ModelRequest, kept: Sequence[PlacedImage], limits: ImageLimits) -> ModelRequest:
        """The request with only the images `kept`, within `limits`."""
        left_out = [one for one in carried_images(request) if one not in kept]
        notes = {one.key: one.older_note if kept else _REFUSED for one in left_out}
        notes = {**request.style.image_notes, **notes}
        return replace(request, style=await self._styled(request.style, kept, notes, limits))

    async def _styled(
        self, style: WireSettings, placed: Sequence[PlacedImage], notes: dict[tuple[int, int], str], limits: ImageLimits
    ) -> WireSettings:
        """The style with the data URLs of images, the newest first until `MAX_TOTAL_BYTES`; lost files have none."""
        bytes_left, urls = MAX_TOTAL_BYTES, {}
        for one in reversed(placed):
            data = await self._scaler.load(one.image.path, limits)
            if data is None:  # removed by retention, or by hand: the model is told that it cannot see it
                continue
            bytes_left -= len(data)
            if bytes_left < 0:
                notes[one.key] = one.older_note
            else:
                urls[one.image.attachment_id] = f"data:{mime_of(data)};base64,{base64.b64encode(data).decode()}"
        return replace(style, image_urls=urls, image_notes=notes)

    async def learn(self, learned: LearnedImageLimits) -> None:
        """Keep what refusals have taught: `learned`, but changed."""
        now = self._clock.now()
        log.warning("images.refused", model=self._key[1], takes_none=learned.takes_none, refused=len(learned.refused))
        self._learned = msgspec.structs.replace(learned, learned_at=now)
        try:
            self._learned = await self._store.write(save_image_limits, *self._key, self._learned, now)
        except StoreUnavailable as error:  # the reply is here and was paid for; after a restart it is learned again
            log.warning("images.not_learned", error=str(error))


@dataclass(slots=True)
class RetriedImageCall:
    """One call whose images the provider refuses: made again with fewer or smaller ones, then without any."""

    images: ModelImages
    _refusals: list[tuple[ImageRejected, list[PlacedImage]]] = field(default_factory=list)
    """Each with the images that the request carried."""
    _limits: ImageLimits | None = None
    """Lowered ones."""

    async def after(self, request: ModelRequest, error: ModelError) -> ModelRequest | None:
        """The request to make instead; None where the refusal is none of an image.

        A refusal without a reason may be one, for providers find ever new words for it.
        """
        if type(error) is ModelError:
            error = ImageRejected(str(error), fault=ImageFault.UNREADABLE)
        carried = carried_images(request)
        if not carried or not isinstance(error, ImageRejected):
            return None
        self._refusals.append((error, carried))
        limits = self._limits or _limits_in(await self.images.learned())
        if error.fault is ImageFault.TOO_LARGE:
            limits = self._limits = _lowered(limits, error)
        kept = _kept(error, carried) if len(self._refusals) == 1 else []
        return await self.images.load_fewer(request, kept, limits)

    async def settle(self, request: ModelRequest) -> str | None:
        """Learn from the refusals, now that `request` was taken. Returns one sentence for people; None without any."""
        if not self._refusals:
            return None
        sent, learned = carried_images(request), await self.images.learned()
        changes: dict[str, object] = {}
        if self._limits is not None:
            changes |= {"max_side": self._limits.max_side, "max_bytes": self._limits.max_bytes}
        error, carried = self._refusals[-1]
        if error.fault is ImageFault.UNSUPPORTED or error.max_count == 0:
            changes["takes_none"] = True
        elif error.fault is ImageFault.TOO_MANY:
            changes["max_count"] = error.max_count or len(sent) or max(1, len(carried) // 2)
        elif error.fault is ImageFault.UNREADABLE:
            changes["refused"] = (*learned.refused, *(one.image.attachment_id for one in carried if one not in sent))
        await self.images.learn(msgspec.structs.replace(learned, **changes))
        if len(sent) == len(self._refusals[0][1]):
            return f"{IMAGE_FAULTS[error.fault]}, so it was shown smaller copies."
        outcome = "some were left out of this answer" if sent else "this answer was written without them"
        return f"{IMAGE_FAULTS[error.fault]}, so {outcome}."


def carried_images(request: ModelRequest) -> list[PlacedImage]:
    """Images that a request shows, in the order in which they stand in it."""
    urls, notes = request.style.image_urls, request.style.image_notes
    placed = [PlacedImage(row, image) for row in request.transcript for image in row.body.images]
    return [one for one in placed if one.image.attachment_id in urls and one.key not in notes]


def _kept(error: ImageRejected, carried: list[PlacedImage]) -> list[PlacedImage]:
    """Images of the one further try: those of the newest turn that sent any, unless the refusal says more."""
    count = len(carried)
    if error.fault is ImageFault.UNSUPPORTED:
        return []
    if error.max_count is not None and error.max_count < count:
        return carried[count - error.max_count :]
    newest = [one for one in carried if one.row.turn_id == carried[-1].row.turn_id]
    if error.fault is ImageFault.TOO_LARGE or len(newest) < count:
        return newest
    return carried[count - count // 2 :] if error.fault is ImageFault.TOO_MANY else []


def _limits_in(learned: LearnedImageLimits) -> ImageLimits:
    default = ImageLimits()
    return ImageLimits(max_side=learned.max_side or default.max_side, max_bytes=learned.max_bytes or default.max_bytes)


def _lowered(limits: ImageLimits, error: ImageRejected) -> ImageLimits:
    """The limits that the provider states where they are lower, else half of those that were too much."""
    side = min(error.max_side or limits.max_side, limits.max_side)
    size = min(error.max_bytes or limits.max_bytes, limits.max_bytes)
    if (side, size) == (limits.max_side, limits.max_bytes):
        side, size = max(side // 2, MIN_LIMITS.max_side), max(size // 2, MIN_LIMITS.max_bytes)
    return ImageLimits(max_side=side, max_bytes=size)


def _first_shown(count: int, most: int) -> int:
    """Index of the first of `count` images that is shown.

    When there are more than `most`, half as many leave at once: each that leaves changes an old row of the prompt, and
    what a provider has cached behind it is lost.

    >>> [count - _first_shown(count, 8) for count in (8, 9, 12, 13)]
    [8, 5, 8, 5]
    """
    step = max(1, most // 2)
    return max(0, -(-(count - most) // step) * step)
