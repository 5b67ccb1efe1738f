"""A disk with slow reads: our own layer below SQLite for the files opened on it."""

import ctypes
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

_POINTER = ctypes.c_void_p
_SIZE = ctypes.sizeof(_POINTER)
_VFS_POINTERS = 22
"""Size of `sqlite3_vfs`, version 3."""
_NAME, _OPEN = 3, 5
"""Offsets of the name and of `xOpen` in it, after three numbers that take two places."""
_METHODS_POINTERS = 19
"""Size of `sqlite3_io_methods`, version 3."""
_READ = 2
_OPEN_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, _POINTER)
_READ_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)


@dataclass
class SlowDisk:
    """Delays reads by `seconds` and records the thread that waited for each."""

    seconds: float = 0.0
    waits: list[int] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)  # objects that SQLite points to must not be garbage-collected

    def copied(self, address: int, pointers: int) -> Any:
        copy = (_POINTER * pointers)()
        ctypes.memmove(copy, address, pointers * _SIZE)
        self._kept.append(copy)
        return copy

    def reading(self, original: int) -> int:
        real = _READ_TYPE(original)

        def read(file: int, buffer: int, size: int, offset: int) -> int:
            if self.seconds:
                self.waits.append(threading.get_ident())
                time.sleep(self.seconds)
            return int(real(file, buffer, size, offset))

        self._kept.append(callback := _READ_TYPE(read))
        return ctypes.cast(callback, _POINTER).value or 0

    def opening(self, original: int) -> int:
        real, known = _OPEN_TYPE(original), dict[int, Any]()

        def open_file(vfs: int, name: int, file: int, flags: int, out_flags: int) -> int:
            code = int(real(vfs, name, file, flags, out_flags))
            methods = ctypes.cast(file, ctypes.POINTER(_POINTER))
            if code == 0 and methods[0]:
                if methods[0] not in known:
                    known[methods[0]] = copy = self.copied(methods[0], _METHODS_POINTERS)
                    copy[_READ] = self.reading(copy[_READ])
                methods[0] = ctypes.addressof(known[methods[0]])
            return code

        self._kept.append(callback := _OPEN_TYPE(open_file))
        return ctypes.cast(callback, _POINTER).value or 0


@contextmanager
def slow_disk() -> Iterator[SlowDisk]:
    """Open the files of this block on a disk that can be made slow. Skips if SQLite is part of Python."""
    try:
        lib = ctypes.CDLL("libsqlite3.so.0")
    except OSError as error:
        pytest.skip(f"this Python has a SQLite of its own: {error}")
    lib.sqlite3_vfs_find.restype = _POINTER
    disk = SlowDisk()
    vfs = disk.copied(lib.sqlite3_vfs_find(None), _VFS_POINTERS)
    name = ctypes.create_string_buffer(b"slow")
    vfs[2], vfs[_NAME] = None, ctypes.addressof(name)
    vfs[_OPEN] = disk.opening(vfs[_OPEN])
    default = lib.sqlite3_vfs_find(None)
    lib.sqlite3_vfs_register(_POINTER(ctypes.addressof(vfs)), 1)
    try:
        sqlite3.connect("file::memory:?vfs=slow", uri=True).close()
    except sqlite3.OperationalError:
        pytest.skip("this Python has a SQLite of its own")
    try:
        yield disk
    finally:
        disk.seconds = 0.0
        lib.sqlite3_vfs_register(_POINTER(default), 1)
        lib.sqlite3_vfs_unregister(_POINTER(ctypes.addressof(vfs)))
