"""Tools that read, write, edit and list the files of a chat's workspace. `read_file` also reads stored messages."""

import asyncio
import codecs
import difflib
import io
import itertools
import mimetypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Annotated, Any, TextIO, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from agent.documents.reading import MAX_PAGE, DocumentReader, UnreadableDocumentError, starts_document, store_images
from agent.images.scaling import ImageLimits, ImageScaler, OversizedImageError, UnreadableImageError, mime_of
from agent.memory.sections import CONTEXT_FILES
from agent.tools.approvals import fenced, inline
from agent.tools.files.workspace import PathParts, WorkspaceHandle, WorkspaceStore, parse_path, shown
from agent.tools.recall import load_row, whole_text
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, ToolReply, tool
from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.errors import ToolError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.text import counted
from hermes_state.values import Clock, Image, Message, ToolEffect, parse_recall_id

T = TypeVar("T")

_LINE_CHARACTERS = 2_000
"""Maximum number of characters to show of each line. The argument `column` shows later parts of a line."""
_PIECE = 65_536
_MAX_LISTED = 500
MAX_PAGE_IMAGES = 8
"""Maximum number of scanned pages in a result. Some providers do not accept more images."""
_PLAIN_QUOTES = {
    ord(odd): plain
    for plain, odds in {'"': "\u201c\u201d\u201e\u00ab\u00bb", "'": "\u2018\u2019\u201a\u00b4`"}.items()
    for odd in odds
}

ANY_FILE = "any file in this chat's workspace"
"""Shape (see `Tool.shape`) of all calls that change files, so that one saved approval covers every file."""
WorkspacePath: TypeAlias = Annotated[str, Meta(description="Path in the workspace, such as notes/plan.md.")]


class _ReadArguments(Arguments, frozen=True):
    path: Annotated[str, Meta(description="Path in the workspace, or an id such as m123.")]
    offset: Annotated[int, Meta(ge=1, description="First line.")] = 1
    limit: Annotated[int, Meta(ge=1, le=5_000, description="Maximum lines.")] = 500
    column: Annotated[
        int, Meta(ge=1, description="Character at which to start in the first line, if that line is very long.")
    ] = 1
    pages: Annotated[str, Meta(description="Pages of a PDF or Office file, such as 7-9. Empty: all.")] = ""


class _WriteArguments(Arguments, frozen=True):
    path: WorkspacePath
    content: str


class _EditArguments(Arguments, frozen=True):
    path: WorkspacePath
    old: Annotated[str, Meta(description="Exact text in the file, without line numbers.")]
    new: str
    all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


class _ListArguments(Arguments, frozen=True):
    path: Annotated[str, Meta(description="Folder. Empty: the whole workspace.")] = ""
    depth: Annotated[int, Meta(ge=1, le=10)] = 3


def file_tools(workspaces: WorkspaceStore, images: "ImageReader | None" = None) -> tuple[Tool, ...]:
    """Return `read_file`, `write_file`, `edit_file` and `list_files`. Without `images`, pictures cannot be read."""
    read_file, list_files = _reading_tools(workspaces, images)
    return read_file, *_changing_tools(workspaces), list_files


