"""Pages and their fragments as HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from platforms.base import MenuCommand
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


class PageWriter:
    """Writer of pages from templates; knows no request and no store."""

    def __init__(self, *, menu: Sequence[MenuCommand], max_file_bytes: int) -> None:
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

    def plain(self, title: str, line: str, script: str | None = None) -> str:
        """Render a page of a sentence or two, with the script that goes on from there."""
        return self._environment.get_template("plain.html").render(title=title, line=line, script=script)

    def fragment(self, macro: str, *values: object) -> str:
        """Render a macro of `fragments.html`, which says what each of them shows."""
        made: Markup = getattr(self._fragments, macro)(*values)
        return made.strip()
