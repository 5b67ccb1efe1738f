"""What a model may be called: its name with the provider before it and the date behind it, and without."""

import re
from collections.abc import Iterator

_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{2}-\d{2}|latest)$")


def spellings(model: str) -> Iterator[str]:
    """What a model may be called in a list: `openai/gpt-5-2025-08-07` is also `gpt-5-2025-08-07` and `gpt-5`."""
    name = model.strip().lower()
    yield name
    bare = name.rpartition("/")[2]
    yield bare
    yield _DATE.sub("", name)
    yield _DATE.sub("", bare)
