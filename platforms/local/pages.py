"""Pages and their fragments as HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from platforms.base import CommandMenuItem
from platforms.local import names
from platforms.local.entries import Entry
from platforms.local.markdown import to_html


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatView:
    """Contents of the page of one chat."""

    name: str
    chats: Mapping[str, str | None]
    """Titles of the chats beside it, by name."""
    entries: Sequence[Entry]
    earlier_than: int | None
    position: str
    """Event id that the stream continues after."""


class PageRenderer:
    """Writer of pages from templates; knows no request and no store."""

    def __init__(self, *, menu: Sequence[CommandMenuItem], max_file_bytes: int) -> None:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters["markdown"] = to_html
        environment.filters["shown"] = names.shown
        environment.globals["menu"] = tuple(menu)
        environment.globals["can_stop"] = any(item.name == "stop" for item in menu)
        environment.globals["max_file_bytes"] = max_file_bytes
        self._environment = environment
        self._fragments = environment.get_template("fragments.html").module

    def chat(self, name: str) -> str:
        """Render the page of a chat without anything of its content."""
        return self._environment.get_template("chat.html").render(name=name)

    def entrance(self) -> str:
        """Render the page that takes a token to the gateway."""
        return self._environment.get_template("plain.html").render(
            title="Signing in", line="One moment …", script="enter.js"
        )

    def problem(self, title: str, line: str) -> str:
        """Render a page that says in a sentence or two what is wrong."""
        return self._environment.get_template("plain.html").render(title=title, line=line, script=None)

    def upsert(self, name: str, entries: Sequence[Entry], *, is_writing: bool | None) -> str:
        """Show `entries`, each instead of what has its `ref`, else anew; None leaves the typing sign alone."""
        return self._fragment("upsert", name, entries, is_writing)

    def removal(self, ref: str) -> str:
        """Take an entry off the page."""
        return self._fragment("removal", ref)

    def chat_list(self, name: str, chats: Mapping[str, str | None]) -> str:
        """Render the list of chats, and the heading of the chat `name`."""
        return self._fragment("chat_list", name, chats)

    def whole_log(self, view: ChatView) -> str:
        """Render all content, for a page that has none or missed too much."""
        return self._fragment("whole_log", view)

    def earlier(self, view: ChatView) -> str:
        """Render a stretch of the past, above what is shown."""
        return self._fragment("earlier_page", view)

    def complaint(self, sentence: str) -> str:
        """Render a sentence above the composer; empty takes it away."""
        return self._fragment("complaint", sentence)

    def _fragment(self, macro: str, *values: object) -> str:
        made: Markup = getattr(self._fragments, macro)(*values)
        return made.strip()