def _reading_tools(workspaces: WorkspaceStore, images: "ImageReader | None") -> tuple[Tool, Tool]:
    @tool(
        description="Read a text file, PDF, Office file or picture in the workspace, or a stored result by id, with "
        "line numbers.",
        effect=ToolEffect.READ_ONLY,
        is_persisted=False,
        step=StepWords(
            doing="Reading",
            did="read files",
            about=lambda asked: f"{asked.path}, line {asked.offset:,}" if asked.offset > 1 else asked.path,
        ),
    )
    async def read_file(asked: _ReadArguments, context: ToolContext) -> str | ToolReply:
        room = min(40_000, context.result_size)
        row = await stored_row(asked.path, context)
        if row is not None:
            text, is_first = io.StringIO(whole_text(row)), asked.offset == asked.column == 1
            excerpt = await asyncio.to_thread(_excerpt, text, asked.path.strip(), asked, room=room)
            return ToolReply(text=excerpt, images=row.body.images if is_first else ())
        parts, workspace = parse_path(asked.path), workspaces.of(context.chat_id)
        if images is not None and (found := await images.read(workspace, parts, asked, context)) is not None:
            return found
        return await asyncio.to_thread(_read, workspace, parts, asked, room)

    @tool(
        description="List files and folders in the workspace with their sizes.",
        effect=ToolEffect.READ_ONLY,
        step=StepWords(doing="Listing files", did="listed files", about=lambda asked: asked.path),
    )
    async def list_files(asked: _ListArguments, context: ToolContext) -> str:
        return await asyncio.to_thread(_list, workspaces.of(context.chat_id), parse_path(asked.path), asked.depth)

    return read_file, list_files


def _changing_tools(workspaces: WorkspaceStore) -> tuple[Tool, Tool]:
    changes: dict[str, Any] = {
        "effect": ToolEffect.WRITES,
        "check": lambda asked, context: parse_path(asked.path),
        "shape": lambda asked: ANY_FILE,
        "reach": lambda shape: f"for {shape}",
        "instructs": lambda asked: "/".join(parse_path(asked.path)) in CONTEXT_FILES,
    }

    @tool(
        description="Write a text file in the workspace. Creates folders and replaces an existing file.",
        shown=lambda asked: f"{_shown_path(asked)}, with this content:\n{fenced(asked.content)}",
        step=StepWords(doing="Writing", did="wrote files", about=lambda asked: asked.path),
        **changes,
    )
    async def write_file(asked: _WriteArguments, context: ToolContext) -> str:
        parts, data = parse_path(asked.path), asked.content.encode()
        is_new = await _changed(workspaces.of(context.chat_id), lambda workspace: workspace.write(parts, data))
        state = "a new file" if is_new else "the old content was replaced"
        return f"Wrote {len(data):,} bytes to {shown('/'.join(parts))}: {state}."

    def shown_edit(asked: _EditArguments) -> str:
        where = "every occurrence" if asked.all else "the only occurrence"
        return f"{_shown_path(asked)}, {where} of\n{fenced(asked.old)}\nis replaced by\n{fenced(asked.new)}"

    @tool(
        description="Replace an exact text in a workspace file. The text must occur once unless all is set.",
        shown=shown_edit,
        step=StepWords(doing="Editing", did="edited files", about=lambda asked: asked.path),
        **changes,
    )
    async def edit_file(asked: _EditArguments, context: ToolContext) -> str:
        parts = parse_path(asked.path)
        return await _changed(workspaces.of(context.chat_id), lambda workspace: _edit(workspace, parts, asked))

    return write_file, edit_file


def _shown_path(asked: _WriteArguments | _EditArguments) -> str:
    return inline("/".join(parse_path(asked.path)))


async def stored_row(path: str, context: ToolContext) -> Message | None:
    """Return the stored message whose recall id is `path`, or None if `path` is not such an id.

    Raises `ToolError` for an unknown id.
    """
    message_id = parse_recall_id(path)
    if message_id is None:
        return None
    row = await context.store.read(load_row, context.lineage_id, message_id)
    if row is None:
        raise ToolError(f"this conversation has no stored message {shown(path)}; for a file, use ./{path.strip()}")
    return row


async def _changed(workspace: WorkspaceHandle, change: Callable[[WorkspaceHandle], T]) -> T:
    def run() -> T:
        with workspace.lock:  # tool calls of the same answer run in parallel
            return change(workspace)

    return await asyncio.to_thread(run)


# ---- reading


