"""Workspaces: the folder of each chat, which its file tools cannot leave. Everything here blocks its thread.

Folders are opened by the handle of their parent, never through links, so nothing swapped after a check is followed.
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

from agent.settings import WorkspaceSettings
from hermes_state.disk import MIN_ROOM_OF_TOOLS, Room
from hermes_state.errors import ToolError
from hermes_state.values import ChatId

MOUNT = "/workspace"
"""Path of the folder for programs in the terminal's sandbox. Tools accept paths below it, too."""
MAX_DEPTH = 40
"""Most folders on the way to a file. Walks hold one handle a level."""
MAX_ENTRIES = 100_000
"""Most files and folders of a workspace. With more, nothing new is written, and walks end."""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

PathParts: TypeAlias = tuple[str, ...]
"""Names on the way from the workspace to a file. Empty: the workspace itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    parts: PathParts
    is_folder: bool
    is_file: bool
    """True for a regular file with one name. No tool opens other entries, such as symbolic links."""
    size: int
    disk_bytes: int


def parse_path(text: str) -> PathParts:
    """Return the names in a path as a model writes it. Raises `ToolError` if it cannot be a path in a workspace.

    >>> parse_path("/workspace/notes//./plan.md")
    ('notes', 'plan.md')
    """
    inner = text
    if text == MOUNT or text.startswith(f"{MOUNT}/"):
        inner = text.removeprefix(MOUNT).lstrip("/")
    elif text.startswith(("/", "~")):
        raise ToolError(f"{shown(text)} is outside of the workspace: give a path in it, such as notes/plan.md")
    parts = tuple(part for part in inner.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ToolError(f"{shown(text)} has “..”: give the path from the workspace's top, such as notes/plan.md")
    if len(parts) > MAX_DEPTH:
        raise ToolError(f"the path has {len(parts)} folders; at most {MAX_DEPTH} are possible")
    for part in parts:
        # Persian words and emoji with several signs need the two joiners.
        if "\\" in part or not all(character.isprintable() or character in "\u200c\u200d" for character in part):
            raise ToolError(f"{shown(part)} cannot be a name here: it has a backslash or characters that do not print")
        if len(part.encode()) > 255:
            raise ToolError(f"{shown(part)} is too long for a name: at most 255 bytes")
    return parts


def shown(text: str) -> str:
    """Return a name or a path for a sentence: on one line, printable, at most 200 characters."""
    flat = "".join(character if character.isprintable() else "�" for character in text[:200])
    return f"“{flat}{'…' if len(text) > 200 else ''}”"


class WorkspaceStore:
    """Workspaces of all chats, each a folder `<chat id>/` in the state directory."""

    def __init__(self, folder: Path, settings: WorkspaceSettings) -> None:
        """`folder` is made when it is first needed. Its parent is trusted."""
        self.folder = folder
        self._settings = settings
        self._locks: WeakValueDictionary[ChatId, threading.Lock] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> "WorkspaceHandle":
        """Return a handle of a chat's workspace. Call it on the event loop."""
        lock = self._locks.setdefault(chat_id, threading.Lock())
        return WorkspaceHandle(self.folder, str(chat_id), self._settings, lock)

    def folder_of(self, chat_id: ChatId) -> Path:
        """Return the folder of a chat's workspace, and make it if it is missing."""
        with self.of(chat_id).open_folder(()):
            return self.folder / str(chat_id)


