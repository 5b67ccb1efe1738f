"""Words and numbers on the pages: durations, amounts and the names of platforms."""

PLATFORMS = {"telegram": "Telegram", "discord": "Discord", "local": "Web chat"}


def platform_name(name: str) -> str:
    return PLATFORMS.get(name, name)


def duration(milliseconds: int) -> str:
    """Return a duration with at most two units.

    >>> duration(900), duration(61_000), duration(7_300_000), duration(200_000_000)
    ('0 s', '1 min 1 s', '2 h 1 min', '2 d 7 h')
    """
    seconds = max(0, milliseconds) // 1_000
    units = (("d", seconds // 86_400), ("h", seconds // 3_600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60))
    shown = [f"{count} {unit}" for unit, count in units if count]
    return " ".join(shown[:2]) or "0 s"
