"""Pictures of a workspace, as `read_file` shows them to models that see.

They are kept and scaled as pictures that people send are: by a worker process with bounds of its own.
"""

import asyncio
import mimetypes
import re
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError, mime_of
from agent.tools.files.workspace import PathParts, WorkspaceHandle, shown
from agent.tools.registry import ToolContext, ToolOutput
from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.errors import ToolError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.values import Clock, Image

_PICTURE = re.compile(
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|BM....\0\0\0\0|II\*\0|MM\0\*|\0\0\x01\0|\0\0\0\x0cjP  |"
    rb"....ftypavi[fs]",
    re.DOTALL,
)
"""Beginnings of PNG, JPEG, GIF, WebP, BMP, TIFF, ICO, JPEG 2000 and AVIF: what the worker reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReader:
    """Reader of pictures in workspaces."""

    files: AttachmentFolder
    """Files that are kept."""
    max_bytes: int
    """Largest picture that is looked at."""
    scaler: ImageScaler
    clock: Clock

    async def read(self, workspace: WorkspaceHandle, parts: PathParts, context: ToolContext) -> str | ToolOutput | None:
        """A picture for a model that sees, a sentence for another one; None where the file is no picture.

        Raises `ToolError`.
        """
        if not await asyncio.to_thread(_is_picture, workspace, parts):
            return None
        name = shown("/".join(parts))
        if not context.sees_images:
            return f"{name} is a picture, and the model of this conversation sees none; send_file gives it to people."
        file, copy = await self._scaled(workspace, parts, name)
        await self.scaler.keep(file.path, ImageLimits(), copy)
        kept = replace(file, size_bytes=file.size_bytes + len(copy))
        attachment_id = await context.store.write(attachments.insert, context.chat_id, kept, self.clock.now())
        image = Image(attachment_id=attachment_id, mime=mime_of(copy), path=file.path)
        return ToolOutput(text=f"{name} is a picture; it is shown behind this result.", images=(image,))

    async def _scaled(self, workspace: WorkspaceHandle, parts: PathParts, name: str) -> tuple[StoredFile, bytes]:
        """A picture, kept as it is now, and the copy that models are shown."""
        mime = mimetypes.guess_type(parts[-1])[0]
        data = await asyncio.to_thread(workspace.read, parts, self.max_bytes)
        try:
            fetched = await asyncio.to_thread(self.files.new_file)
            try:
                await asyncio.to_thread(fetched.write_bytes, data)
                copy = await self.scaler.scaled(fetched, ImageLimits())
                return await asyncio.to_thread(self.files.keep, fetched, parts[-1], mime), copy
            finally:
                with suppress(OSError):  # it is where it belongs by now, or nobody will miss it
                    fetched.unlink(missing_ok=True)
        except OversizedImageError as error:
            raise ToolError(f"{name} has more pixels than can be looked at; a smaller copy can") from error
        except UnreadableImageError as error:
            raise ToolError(f"{name} begins like a picture, but is broken or of a kind that is not read") from error
        except OSError as error:
            raise ToolError(f"{name} cannot be looked at now: {error.strerror or error}") from error


def _is_picture(workspace: WorkspaceHandle, parts: PathParts) -> bool:
    with workspace.open_file(parts) as file:
        return _PICTURE.match(file.read(32)) is not None
