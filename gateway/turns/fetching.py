"""Fetching of the files that people send, from the platform that has them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from gateway.outbound.adapters import AdapterRegistry
from gateway.turns import file_kinds
from gateway.turns.file_kinds import AttachmentError
from hermes_state.errors import FileSizeExceeded, MessageRejected, PlatformError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.values import ChatKey, IncomingAttachment
from platforms.base import PlatformAdapter

log = structlog.get_logger()

T = TypeVar("T")

FETCH_SECONDS = 120.0
"""Longest fetch of one file, in seconds; its chat waits, others do not."""

FETCH_ATTEMPTS = 3

READY_SECONDS = 60.0
"""Longest wait for a platform to come back after a failed fetch, in seconds: just after a start it is not there yet."""

READY_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, repr=False, slots=True, kw_only=True)
class AttachmentFetcher:
    """Fetcher of files into `files`, several times if need be."""

    adapters: AdapterRegistry
    files: AttachmentFolder

    async def fetch(
        self, chat: ChatKey, attachment: IncomingAttachment, limit: int, use: Callable[[Path], Awaitable[T]]
    ) -> T:
        """Fetch a file and let `use` read it; unless moved away, the file is gone afterwards.

        Raises `AttachmentError`, and what `use` raises beside `PlatformError` and `OSError`.
        """
        adapter, name = self.adapters.of(chat), file_kinds.quoted_name(attachment)
        if adapter is None:
            raise AttachmentError(f"I could not fetch “{name}” right now; please send it again later.")
        try:
            target = await asyncio.to_thread(self.files.new_file)
        except OSError as error:
            log.warning("attachment.not_stored", error=type(error).__name__)
            raise AttachmentError(f"I cannot store “{name}” right now; please send it again later.") from error
        try:
            for attempt in range(1, FETCH_ATTEMPTS + 1):
                try:
                    await _download(adapter, attachment, target, limit)
                    return await use(target)
                except FileSizeExceeded as error:
                    raise AttachmentError(file_kinds.too_large(attachment, error.limit_bytes)) from error
                except MessageRejected as error:
                    sentence = f"“{name}” is not there to be fetched any more; please send it again."
                    raise AttachmentError(sentence) from error
                except (PlatformError, OSError) as error:  # a full disk, too, must not look like a harmful message
                    log.info("attachment.fetch_failed", attempt=attempt, error=type(error).__name__)
                if attempt < FETCH_ATTEMPTS:
                    await _wait_until_ready(adapter)
            raise AttachmentError(f"I could not fetch “{name}”; please send it again.")
        finally:
            await asyncio.to_thread(target.unlink, missing_ok=True)


async def _download(adapter: PlatformAdapter, attachment: IncomingAttachment, target: Path, limit: int) -> None:
    """Get the bytes of an attachment from its platform: the only place where that is done."""
    async with asyncio.timeout(FETCH_SECONDS):
        await adapter.download(attachment, target, limit)


async def _wait_until_ready(adapter: PlatformAdapter) -> None:
    """Wait for a while until the adapter works."""
    for _ in range(round(READY_SECONDS / READY_PAUSE_SECONDS)):
        if adapter.health().is_ready:
            return
        await asyncio.sleep(READY_PAUSE_SECONDS)  # nothing tells when the service is back