def encoding_of(data: bytes) -> str | None:
    """Return the encoding of `data`, detected from its beginning, or None if it is not text."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in data:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _read(workspace: WorkspaceHandle, parts: PathParts, asked: _ReadArguments, room: int) -> str:
    path = "/".join(parts)
    with workspace.open_file(parts) as file:
        size, most = file.seek(0, io.SEEK_END), workspace.settings.max_file_bytes
        file.seek(0)
        encoding = encoding_of(file.read(_PIECE))
        if encoding is None:
            raise ToolError(f"{shown(path)} is not a text file: it has {size:,} bytes of binary data")
        if size > most:
            raise ToolError(f"{shown(path)} has {size:,} bytes, above the limit of {most:,}; use search_files instead")
        file.seek(0)
        stream = io.TextIOWrapper(file, "utf-8-sig" if encoding == "utf-8" else encoding, errors="replace")
        note = " The file is not UTF-8 and was read as Windows-1252." if encoding == "cp1252" else ""
        return _excerpt(stream, path, asked, room=room, note=note)


def _excerpt(stream: TextIO, name: str, asked: _ReadArguments, *, room: int, note: str = "") -> str:
    """Return as many numbered lines of the stream as fit into `room` characters, and a hint on how to read on."""
    rows, offset, column = list[str](), asked.offset, asked.column
    total, is_full, more = 0, False, ""
    for total, (line, length) in enumerate(_lines(stream, column - 1 + room), start=1):
        if total < offset or is_full:
            continue
        if rows and min(length, _LINE_CHARACTERS) > room:
            is_full = True
            continue
        start = column - 1 if total == offset else 0
        most = room if start else min(room, _LINE_CHARACTERS)
        text = line[start : start + most]
        rows.append(f"{total}\t{text}")
        room -= len(rows[-1]) + 1
        if (end := start + len(text)) < length:
            rows.append(f"[line {total} has {length:,} characters; continue with offset {total} and column {end + 1}]")
        is_full = len(rows) >= asked.limit or room <= 0
    if not rows and offset > max(total, 1):
        raise ToolError(f"{shown(name)} has only {counted(total, 'line')}")
    last = offset - 1 + sum(row[0] != "[" for row in rows)
    if last < total:
        more = f" Continue with offset {last + 1}."
    head = f"{shown(name)}, lines {offset}-{last} of {total}." if rows else f"{shown(name)} is empty."
    return "\n".join([f"{head}{more}{note}", *rows])


def _lines(stream: TextIO, keep: int) -> Iterator[tuple[str, int]]:
    """Yield the first `keep` characters of each line, without the line end, and the length of the line."""
    while piece := stream.readline(_PIECE):
        kept, length = piece[:keep], len(piece)
        while not piece.endswith("\n") and (piece := stream.readline(_PIECE)):
            kept += piece[: max(0, keep - len(kept))]
            length += len(piece)
        is_ended = piece.endswith("\n")
        yield kept.removesuffix("\n"), length - is_ended


# ---- editing


def _edit(workspace: WorkspaceHandle, parts: PathParts, asked: _EditArguments) -> str:
    data = workspace.read(parts, 5_000_000)  # limited, because every pass over the text blocks all chats
    path, old, new = shown("/".join(parts)), asked.old, asked.new
    encoding = encoding_of(data)
    if encoding is None:
        raise ToolError(f"{path} is not a text file")
    try:
        text = data.decode(encoding)
        if "\r\n" in text and "\r" not in old:
            old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        changed = _replaced(text, old, new, path, is_all=asked.all).encode(encoding)
    except UnicodeError as error:
        raise ToolError(f"{path} is not UTF-8, and its encoding cannot represent the new text") from error
    workspace.write(parts, changed)
    count = text.count(old) if asked.all else 1
    first = text.count("\n", 0, text.index(old)) + 1
    return (
        f"Replaced {counted(count, 'occurrence')} in {path}, starting at line {first}. "
        f"The file now has {len(changed):,} bytes."
    )


def _replaced(text: str, old: str, new: str, path: str, *, is_all: bool) -> str:
    if not old:
        raise ToolError("old is empty: give the text to replace, or rewrite the file with write_file")
    if old == new:
        raise ToolError("old and new are the same: nothing would change")
    count = text.count(old)
    if not count:
        raise ToolError(f"{path} does not contain this text. {_nearest(text, old)}")
    if count > 1 and not is_all:
        starts = itertools.accumulate(map(len, text.split(old)[:10]), lambda at, more: at + len(old) + more)
        lines = ", ".join(str(text.count("\n", 0, at) + 1) for at in itertools.islice(starts, min(count, 10)))
        raise ToolError(
            f"{path} contains this text {count} times, at lines {lines}: include more of the surrounding text, or set "
            "all"
        )
    return text.replace(old, new)


def _nearest(text: str, old: str) -> str:
    """Return the part of `text` that is most similar to `old`, which `text` does not contain."""
    lines = text.splitlines()[:5_000]  # comparing more text would be too slow
    wanted = [_folded(line) for line in old.strip("\r\n").splitlines()] or [""]
    folded = [_folded(line) for line in lines]
    size = len(wanted)
    at = next((index for index in range(len(folded)) if folded[index : index + size] == wanted), None)
    told = "These lines differ only in spaces, quotation marks or line ends:"
    if at is None:
        first, told = max(wanted, key=len), "The most similar lines:"
        alike = difflib.get_close_matches(first, folded, n=1, cutoff=0.6) if first else []
        if not alike:
            return "No line is similar. Use read_file to see the file."
        at = max(0, folded.index(alike[0]) - wanted.index(first))
    near = enumerate(lines[at : at + min(size, 20)], start=at + 1)
    return "\n".join([told, *(f"{number}\t{line[:200]!r}" for number, line in near)])


def _folded(line: str) -> str:
    return " ".join(line[:300].translate(_PLAIN_QUOTES).split())


# ---- listing


def _list(workspace: WorkspaceHandle, parts: PathParts, depth: int) -> str:
    found = list(itertools.islice(workspace.walk(parts, depth), _MAX_LISTED + 1))
    rows = []
    for entry in found[:_MAX_LISTED]:
        path = "/".join(shown(part)[1:-1] for part in entry.parts)
        size = "/" if entry.is_folder else f" {entry.size:,}" if entry.is_file else " (link or special file: no access)"
        rows.append(path + size)
    if not rows:
        return f"{shown('/'.join(parts)) if parts else 'The workspace'} is empty."
    more = f" (first {_MAX_LISTED}; narrow the list with path or depth)" if len(found) > _MAX_LISTED else ""
    return "\n".join([f"Files with sizes in bytes, and folders{more}:", *rows])


def _page_range(pages: str) -> tuple[int, int]:
    """Return the first and the last page of a range such as `7-9` or `7`."""
    found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{0,6})\s*)?", pages)
    if not pages.strip():
        return 1, MAX_PAGE
    if found is None or int(found[1]) < 1:
        raise ToolError("pages must be a page or a range, such as 7 or 7-9")
    first = int(found[1])
    return first, max(first, int(found[2] or MAX_PAGE) if found[2] is not None else first)


# ---- pictures and documents

_PICTURE = re.compile(
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|BM....\0\0\0\0|II\*\0|MM\0\*|\0\0\x01\0|\0\0\0\x0cjP  |"
    rb"....ftypavi[fs]",
    re.DOTALL,
)
"""First bytes of the supported formats: PNG, JPEG, GIF, WebP, BMP, TIFF, ICO, JPEG 2000 and AVIF."""


class ImageReader(msgspec.Struct, frozen=True, kw_only=True):
    """Shows pictures from workspaces to models that accept images.

    Pictures are stored and scaled as if a person had sent them.
    """

    files: AttachmentFolder
    max_bytes: int
    """Size limit of a picture."""
    scaler: ImageScaler
    clock: Clock
    documents: DocumentReader = msgspec.field(default_factory=DocumentReader)

    async def read(
        self, workspace: WorkspaceHandle, parts: PathParts, asked: _ReadArguments, context: ToolContext
    ) -> str | ToolReply | None:
        """Return a picture or a document, or None if the file is neither. Raises `ToolError` if it cannot be read."""
        picture = await self._picture(workspace, parts, context)
        return picture or await self._document(workspace, parts, asked, context)

    async def _document(
        self, workspace: WorkspaceHandle, parts: PathParts, asked: _ReadArguments, context: ToolContext
    ) -> ToolReply | None:
        """Return pages of a PDF or Office file, or None if the file is of another kind.

        Raises `ToolError` if the file cannot be read.
        """
        path, first, last = "/".join(parts), *_page_range(asked.pages)
        is_first = asked.offset == asked.column == 1
        most = MAX_PAGE_IMAGES if context.sees_images and is_first else 0
        with ExitStack() as stack:
            file = await asyncio.to_thread(stack.enter_context, workspace.open_file(parts))
            if not starts_document(await asyncio.to_thread(os.pread, file.fileno(), 1_024, 0), path):
                return None
            try:
                found = await self.documents.read(file, path, context.chat_id, first=first, last=last, max_images=most)
            except UnreadableDocumentError as error:
                raise ToolError(f"{shown(path)} cannot be read: {error}") from error
        text = await asyncio.to_thread(
            _excerpt, io.StringIO(found.text), path, asked, room=min(40_000, context.result_size)
        )
        if found.done < min(last, found.total):
            text += f"\n[continue with pages {found.done + 1}-{found.total}]"
        try:
            images = await store_images(found, parts[-1], context.chat_id, self.scaler, context.store, self.clock)
        except OSError as error:
            raise ToolError(f"the pages cannot be shown now: {error.strerror or error}") from error
        return ToolReply(text=text, images=images)

    async def _picture(
        self, workspace: WorkspaceHandle, parts: PathParts, context: ToolContext
    ) -> str | ToolReply | None:
        """Return a picture, or a note for a model without image input, or None if the file is not a picture.

        Raises `ToolError` if the file cannot be read or stored.
        """

        def is_picture() -> bool:
            with workspace.open_file(parts) as file:
                return _PICTURE.match(file.read(32)) is not None

        if not await asyncio.to_thread(is_picture):
            return None
        name = shown("/".join(parts))
        if not context.sees_images:
            return f"{name} is a picture, which the model of this chat cannot see. send_file sends it to people."
        file, copy = await self._scaled(workspace, parts, name)
        await self.scaler.keep(file.path, ImageLimits(), copy)
        kept = replace(file, size_bytes=file.size_bytes + len(copy))
        attachment_id = await context.store.write(attachments.insert, context.chat_id, kept, self.clock.now())
        image = Image(attachment_id=attachment_id, mime=mime_of(copy), path=file.path)
        return ToolReply(text=f"{name} is a picture; it is shown after this result.", images=(image,))

    async def _scaled(self, workspace: WorkspaceHandle, parts: PathParts, name: str) -> tuple[StoredFile, bytes]:
        """Store the current version of a picture. Return its file, and the scaled copy for models."""
        mime = mimetypes.guess_type(parts[-1])[0]
        data = await asyncio.to_thread(workspace.read, parts, self.max_bytes)
        try:
            fetched = await asyncio.to_thread(self.files.new_file)
            try:
                await asyncio.to_thread(fetched.write_bytes, data)
                copy = await self.scaler.scaled(fetched, ImageLimits())
                return await asyncio.to_thread(self.files.keep, fetched, parts[-1], mime), copy
            finally:
                with suppress(OSError):  # an unused file is removed later
                    fetched.unlink(missing_ok=True)
        except OversizedImageError as error:
            raise ToolError(f"{name} has too many pixels to be shown; make a smaller copy") from error
        except UnreadableImageError as error:
            raise ToolError(f"{name} looks like a picture, but is broken or has an unsupported format") from error
        except OSError as error:
            raise ToolError(f"{name} cannot be shown now: {error.strerror or error}") from error
