"""Downloads of the files that people send."""

import asyncio
from pathlib import Path

import telegram
from telegram.error import BadRequest, TelegramError

from hermes_state.errors import FileSizeExceeded, MessageRejected, PlatformUnavailable
from hermes_state.values import IncomingAttachment
from platforms.files import CHUNK_BYTES, copy_file, save_stream
from platforms.telegram.errors import FILE_TOO_BIG, is_refused
from platforms.telegram.settings import BASE_URL
from platforms.telegram.transport import BotApiRequest

DOWNLOAD_BYTES = 20_000_000
"""Largest file that Telegram's own Bot API server hands out, in bytes."""


async def fetch(
    sdk: telegram.Bot, request: BotApiRequest, attachment: IncomingAttachment, target: Path, max_bytes: int
) -> int:
    """Write the file to `target` piece by piece, nothing on failure. See `PlatformAdapter.download`."""
    if (attachment.size_bytes or 0) > max_bytes:
        raise FileSizeExceeded(max_bytes)
    try:
        address = (await sdk.get_file(attachment.file_ref)).file_path
        if not address:
            raise MessageRejected("Telegram gives no address for the file")
        path = local_path(address, sdk.base_url)
        if path is not None:
            return await asyncio.to_thread(copy_file, path, target, max_bytes)
        async with request.stream(address) as response:
            if response.status >= 500:
                raise PlatformUnavailable(f"the file server answered {response.status}")
            if response.status != 200:
                raise MessageRejected(f"the file server answered {response.status}")
            return await save_stream(response.content.iter_chunked(CHUNK_BYTES), target, max_bytes)
    except BadRequest as error:
        if is_refused(error, FILE_TOO_BIG):
            raise FileSizeExceeded(min(DOWNLOAD_BYTES, max_bytes)) from error
        raise MessageRejected(error.message) from error
    except TelegramError as error:  # fetching again harms nobody, so whatever broke may be tried again
        raise PlatformUnavailable(f"the file could not be fetched ({type(error).__name__})") from error


def local_path(address: str, base_url: str) -> Path | None:
    """Path of a file according to a local Bot API server (one that runs with `--local`).

    None for an address to fetch it from. Telegram's own servers have no say about files of this machine.
    """
    return Path(address) if address.startswith("/") and not base_url.startswith(BASE_URL) else None
