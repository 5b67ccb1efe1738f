"""Workspaces: one folder per chat, which the file tools cannot leave.

All functions block the calling thread. Every folder is opened relative to its parent's handle and never through a link.
A folder that is replaced by a link after a check therefore cannot lead out of the workspace.
"""

import errno
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePath
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from agent.settings import WorkspaceSettings
from hermes_state.disk import MIN_ROOM_OF_TOOLS, Room
from hermes_state.errors import ToolError
from hermes_state.values import ChatId

MOUNT = "/workspace"
"""Path of the workspace inside the terminal's sandbox. The file tools also accept paths that begin with it."""
MAX_DEPTH = 40
"""Maximum folder depth. Walking through a workspace keeps one handle open per level."""
MAX_ENTRIES = 100_000
"""Maximum number of files and folders in a workspace. When a workspace has this many, no file can be added, and `walk`
stops at this number.
"""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

PathParts: TypeAlias = tuple[str, ...]
"""Path below the workspace, as a tuple of names. Empty: the workspace itself."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    parts: PathParts
    is_folder: bool
    is_file: bool
    """True for a regular file with a single hard link. No tool opens other entries, such as symbolic links."""
    size: int
    disk_bytes: int


def parse_path(text: str) -> PathParts:
    """Split a path written by a model into names. Raises `ToolError` if it cannot be a path in a workspace.

    >>> parse_path("/workspace/notes//./plan.md")
    ('notes', 'plan.md')
    """
    inner = text
    if text == MOUNT or text.startswith(f"{MOUNT}/"):
        inner = text.removeprefix(MOUNT).lstrip("/")
    elif text.startswith(("/", "~")):
        raise ToolError(f"{shown(text)} is outside the workspace: use a path such as notes/plan.md")
    parts = tuple(part for part in inner.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ToolError(f"{shown(text)} contains “..”: use the path from the top of the workspace, as in notes/plan.md")
    if len(parts) > MAX_DEPTH:
        raise ToolError(f"the path has {len(parts)} levels; the limit is {MAX_DEPTH}")
    for part in parts:
        # Persian words and some emoji need the two zero-width joiners.
        if "\\" in part or not all(character.isprintable() or character in "\u200c\u200d" for character in part):
            raise ToolError(f"{shown(part)} is not a valid name: it has a backslash or unprintable characters")
        if len(part.encode()) > 255:
            raise ToolError(f"{shown(part)} is too long for a name: the limit is 255 bytes")
    return parts


def shown(text: str) -> str:
    """Return a name or path for use in a sentence: quoted, printable, and at most 200 characters long."""
    flat = "".join(character if character.isprintable() else "�" for character in text[:200])
    return f"“{flat}{'…' if len(text) > 200 else ''}”"


class WorkspaceStore:
    """Workspaces of all chats, each a folder `<chat id>/` in the state directory."""

    def __init__(self, folder: Path, settings: WorkspaceSettings) -> None:
        """Create a store. Its `folder` is made when it is first needed, and the folder's parent must be trusted."""
        self.folder = folder
        self._settings = settings
        self._locks: WeakValueDictionary[ChatId, threading.Lock] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> "WorkspaceHandle":
        """Return the handle of a chat's workspace. Call this method on the event loop."""
        lock = self._locks.setdefault(chat_id, threading.Lock())
        return WorkspaceHandle(self.folder, str(chat_id), self._settings, lock)

    def folder_of(self, chat_id: ChatId) -> Path:
        """Return the folder of a chat's workspace, creating it if necessary."""
        with self.of(chat_id).open_folder(()):
            return self.folder / str(chat_id)