@dataclass(frozen=True, repr=False, slots=True)
class WorkspaceHandle:
    """Handle of one workspace. Every method raises `ToolError` with a sentence for the model."""

    folder: Path
    name: str
    settings: WorkspaceSettings
    lock: threading.Lock
    """Held by writers of this process."""

    @contextmanager
    def open_folder(self, parts: PathParts, *, is_made: bool = False) -> Iterator[int]:
        """Open a folder. `is_made`: make it and its parents if they are missing."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self.folder, _FOLDER_FLAGS & ~os.O_NOFOLLOW)  # an operator may have put it on another disk
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
            refuse_special(os.fstat(handle), parts)  # again: it may be another one by now
            yield file

    def read(self, parts: PathParts, most: int | None = None) -> bytes:
        """Read a whole file of at most `most` bytes."""
        limit = min(most or self.settings.max_file_bytes, self.settings.max_file_bytes)
        with self.open_file(parts) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ToolError(f"{shown('/'.join(parts))} is larger than {limit:,} bytes, which is the most")
        return data

    def write(self, parts: PathParts, data: bytes) -> bool:
        """Write a file as a whole or not at all, within `lock`. Return True if it is new.

        A file that was there keeps its permissions. Missing folders are made.
        """
        *folders, name = _named(parts)
        if len(data) > self.settings.max_file_bytes:
            raise ToolError(f"{len(data):,} bytes are too much for a file: at most {self.settings.max_file_bytes:,}")
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
        """Copy a file from elsewhere into a folder, under a free name, and return its path.

        If it is there already, with the same name and content, it is not copied again.
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
        """Yield at most `MAX_ENTRIES` entries of a folder, sorted by name, folders before their content."""
        with self.open_folder(parts) as folder:
            yield from _walk(folder, parts, depth, [MAX_ENTRIES])

    def _refuse_overflow(self, more_bytes: int, *, is_new: bool) -> None:
        count = used = 0
        for entry in self.walk():
            count, used = count + 1, used + entry.disk_bytes
        limit = self.settings.max_bytes
        if more_bytes > 0 and used + more_bytes > limit:
            raise ToolError(
                f"the workspace is full: {used:,} of {limit:,} bytes are taken, and this needs {more_bytes:,} more"
            )
        if more_bytes > 0 and Room.on(self.folder).is_short(*MIN_ROOM_OF_TOOLS):
            raise ToolError("the disk is almost full, so nothing was written: the operator must free some space first")
        if is_new and count >= MAX_ENTRIES:
            raise ToolError(f"the workspace is full: it holds {MAX_ENTRIES:,} files and folders")


def refuse_special(status: os.stat_result, parts: PathParts) -> None:
    """Raise `ToolError` for anything but a regular file with one name: a second one may be outside of the workspace."""
    kind, name = stat.S_IFMT(status.st_mode), shown("/".join(parts))
    if kind == stat.S_IFLNK:
        raise ToolError(f"{name} is a symbolic link, which file tools do not follow")
    if kind == stat.S_IFDIR:
        raise ToolError(f"{name} is a folder")
    if kind != stat.S_IFREG:
        raise ToolError(f"{name} is no ordinary file, but a pipe, a socket or a device")
    if status.st_nlink > 1:
        raise ToolError(f"{name} has a second name (a hard link), so file tools leave it alone; a copy can be used")


def _named(parts: PathParts) -> PathParts:
    if not parts:
        raise ToolError("that is the workspace itself: name a file in it")
    return parts


@contextmanager
def _explained(parts: PathParts, folder: int, name: str) -> Iterator[None]:
    """Turn errors of the system about `name` in an open folder into sentences for the model."""
    try:
        yield
    except OSError as error:
        path, reason = shown("/".join(parts) or "."), error.strerror or str(error)
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            with suppress(OSError):
                if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise ToolError(f"{path} is a symbolic link, which file tools do not follow") from error
            reason = "it is no folder"
        elif error.errno == errno.ENOENT:
            raise ToolError(f"there is no {path}; list_files shows what there is") from error
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full"
        raise ToolError(f"{path} cannot be used: {reason}") from error


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    # One name for each target: the next write of the same file removes the leftover of a crash.
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
        with suppress(OSError):  # it is gone after a rename
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
        except OSError:  # gone meanwhile, or its folder is closed to us
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
            except OSError:  # swapped or closed to us since
                continue
            try:
                yield from _walk(inner, (*parts, name), depth - 1, room)
            finally:
                os.close(inner)
