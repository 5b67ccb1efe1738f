"""Bucket of an object store with the files of attachments, and a folder as its cache.

The object store has the files under the same paths as a folder. Scaled copies stay on the machine that made them.
obstore is an extra: this module is imported only if a bucket is configured.
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
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from hermes_state.attachments import StoredFile
from hermes_state.errors import ConfigError, HermesError, StoreUnavailable
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder, states_of, stored_file
from hermes_state.redaction import redact

if TYPE_CHECKING:
    from obstore.store import ObjectStore

IN_USE_SECONDS: Final = 600
"""Seconds for which a file stays in a full cache after it was asked for: it may yet be opened."""
_CLIENT_OPTIONS: Final = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent"),
)
"""Options of the HTTP client, which obstore does not find among those of the object store."""


class AttachmentBucket(AttachmentFolder):
    """Files of attachments in an object store. Its folder is a cache, of about `max_cache_bytes`."""

    def __init__(self, bucket: "ObjectStore", cache: Path, max_cache_bytes: int = 1 << 30) -> None:
        super().__init__(cache)
        self._bucket = bucket
        self._max_cache_bytes = max_cache_bytes
        self._new_bytes = max_cache_bytes
        """Bytes that came into the cache since the last look at all of it."""

    def check(self) -> bool:
        """Write an object, read and remove it; False if the bytes differ. Raises obstore's errors."""
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
            obstore.put(self._bucket, file.path, fetched, max_concurrency=2)  # parts of 5 MB, held in memory
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
        if self._new_bytes > self._max_cache_bytes // 16:
            self._new_bytes = 0
            self._trim()

    def _trim(self) -> None:
        """Remove the files that were used longest ago, and those that an ended process was fetching."""
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
    """Open and try the bucket at `url`. obstore's `options` take precedence over environment variables.

    Raises `ConfigError` if address, options or keys cannot be used, `StoreUnavailable` if they cannot be used now.
    """
    names = {name: re.sub(r"^(?:aws|azure|google)_", "", name.lower()) for name in options}
    of_client = {names[name]: value for name, value in options.items() if names[name] in _CLIENT_OPTIONS}
    is_plain = any(value.startswith("http://") for value in options.values())
    client: Any = {"connect_timeout": "5s", "timeout": "120s", "allow_http": is_plain} | of_client
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
    config: Any = {name: value for name, value in options.items() if names[name] not in _CLIENT_OPTIONS}
    refused = f"attachments: {url} cannot be used with these options"
    with _without_panics(refused):
        try:
            store = from_url(url, config=config, client_options=client, retry_config=retries)
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


# Errors. obstore has one class for all but "not found" and "forbidden", so the server's codes tell the rest apart. Its
# texts hold the server's whole answer and addresses with signatures: only the first sentence and the code are repeated.


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise errors of an object as `OSError`, without a cause: its text may hold an address with a signature.

    `FileNotFoundError` says that the object is not there. A missing bucket is another error, because it may come back.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _code_of(error) in ("NoSuchBucket", "ContainerNotFound"):
            raise OSError(errno.EIO, reason(error)) from None
        raise FileNotFoundError(errno.ENOENT, "the object store does not have it", path) from None
    except BaseError as error:
        raise OSError(errno.EIO, reason(error)) from None


def start_error(url: str, error: Exception) -> HermesError:
    """Return the error of a start that could not write to `url`: of the configuration, or a passing one."""
    code, said = _code_of(error), str(error)
    if code == "RequestTimeTooSkewed":
        return StoreUnavailable(
            f"the attachments cannot be written to {url}: the clocks of this machine and of {url}"
            f" differ too much ({code}); use NTP"
        )
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"attachments.url: there is no {url}: make the bucket first")
    if code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException") or "redirect" in said:
        return ConfigError(
            f"attachments.url: the region or the endpoint of attachments.options is not that of {url}: {reason(error)}"
        )
    if "ETag" in said:
        return ConfigError(f"attachments.url: the endpoint of attachments.options is no object store: {reason(error)}")
    if "builder error" in said:
        return ConfigError(
            f"attachments.options: the endpoint or the proxy is no address that can be asked: {reason(error)}"
        )
    if _is_passing(error, code):
        return StoreUnavailable(f"the attachments cannot be written to {url}: {reason(error)}")
    is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_refused or code in ("AccessDenied", "ExpiredToken", "InvalidToken"):  # these may come without 401 or 403
        return ConfigError(
            f"attachments.url: {url} may not be written, read and removed from with the keys of attachments.options or "
            f"the environment, or its endpoint is another one{f' ({code})' if code else ''}"
        )
    return ConfigError(f"attachments.url: {url} cannot be written: {reason(error)}")


def reason(error: BaseException) -> str:
    """Return the first sentence of obstore and the server's code, without the server's text and signatures."""
    first, code = re.split(r"[\n<]", str(error))[0], _code_of(error)
    return redact(re.sub(r"\?\S+", "", first)).strip(" :") + (f" ({code})" if code else "")


def _is_passing(error: Exception, code: str) -> bool:
    """Recognise a refusal that may end by itself."""
    if re.search(r"QuotaExceeded$|StorageFull$|^RequestTimeout$", code):  # whatever the status is
        return True
    status = re.search(r"status code: (\d{3})", str(error))
    if status is None:  # no server has answered
        return not code and not isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return status[1] in ("408", "409", "429") or (status[1] >= "500" and status[1] != "501")


def _code_of(error: BaseException) -> str:
    """Return the code that the server has given, or an empty text."""
    found = re.search(r"<Code>([A-Za-z.]{1,80})</Code>|\(code: ([A-Za-z.]{1,80})\)", str(error))
    return "" if found is None else found[1] or found[2]
