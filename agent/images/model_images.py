"""Images for a model: the newest images of a view, within the provider's limits.

Limits are learned from refusals: the model may accept no images, or limit their number or size. A learned limit applies
for a week, or until the route's configuration changes. An image that the provider cannot process is never sent again,
unless a person uploads it again.
"""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.scaling import ImageLimits, ImageScaler, mime_of
from agent.model.base import ModelRequest
from agent.model.errors import IMAGE_FAULTS
from agent.model.wire import WireStyle
from hermes_state.errors import ImageFault, ImageRejected, ModelError, StoreUnavailable
from hermes_state.models.profiles import LearnedImageLimits, load_image_limits, save_image_limits
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Image, Message, Transcript, recall_id

log = structlog.get_logger()

MAX_IMAGES: Final = 8
"""Maximum number of images per request. Some providers do not accept more."""
MAX_TOTAL_BYTES: Final = 20 * 1024 * 1024
"""Maximum total size of the images in a request, in bytes, before base64 adds a third.

Providers refuse request bodies of 32 MB.
"""
_REFUSED: Final = "The model's provider refused an image that was sent here."


class PlacedImage(msgspec.Struct, frozen=True):
    """An image in a message row. If it was shown again, several rows contain the same image."""

    row: Message
    image: Image

    @property
    def key(self) -> tuple[int, int]:
        """Key of this image in `WireStyle.image_notes`."""
        return self.row.id, self.image.attachment_id

    @property
    def older_note(self) -> str:
        """Line that replaces an older image. It tells the model how to see the image again."""
        return f'An older image is left out here; history_open(id="{recall_id(self.row.id)}") shows it again.'


class ModelImages:
    """Chooses the images for a model on a route, within the limits learned from its provider's refusals."""

    def __init__(self, *, scaler: ImageScaler, store: Store, route: str, model: str, mark: str, clock: Clock) -> None:
        """Create an instance. Learned limits expire when `mark`, the route's configuration fingerprint, changes."""
        self._scaler, self._store, self._clock = scaler, store, clock
        self._key, self._mark = (route, model), mark
        self._learned: LearnedImageLimits | None = None

    def expire_learned(self) -> None:
        """Make `learned` read the stored limits again, because another process may have learned new ones."""
        self._learned = None

    async def learned(self) -> LearnedImageLimits:
        """Return the limits that currently apply to the route."""
        known = self._learned
        if known is None:
            loaded = await self._store.read(load_image_limits, *self._key)
            known = self._learned = self._learned or loaded  # another call may have learned new limits in the meantime
        return known.holding(self._mark, self._clock.now())

    async def shown_in(self, style: WireStyle, transcript: Transcript) -> WireStyle:
        """Return `style` with the newest images of a view. Older images are left out in groups (`_first_shown`)."""
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
        return await self.styled(style, wanted, notes, _limits_in(learned))

    async def styled(
        self, style: WireStyle, placed: Sequence[PlacedImage], notes: dict[tuple[int, int], str], limits: ImageLimits
    ) -> WireStyle:
        """Return `style` with data URLs for the newest images, up to `MAX_TOTAL_BYTES`. Missing files are skipped."""
        bytes_left, urls = MAX_TOTAL_BYTES, {}
        for one in reversed(placed):
            data = await self._scaler.load(one.image.path, limits)
            if data is None:  # missing or unreadable file: the model reads that it cannot see the image
                continue
            bytes_left -= len(data)
            if bytes_left < 0:
                notes[one.key] = one.older_note
            else:
                urls[one.image.attachment_id] = f"data:{mime_of(data)};base64,{base64.b64encode(data).decode()}"
        return replace(style, image_urls=urls, image_notes=notes)

    async def learn(self, learned: LearnedImageLimits) -> None:
        """Store limits learned from refusals."""
        now = self._clock.now()
        log.warning("images.refused", model=self._key[1], takes_none=learned.takes_none, refused=len(learned.refused))
        self._learned = msgspec.structs.replace(learned, learned_at=now)
        try:
            self._learned = await self._store.write(save_image_limits, *self._key, self._learned, now)
        except StoreUnavailable as error:  # do not lose the paid reply; after a restart, the limits are learned again
            log.warning("images.limits_not_saved", error=str(error))


class RetriedImageCall(msgspec.Struct):
    """Retries a call with fewer or smaller images, and then without images, when a provider refuses them."""

    images: ModelImages
    _refusals: list[tuple[ImageRejected, list[PlacedImage]]] = msgspec.field(default_factory=list)
    """Refusals, each with the images of its request."""
    _limits: ImageLimits | None = None
    """Limits lowered by the refusals so far. None: the limits have not changed."""

    async def after(self, request: ModelRequest, error: ModelError) -> ModelRequest | None:
        """Return the request for the next attempt, or None if the refusal is not about images."""
        if type(error) is ModelError:  # the reason is unknown, so it may be the images
            error = ImageRejected(str(error), fault=ImageFault.UNREADABLE)
        carried = carried_images(request)
        if not carried or not isinstance(error, ImageRejected):
            return None
        self._refusals.append((error, carried))
        limits = self._limits or _limits_in(await self.images.learned())
        if error.fault is ImageFault.TOO_LARGE:
            limits = self._limits = _lowered(limits, error)
        kept = _kept(error, carried) if len(self._refusals) == 1 else []
        notes = {one.key: one.older_note if kept else _REFUSED for one in carried if one not in kept}
        notes = {**request.style.image_notes, **notes}
        return replace(request, style=await self.images.styled(request.style, kept, notes, limits))

    async def settle(self, request: ModelRequest) -> str | None:
        """Learn from the refusals before `request` was accepted. Return a sentence about them for people, or None."""
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
            return f"{IMAGE_FAULTS[error.fault]}, so the model received smaller copies."
        outcome = "some images were left out of this answer" if sent else "this answer was written without images"
        return f"{IMAGE_FAULTS[error.fault]}, so {outcome}."


def carried_images(request: ModelRequest) -> list[PlacedImage]:
    """Return the images of a request, in order."""
    urls, notes = request.style.image_urls, request.style.image_notes
    placed = [PlacedImage(row, image) for row in request.transcript for image in row.body.images]
    return [one for one in placed if one.image.attachment_id in urls and one.key not in notes]


def _kept(error: ImageRejected, carried: list[PlacedImage]) -> list[PlacedImage]:
    """Return the images for the next attempt: in most cases, those of the newest turn that has images."""
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
    """Return the provider's limits if they are lower than the current limits, or else half of the current ones."""
    side = min(error.max_side or limits.max_side, limits.max_side)
    size = min(error.max_bytes or limits.max_bytes, limits.max_bytes)
    if (side, size) == (limits.max_side, limits.max_bytes):
        side, size = max(side // 2, 256), max(size // 2, 100_000)
    return ImageLimits(max_side=side, max_bytes=size)


def _first_shown(count: int, most: int) -> int:
    """Return the index of the first image to show, out of `count` images.

    Images beyond `most` are left out in groups of `most // 2`. Leaving them out one by one would invalidate the prompt
    cache more often.

    >>> [count - _first_shown(count, 8) for count in (8, 9, 12, 13)]
    [8, 5, 8, 5]
    """
    step = max(1, most // 2)
    return max(0, -(-(count - most) // step) * step)
