"""Encodings in which a secret could leave inside an address or a search: base64, hex, other case, several pieces.

Only letters and digits are compared, in lower case, so that signs between them and capitals make no difference.
"""

import re
import unicodedata
from base64 import b32encode, b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote_plus

_MIN_CHARS = 8
_PIECE_CHARS = 12
"""Letters and digits in a row, one a digit, that count as the secret they are a part of."""
_MAX_LAYERS = 5
_SIGNS = re.compile(r"[\W_]+")


def holds_encoded(text: str, secrets: Iterable[str]) -> bool:
    """Return True when one of the secrets stands in `text`: plain, in a common encoding, or in pieces."""
    known = [_forms(secret) for secret in secrets]
    for layer in _layers(text):
        words = [word for word in _SIGNS.split(layer) if word]
        joined = "".join(words)
        sent = _pieces(joined)
        for forms, pieces in known:
            if not sent.isdisjoint(pieces) or any(form in joined or _is_spelled(form, words) for form in forms):
                return True
    return False


def _layers(text: str) -> Iterator[str]:
    """Yield the text as it is and without each layer of percent-encoding."""
    for _ in range(_MAX_LAYERS):
        yield unicodedata.normalize("NFKC", text).lower()
        if (inner := unquote_plus(text)) == text:
            return
        text = inner


@lru_cache(maxsize=1_000)
def _forms(secret: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the encodings of a secret, and the pieces of them that count as the secret."""
    if secret.startswith("eyJ"):  # JSON web tokens begin alike; their signatures differ
        secret = secret.rpartition(".")[2]
    data = secret.encode("utf-8", "surrogatepass")
    found = [secret, secret[::-1], data.hex()]
    found += (_core(b64encode(bytes(shift) + data), shift, 6) for shift in range(3))
    found += (_core(b32encode(bytes(shift) + data), shift, 5) for shift in range(5))
    plain = (_SIGNS.sub("", unicodedata.normalize("NFKC", form).lower()) for form in found)
    forms = frozenset(form for form in plain if len(form) >= _MIN_CHARS)
    return forms, frozenset().union(*map(_pieces, forms))


def _core(encoded: bytes, shift: int, bits: int) -> str:
    """Return the characters that are the same whatever stands before and after the secret."""
    text = encoded.decode().rstrip("=")
    return text[-(-8 * shift // bits) : -1]


def _pieces(plain: str) -> set[str]:
    runs = (plain[start : start + _PIECE_CHARS] for start in range(len(plain) - _PIECE_CHARS + 1))
    return {run for run in runs if not run.isalpha()}


def _is_spelled(form: str, words: Iterable[str]) -> bool:
    """Return True when some of the words, in their order, make up the form."""
    reached = {0}
    for word in words:
        reached |= {at + len(word) for at in reached if form.startswith(word, at)}
    return len(form) in reached
