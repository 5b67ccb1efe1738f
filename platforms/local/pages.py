"""Rendering of pages and page fragments as HTML, and the names of chats in URLs."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from hermes_state.text import counted, dollars, duration
from hermes_state.values import ChatKey, MicroUsd
from hermes_state.web_chats import shown_name
from platforms.base import MenuCommand
from platforms.console import ConsolePage, Values, WebPerson, author, platform_name
from platforms.local.markdown import to_html

MAX_NAME_CHARACTERS = 32


class PageWriter:
    """Renders pages from templates. Has no access to requests or the store."""

    def __init__(self, *, menu: Sequence[MenuCommand], max_file_bytes: int) -> None:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters.update(markdown=to_html, shown=shown_name, platform=platform_name)
        environment.filters.update(dollars=_dollars, duration=duration, counted=counted)
        names = frozenset(item.name for item in menu)
        environment.globals.update(menu=tuple(menu), commands=names, max_file_bytes=max_file_bytes, author=author)
        self._environment = environment
        self._macros = {
            **vars(environment.get_template("fragments.html").module),
            **vars(environment.get_template("chat_list.html").module),
        }

    def page(self, template: str, **values: object) -> str:
        """Render a page shell, without its content: `chat` (with `name`), or `console` (with `page` and `query`)."""
        return self._environment.get_template(f"{template}.html").render(values)

    def console_content(self, page: ConsolePage, person: WebPerson, values: Values, menu: Sequence[ConsolePage]) -> str:
        """Render the content and the menu of a console page."""
        content = self._environment.get_template(f"console/{page.name}.html").render(values, person=person)
        return Markup(content) + self.fragment("page_menu", menu, page.name)

    def plain(self, title: str, line: str, script: str | None = None) -> str:
        """Render a page with one or two sentences, and an optional script to run on it."""
        return self.page("plain", title=title, line=line, script=script)

    def fragment(self, macro: str, *values: object) -> str:
        """Render a macro of `fragments.html` or `chat_list.html`."""
        made: Markup = self._macros[macro](*values)
        return made.strip()


def _dollars(cost: MicroUsd | None) -> str:
    return "unknown" if cost is None else dollars(cost)


def chat_key(name: str, person_id: str = "") -> ChatKey:
    """Return the key of a chat; `person_id` is empty for the owner."""
    return ChatKey(platform="local", account="local", chat_ref=name, user_ref=person_id)


def named_after(text: str) -> str:
    """Return a chat name made from typed text, with letters, marks and digits of any script, `-` and `_`. Can be empty.

    >>> named_after("Über café"), named_after("旅行 2026!"), named_after("../"), named_after("हिन्दी")
    ('über-café', '旅行-2026', '', 'हिन्दी')
    """
    kept = "".join(character if _is_kept(character) else " " for character in _folded(text))
    return "-".join(kept.split()).strip("-_")[:MAX_NAME_CHARACTERS].strip("-_")


def is_name(text: str) -> bool:
    """Return True if a chat can have this name."""
    is_whole = 0 < len(text) <= MAX_NAME_CHARACTERS and text[0] not in "-_" and text == _folded(text)
    return is_whole and all(map(_is_kept, text))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())


def _is_kept(character: str) -> bool:
    return character in "-_" or unicodedata.category(character)[0] in "LMN"
