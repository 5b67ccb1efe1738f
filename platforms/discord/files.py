"""Files that people sent, streamed from Discord's file server to disk."""

from pathlib import Path

import aiohttp
import discord

from hermes_state.errors import ChatUnreachable, FileSizeExceeded, MessageRejected, PlatformUnavailable
from platforms.discord.client import GatewayClient
from platforms.discord.errors import MessageNotFound
from platforms.discord.inbound import FileRef
from platforms.files import CHUNK_BYTES, save_stream

CONNECT_SECONDS = 10.0
RENEWAL_SECONDS = 30.0
STALL_SECONDS = 30.0
"""Longest silence inside a download, in seconds."""


async def download(client: GatewayClient, ref: FileRef, target: Path, max_bytes: int) -> int:
    """Write the file to `target` piece by piece, nothing on failure. See `PlatformAdapter.download`."""
    size = await _fetch(ref.url, target, max_bytes)
    if size is None:
        size = await _fetch(await _renewed_url(client, ref), target, max_bytes)
    if size is None:
        raise MessageRejected("the file is gone")
    return size


async def _renewed_url(client: GatewayClient, ref: FileRef) -> str:
    try:
        async with client.calling(RENEWAL_SECONDS, is_read=True):
            message = await client.get_partial_messageable(ref.channel_id).fetch_message(ref.message_id)
    except (ChatUnreachable, MessageNotFound) as error:
        raise MessageRejected("the file is gone") from error
    if isinstance(message, discord.Message):  # see `TolerantState.create_message`
        forwarded = (file for one in message.message_snapshots for file in one.attachments)
        for attachment in (*message.attachments, *forwarded):
            if attachment.id == ref.file_id:
                return attachment.url
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
