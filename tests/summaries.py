"""Summaries as a model would write them. Every section has unique words."""

from agent.context.summary import HEADINGS


def summary_saying(text: str) -> str:
    """Return a summary in which each section contains `text` and unique words."""
    own = {
        title: " ".join(letter + chr(ord("a") + number) for letter in "wxyz") for number, title in enumerate(HEADINGS)
    }
    return "\n\n".join(f"## {title}\n{text} {own[title]}" for title in HEADINGS)
