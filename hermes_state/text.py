"""Text as the database and every network format can carry it."""


def well_formed(text: str) -> str:
    """`text` without NUL and without halves of surrogate pairs; two halves that belong together become their character.

    JSON can bring both in: a provider that cuts an emoji into two chunks sends one half in each.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def ends_in_half(text: str) -> bool:
    """Whether the last character is the first half of a pair whose second half may follow."""
    return "\ud800" <= text[-1:] <= "\udbff"