@dataclass(frozen=True, repr=False, slots=True)
class WorkspaceHandle:
    """Handle of a workspace. All methods raise `ToolError` with a message for the model."""

    folder: Path
    name: str
    settings: WorkspaceSettings
    lock: threading.Lock
    """Lock that this process holds while it writes to the workspace."""

    @contextmanager
    def open_folder(self, parts: PathParts, *, is_made: bool = False) -> Iterator[int]:
        """Open a folder. `is_made`: create the folder and its parents if they are missing."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self.folder, _FOLDER_FLAGS & ~os.O_NOFOLLOW)  # the operator may have linked it to another disk
        try:
            for number, name in enumerate((self.name, *parts)):
                if is_made or number == 0:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=handle)
                with _explained(parts[:number], handle, name):
                    inner = os.open(name, _FOLDER_FLAGS, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def open_file(self, parts: PathParts) -> Iterator[BufferedReader]:
        *folders, name = _named(parts)
        with self.open_folder(tuple(folders)) as folder, _explained(parts, folder, name):
            refuse_special(os.stat(name, dir_fd=folder, follow_symlinks=False), parts)
            handle = os.open(name, _READ_FLAGS, dir_fd=folder)
        with open(handle, "rb") as file:
            refuse_special(os.fstat(handle), parts)  # check again, because the file could have been replaced
            yield file

    def read(self, parts: PathParts, most: int | None = None) -> bytes:
        """Return the content of a file. Raises `ToolError` if it has more than `most` bytes."""
        limit = min(most or self.settings.max_file_bytes, self.settings.max_file_bytes)
        with self.open_file(parts) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ToolError(f"{shown('/'.join(parts))} is larger than the limit of {limit:,} bytes")
        return data

    def write(self, parts: PathParts, data: bytes) -> bool:
        """Write a file atomically and return True if it is new. The caller must hold `lock`.

        An existing file keeps its permissions. Missing folders are created.
        """
        *folders, name = _named(parts)
        if len(data) > self.settings.max_file_bytes:
            raise ToolError(
                f"the file would have {len(data):,} bytes; the limit is {self.settings.max_file_bytes:,} bytes"
            )
        with self.open_folder(tuple(folders), is_made=True) as folder, _explained(parts, folder, name):
            mode, old_bytes = None, 0
            with suppress(FileNotFoundError):
                old = os.stat(name, dir_fd=folder, follow_symlinks=False)
                refuse_special(old, parts)
                mode, old_bytes = stat.S_IMODE(old.st_mode) & 0o777, old.st_blocks * 512
            self._refuse_overflow(len(data) - old_bytes, is_new=mode is None)
            _replace(folder, name, data, 0o600 if mode is None else mode)
        return mode is None

    def receive(self, folder: str, name: str, source: Path) -> str:
        """Copy a file from outside into a folder of the workspace, under an unused name, and return the copy's path.

        If the folder has a file with the same name and content, return that file's path instead.
        """
        if source.stat().st_size > self.settings.max_file_bytes:
            raise ToolError(f"it is larger than {self.settings.max_file_bytes:,} bytes")
        data, path = source.read_bytes(), PurePath(name)
        with self.lock:
            with self.open_folder((folder,), is_made=True):
                taken = {entry.parts[-1] for entry in self.walk((folder,), depth=1)}
            for number in itertools.count(1):
                parts = (folder, f"{path.stem}{f' ({number})' if number > 1 else ''}{path.suffix}")
                if parts[-1] not in taken:
                    self.write(parts, data)
                    break
                with suppress(ToolError):  # a link, for example
                    if self.read(parts) == data:
                        break
        return "/".join(parts)

    def walk(self, parts: PathParts = (), depth: int = MAX_DEPTH) -> Iterator[FileEntry]:
        """Yield at most `MAX_ENTRIES` entries below a folder, sorted by name, each folder before its contents."""
        with self.open_folder(parts) as folder:
            yield from _walk(folder, parts, depth, [MAX_ENTRIES])

    def _refuse_overflow(self, more_bytes: int, *, is_new: bool) -> None:
        count = used = 0
        for entry in self.walk():
            count, used = count + 1, used + entry.disk_bytes
        limit = self.settings.max_bytes
        if more_bytes > 0 and used + more_bytes > limit:
            raise ToolError(
                f"the workspace is full: {used:,} of {limit:,} bytes are used, and this needs {more_bytes:,} more"
            )
        if more_bytes > 0 and Room.on(self.folder).is_short(*MIN_ROOM_OF_TOOLS):
            raise ToolError("the disk is almost full, so nothing was written: the operator must free some space first")
        if is_new and count >= MAX_ENTRIES:
            raise ToolError(f"the workspace is full: it has {MAX_ENTRIES:,} files and folders")


def refuse_special(status: os.stat_result, parts: PathParts) -> None:
    """Raise `ToolError` unless a file is regular and has one hard link. Another link could be outside the workspace."""
    kind, name = stat.S_IFMT(status.st_mode), shown("/".join(parts))
    if kind == stat.S_IFLNK:
        raise ToolError(f"{name} is a symbolic link, which file tools do not follow")
    if kind == stat.S_IFDIR:
        raise ToolError(f"{name} is a folder")
    if kind != stat.S_IFREG:
        raise ToolError(f"{name} is not a regular file, but a pipe, a socket or a device")
    if status.st_nlink > 1:
        raise ToolError(f"{name} has more than one hard link, so file tools cannot use it; make a copy")


def _named(parts: PathParts) -> PathParts:
    if not parts:
        raise ToolError("this is the workspace itself: give the path of a file in it")
    return parts


@contextmanager
def _explained(parts: PathParts, folder: int, name: str) -> Iterator[None]:
    """Turn system errors about `name` in an open folder into messages for the model."""
    try:
        yield
    except OSError as error:
        path, reason = shown("/".join(parts) or "."), error.strerror or str(error)
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            with suppress(OSError):
                if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise ToolError(f"{path} is a symbolic link, which file tools do not follow") from error
            reason = "it is not a folder"
        elif error.errno == errno.ENOENT:
            raise ToolError(f"{path} does not exist; list_files shows the existing files") from error
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full"
        raise ToolError(f"{path} cannot be used: {reason}") from error


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    # The temporary name depends only on the target, so the next write replaces what a crash left behind.
    draft = f".{hashlib.sha256(name.encode()).hexdigest()[:16]}.draft"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):  # already renamed
            os.unlink(draft, dir_fd=folder)
    os.fsync(folder)


def _walk(folder: int, parts: PathParts, depth: int, room: list[int]) -> Iterator[FileEntry]:
    with os.scandir(folder) as found:
        names = sorted(entry.name for entry, _ in zip(found, range(room[0]), strict=False))
    for name in names:
        if room[0] <= 0:
            return
        room[0] -= 1
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:  # removed in the meantime, or no permission
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        yield FileEntry(
            parts=(*parts, name),
            is_folder=is_folder,
            is_file=stat.S_ISREG(status.st_mode) and status.st_nlink == 1,
            size=status.st_size,
            disk_bytes=status.st_blocks * 512,
        )
        if is_folder and depth > 1 and len(parts) < MAX_DEPTH:
            try:
                inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            except OSError:  # swapped in the meantime, or no permission
                continue
            try:
                yield from _walk(inner, (*parts, name), depth - 1, room)
            finally:
                os.close(inner)
