"""A bucket of an object store with the files of attachments, and a folder before it with those that are used.

The object store has the files under the same paths as a folder. What can be made again from them stays on the machine
that made it. obstore, which speaks to it, is an extra: this is imported only where a bucket is configured.
"""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from hermes_state.attachments import StoredFile
from hermes_state.errors import ConfigError
from hermes_state.files.bucket_errors import os_errors, reason, start_error
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder, states_of, stored_file

if TYPE_CHECKING:
    from obstore.store import ObjectStore

IN_USE_SECONDS: Final = 600
"""Seconds for which a file stays in the cache after it was asked for, however full that is: it may yet be opened."""

CACHE_BYTES: Final = 1 << 30
"""Room for copies of what lies in the object store. A copy that was dropped is fetched again."""

_TRIMMED_AFTER: Final = 16
"""Part of the cache, as its divisor, that may be new before all of it is looked at once more."""

_CLIENT: Final = {"connect_timeout": "5s", "timeout": "120s"}
_CLIENT_OPTIONS: Final = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent"),
)
"""Options of the HTTP client, which obstore does not find among those of the object store."""
_RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_PARTS_AT_ONCE: Final = 2
"""Parts of a large file, of 5 MB each, that are sent side by side, and held in memory."""


class AttachmentBucket(AttachmentFolder):
    """Files of attachments in an object store. Its folder is a cache, of about `max_cache_bytes`."""

    def __init__(self, bucket: "ObjectStore", cache: Path, max_cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(cache)
        self._bucket = bucket
        self._max_cache_bytes = max_cache_bytes
        self._new_bytes = max_cache_bytes
        """Bytes that came into the cache since all of it was looked at."""

    def check(self) -> bool:
        """Write an object, read and remove it; False where something else was read. Raises obstore's errors."""
        name, data = f"check-{uuid4().hex}", b"hermes-gateway"
        obstore.put(self._bucket, name, data)
        found = bytes(obstore.get(self._bucket, name).bytes())
        obstore.delete(self._bucket, [name])
        return found == data

    def local(self, path: str) -> Path:
        cached = self.folder / path
        try:
            os.utime(cached)
        except FileNotFoundError:
            self._fetch(path)
        return cached

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), os_errors(path):
                obstore.delete(self._bucket, [path])
            super().remove([path])

    def _put(self, fetched: Path, file: StoredFile) -> None:
        with os_errors(file.path):
            obstore.put(self._bucket, file.path, fetched, max_concurrency=_PARTS_AT_ONCE)
        self._put_into_cache(fetched, file)

    def _fetch(self, path: str) -> None:
        fetched = self.new_file()
        try:
            with os_errors(path), fetched.open("wb") as file:
                for chunk in obstore.get(self._bucket, path).stream():
                    file.write(chunk)
            found = stored_file(fetched, "", None)
            if found.path != path:
                raise OSError(errno.EIO, "the object store has other bytes under this path")
            self._put_into_cache(fetched, found)
        finally:
            fetched.unlink(missing_ok=True)

    def _put_into_cache(self, fetched: Path, file: StoredFile) -> None:
        super()._put(fetched, file)
        self._new_bytes += file.size_bytes
        if self._new_bytes > self._max_cache_bytes // _TRIMMED_AFTER:
            self._new_bytes = 0
            self._trim()

    def _trim(self) -> None:
        """Let those files go that nobody has used for longest, and what a process left that ended."""
        self.remove_leftovers(int(time.time() * 1000) - LEFTOVER_MILLIS)
        states = states_of(self.folder.glob("*/*"))
        found = sorted((max(state.st_atime, state.st_mtime), state.st_size, path) for path, state in states)
        surplus = sum(size for _, size, _ in found) - self._max_cache_bytes
        for used_at, size, path in found:
            if surplus <= 0 or used_at > time.time() - IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            surplus -= size


def open_bucket(url: str, options: Mapping[str, str], cache: Path) -> AttachmentBucket:
    """The bucket at `url`, which was tried; `options` are obstore's, and count before the variables that it reads.

    Raises `ConfigError` where address, options or keys cannot be used, `StoreUnavailable` where the object store
    cannot be reached or written now.
    """
    names = {name: re.sub(r"^(?:aws|azure|google)_", "", name.lower()) for name in options}
    of_client = {names[name]: value for name, value in options.items() if names[name] in _CLIENT_OPTIONS}
    is_plain = any(value.startswith("http://") for value in options.values())
    client: Any = _CLIENT | {"allow_http": is_plain} | of_client
    config: Any = {name: value for name, value in options.items() if names[name] not in _CLIENT_OPTIONS}
    refused = f"attachments: {url} cannot be used with these options"
    with _without_panics(refused):
        try:
            store = from_url(url, config=config, client_options=client, retry_config=_RETRIES)
        except (BaseError, ValueError) as error:
            raise ConfigError(f"{refused}: {reason(error)}") from None
        bucket = AttachmentBucket(store, cache)
        try:
            is_object_store = bucket.check()
        except (BaseError, FileNotFoundError) as error:
            raise start_error(url, error) from None
    if not is_object_store:
        raise ConfigError(f"attachments.url: what is written to {url} is not what is read there: check the endpoint")
    return bucket


@contextmanager
def _without_panics(refused: str) -> Iterator[None]:
    """Raise `ConfigError` for an option that makes obstore panic: its panics are no `Exception`."""
    try:
        yield
    except BaseException as error:  # its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"{refused}: one is unknown or has no valid value ({reason(error)})") from None
