"""Errors of object stores as the gateway's own, told apart by the codes that servers give with them.

obstore tells apart what is not there and what is forbidden; the rest is one class. Its words hold all that the server
has said, and addresses with signatures: only their first sentence and the server's code reach anybody.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from hermes_state.errors import ConfigError, HermesError, StoreUnavailable
from hermes_state.redaction import redact

_CODE: Final = re.compile(r"<Code>([A-Za-z.]{1,80})</Code>|\(code: ([A-Za-z.]{1,80})\)")
_STATUS: Final = re.compile(r"status code: (\d{3})")

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_CLOCK: Final = "RequestTimeTooSkewed"
_KEYS: Final = ("AccessDenied", "ExpiredToken", "InvalidToken")
"""Refusals of keys that do not come with 401 or 403."""
_ELSEWHERE: Final = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_PASSING: Final = re.compile(r"QuotaExceeded$|StorageFull$|^RequestTimeout$")
"""Refusals that may be over by themselves, whatever status they come with."""


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise what goes wrong with an object as an `OSError`; without a cause, whose words nobody may read.

    `FileNotFoundError` is raised only where the object is not there: a bucket that is missing may come back.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _code_of(error) in _NO_BUCKET:
            raise OSError(errno.EIO, reason(error)) from None
        raise FileNotFoundError(errno.ENOENT, "the object store does not have it", path) from None
    except BaseError as error:
        raise OSError(errno.EIO, reason(error)) from None


def start_error(url: str, error: Exception) -> HermesError:
    """The error of a start that could not write to `url`: of the configuration, or one that may be over by itself."""
    code, said = _code_of(error), str(error)
    if code == _CLOCK:
        return StoreUnavailable(
            f"the attachments cannot be written to {url}: the clocks of this machine and of {url}"
            f" differ too much ({code}); use NTP"
        )
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"attachments.url: there is no {url}: make the bucket first")
    if code in _ELSEWHERE or "redirect" in said:
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
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in _KEYS:
        return ConfigError(
            f"attachments.url: {url} may not be written, read and removed from with the keys of attachments.options or "
            f"the environment, or its endpoint is another one{_in_brackets(code)}"
        )
    return ConfigError(f"attachments.url: {url} cannot be written: {reason(error)}")


def reason(error: BaseException) -> str:
    """The first sentence of obstore's words and the server's code, without what servers say, and signatures."""
    first = re.split(r"[\n<]", str(error))[0]
    return redact(re.sub(r"\?\S+", "", first)).strip(" :") + _in_brackets(_code_of(error))


def _is_passing(error: Exception, code: str) -> bool:
    if _PASSING.search(code):
        return True
    status = _STATUS.search(str(error))
    if status is None:  # no server has answered
        return not code and not isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return status[1] in ("408", "409", "429") or (status[1] >= "500" and status[1] != "501")


def _code_of(error: BaseException) -> str:
    """The code that the server has given; empty where it has given none."""
    found = _CODE.search(str(error))
    return "" if found is None else found[1] or found[2]


def _in_brackets(code: str) -> str:
    return f" ({code})" if code else ""
