"""Encodings in which a secret could leave in an address or a search: other case, signs in between, base64, hexadecimal.

Only letters and digits are compared, in lower case, so that capitals and signs between them make no difference.
"""

import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote_plus

_MIN_CHARS = 8
_MAX_LAYERS = 5
_SIGNS = re.compile(r"[\W_]+")


def holds_encoded(text: str, secrets: Iterable[str]) -> bool:
    """Return True when one of the secrets stands in `text`, plainly or in a common encoding."""
    layers = tuple(_layers(text))
    return any(form in layer for secret in secrets for form in _forms(secret) for layer in layers)


def _layers(text: str) -> Iterator[str]:
    """Yield the text as it is and without each layer of percent-encoding."""
    for _ in range(_MAX_LAYERS):
        yield _plain(text)
        if (inner := unquote_plus(text)) == text:
            return
        text = inner


def _plain(text: str) -> str:
    return _SIGNS.sub("", unicodedata.normalize("NFKC", text).lower())


@lru_cache(maxsize=4_000)
def _forms(secret: str) -> frozenset[str]:
    """Return the encodings of a secret; of base64, what is the same whatever stands before and after the secret."""
    data = secret.encode("utf-8", "surrogatepass")
    encoded = [b64encode(bytes(shift) + data).decode().rstrip("=")[-(-8 * shift // 6) : -1] for shift in range(3)]
    return frozenset(form for form in map(_plain, (secret, data.hex(), *encoded)) if len(form) >= _MIN_CHARS)
