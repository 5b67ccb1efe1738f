"""Redaction: remove secrets from text at every boundary (logs, errors, search, summaries).

It finds the configured secrets, keys in well-known formats, values that the text itself calls a secret (`password=…`,
`Cookie: …`, `https://user:…@host`, "the password is …" in nine languages), and payment card numbers. The formats and
words are in `patterns.toml`.

>>> redact("export DB_PASS=tr0ub4dor; the order is 4111111111111111")
'export DB_PASS=[redacted]; the order is 4111111111111111'
"""

from hermes_state.redaction.assignments import is_secret_name
from hermes_state.redaction.parts import MIN_SECRET_CHARS, secret_parts
from hermes_state.redaction.patterns import MARK
from hermes_state.redaction.redactor import Redactor, redact, seam

__all__ = ["MARK", "MIN_SECRET_CHARS", "Redactor", "is_secret_name", "redact", "seam", "secret_parts"]
