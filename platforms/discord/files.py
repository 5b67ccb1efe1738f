"""Files that people sent, streamed from Discord's file server to disk."""

from pathlib import Path

import aiohttp
import msgspec
from discord.http import HTTPClient, Route

from hermes_state.errors import ChatUnreachable, FileSizeExceeded, MessageRejected, PlatformUnavailable
from platforms.discord.errors import MessageNotFound, rest_errors
from platforms.files import CHUNK_BYTES, save_stream

CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0
"""Longest silence inside a download, in seconds."""


class FileRef(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Reference to a file. Discord signs addresses for a day, so the message that can renew one comes with it."""

    channel_id: int
    message_id: int
    file_id: int
    url: str

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, ref: str) -> "FileRef":
        """Raises `MessageRejected` for what is not one of ours."""
        try:
            return msgspec.json.decode(ref, type=cls)
        except msgspec.MsgspecError as error:
            raise MessageRejected("this file cannot be fetched") from error


async def download(http: HTTPClient, ref: FileRef, target: Path, max_bytes: int) -> int:
    """Write the file to `target` piece by piece, nothing on failure. See `PlatformAdapter.download`."""
    size = await _fetch(ref.url, target, max_bytes)
    if size is None:
        size = await _fetch(await _renewed_url(http, ref), target, max_bytes)
    if size is None:
        raise MessageRejected("the file is gone")
    return size


async def _renewed_url(http: HTTPClient, ref: FileRef) -> str:
    route = Route(
        "GET", "/channels/{channel_id}/messages/{message_id}", channel_id=ref.channel_id, message_id=ref.message_id
    )
    try:
        with rest_errors(is_read=True):
            message = await http.request(route)
    except (ChatUnreachable, MessageNotFound) as error:
        raise MessageRejected("the file is gone") from error
    forwarded = [one["message"] for one in message.get("message_snapshots", ())] if isinstance(message, dict) else []
    for attachment in (file for one in (message, *forwarded) for file in one.get("attachments", ())):
        if str(attachment.get("id")) == str(ref.file_id):
            return str(attachment["url"])
    raise MessageRejected("the file is gone")


async def _fetch(url: str, target: Path, max_bytes: int) -> int | None:
    """Write what is at `url` to `target`; returns its size in bytes, None when the address is no longer valid."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            if response.status in (403, 404, 410):
                return None
            if response.status != 200:
                raise PlatformUnavailable(f"the file server answered {response.status}")
            if (response.content_length or 0) > max_bytes:
                raise FileSizeExceeded(max_bytes)
            return await save_stream(response.content.iter_chunked(CHUNK_BYTES), target, max_bytes)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise PlatformUnavailable(f"the file server cannot be reached: {type(error).__name__}") from error
