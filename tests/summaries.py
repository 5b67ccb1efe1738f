"""Summaries as a model would write them: every section has words of its own."""

from agent.context.summary import HEADINGS


def summary_saying(text: str) -> str:
    """A summary in which each section says this, and something of its own."""
    own = {
        title: " ".join(letter + chr(ord("a") + number) for letter in "wxyz") for number, title in enumerate(HEADINGS)
    }
    return "\n\n".join(f"## {title}\n{text} {own[title]}" for title in HEADINGS)
