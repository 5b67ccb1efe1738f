"""Attachment files in a bucket of an object store, with a folder as cache.

Paths are the same as in a folder. Scaled copies of images are not uploaded. obstore is an optional dependency, so this
module is imported only if a bucket is configured.
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
"""Minimum time in seconds that a requested file stays in a full cache, because a caller may be about to open it."""
_CLIENT_OPTIONS: Final = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent"),
)
"""Options of the HTTP client, which obstore expects separately."""


class AttachmentBucket(AttachmentFolder):
    """Attachment files in an object store. A local folder of about `max_cache_bytes` is its cache."""

    def __init__(self, bucket: "ObjectStore", cache: Path, max_cache_bytes: int = 1 << 30) -> None:
        super().__init__(cache)
        self._bucket = bucket
        self._max_cache_bytes = max_cache_bytes
        self._new_bytes = max_cache_bytes
        """Bytes added to the cache since the last trim. Starts at the maximum, so the first file triggers a trim."""

    def check(self) -> bool:
        """Write, read and delete an object. Return False if the bytes differ. Raises obstore's errors."""
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
                raise OSError(errno.EIO, "the object store has different bytes under this path")
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
        """Remove the least recently used files, and unfinished downloads left by processes that have ended."""
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
    """Open and test the bucket at `url`. `options` take precedence over environment variables.

    Raises `ConfigError` for an unusable address, option or key, and `StoreUnavailable` for a temporary failure.
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
        raise ConfigError(f"attachments.url: {url} does not return the bytes that were written: check the endpoint")
    return bucket


@contextmanager
def _without_panics(refused: str) -> Iterator[None]:
    """Raise `ConfigError` for an option that makes obstore panic. A panic is not a subclass of `Exception`."""
    try:
        yield
    except BaseException as error:  # obstore does not export the class of panics
        if type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"{refused}: an option is unknown or has an invalid value ({reason(error)})") from None


# obstore has one class for most errors, so the server's error code distinguishes them. Error texts contain the server's
# whole response and signed addresses, so only the first sentence and the code are shown.


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Translate errors about an object to `OSError`. The cause is left out, because it may contain a signed address.

    `FileNotFoundError` means that the object is missing. A missing bucket raises another `OSError`, because the bucket
    may reappear.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _code_of(error) in ("NoSuchBucket", "ContainerNotFound"):
            raise OSError(errno.EIO, reason(error)) from None
        raise FileNotFoundError(errno.ENOENT, "not in the object store", path) from None
    except BaseError as error:
        raise OSError(errno.EIO, reason(error)) from None


def start_error(url: str, error: Exception) -> HermesError:
    """Return the error for a failed test of `url`: `StoreUnavailable` if it may work later, otherwise `ConfigError`."""
    code, said = _code_of(error), str(error)
    if code == "RequestTimeTooSkewed":
        return StoreUnavailable(
            f"the attachments cannot be written to {url}: the clock of this machine differs "
            f"too much from the server's ({code}): synchronise it with NTP"
        )
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"attachments.url: {url} does not exist: create the bucket first")
    if code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException") or "redirect" in said:
        return ConfigError(
            f"attachments.url: the region or endpoint in attachments.options does not match {url}: {reason(error)}"
        )
    if "ETag" in said:
        return ConfigError(
            f"attachments.url: the endpoint in attachments.options is not an object store: {reason(error)}"
        )
    if "builder error" in said:
        return ConfigError(f"attachments.options: the endpoint or the proxy is not a valid address: {reason(error)}")
    if _is_passing(error, code):
        return StoreUnavailable(f"the attachments cannot be written to {url}: {reason(error)}")
    is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_refused or code in ("AccessDenied", "ExpiredToken", "InvalidToken"):  # not always with status 401 or 403
        return ConfigError(
            f"attachments.options: these keys, or those in the environment, do not let the gateway "
            f"write, read and delete files in {url}, or the endpoint is wrong{f' ({code})' if code else ''}"
        )
    return ConfigError(f"attachments.url: {url} is not writable: {reason(error)}")


def reason(error: BaseException) -> str:
    """Return the error's first sentence and the server's error code, but not the server's text or signatures."""
    first, code = re.split(r"[\n<]", str(error))[0], _code_of(error)
    return redact(re.sub(r"\?\S+", "", first)).strip(" :") + (f" ({code})" if code else "")


def _is_passing(error: Exception, code: str) -> bool:
    if re.search(r"QuotaExceeded$|StorageFull$|^RequestTimeout$", code):  # these codes come with various statuses
        return True
    status = re.search(r"status code: (\d{3})", str(error))
    if status is None:  # no server answered
        return not code and not isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return status[1] in ("408", "409", "429") or (status[1] >= "500" and status[1] != "501")


def _code_of(error: BaseException) -> str:
    """Return the server's error code, or an empty string."""
    found = re.search(r"<Code>([A-Za-z.]{1,80})</Code>|\(code: ([A-Za-z.]{1,80})\)", str(error))
    return "" if found is None else found[1] or found[2]
