"""Interface between the web pages and the gateway, which provides their data and carries out their actions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from hermes_state.values import LOCAL_OWNER, ChatKey, ChatKind, MessageRole, UserRef

Values: TypeAlias = Mapping[str, Any]  # `Any`: the template of the page uses them
"""Data for the template of a page."""


def author(role: MessageRole, sender: str | None, tool: str | None) -> str:
    """Return the display name of a message's author."""
    if role is MessageRole.ASSISTANT:
        return "Hermes"
    return f"Tool {tool or 'result'}" if role is MessageRole.TOOL else sender or "Person"


def platform_name(account: str) -> str:
    """Return the display name of a platform, or of an account: `Telegram (operations)`."""
    platform, _, name = account.partition("/")
    shown = {"telegram": "Telegram", "discord": "Discord", "local": "Web chat"}.get(platform, platform)
    return f"{shown} ({name})" if name else shown


class ConsolePage(msgspec.Struct, frozen=True, kw_only=True):
    """Page of the console. Its template is `console/<name>.html`."""

    name: str
    title: str
    is_for_admins: bool = True
    is_in_menu: bool = True
    refresh_seconds: int | None = None
    """Seconds after which an open page loads its content again, or None if it never does."""


class WebPerson(msgspec.Struct, frozen=True, kw_only=True):
    """Person who is signed in to the web pages."""

    ref: UserRef
    name: str
    is_admin: bool

    @property
    def id(self) -> str:
        return self.ref.removeprefix("local:")

    def chat_key(self, name: str) -> ChatKey:
        """Return the key of the person's chat with this name."""
        user_ref = "" if self.ref == LOCAL_OWNER else self.id
        return ChatKey(platform="local", account="local", chat_ref=name, user_ref=user_ref)

    def owns(self, key: ChatKey) -> bool:
        """Return True if this is the key of one of the person's own chats."""
        return key == self.chat_key(key.chat_ref)

    def may_see(self, page: ConsolePage) -> bool:
        return self.is_admin or not page.is_for_admins

    def menu(self, pages: Sequence[ConsolePage]) -> Sequence[ConsolePage]:
        """Return the pages in this person's menu."""
        return [page for page in pages if page.is_in_menu and self.may_see(page)]


class SentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command that the person sends to a chat, as if they had pressed a button there. The chat gets the reply."""

    chat: ChatKey
    kind: ChatKind
    text: str
    said: str
    """Sentence for the person who sent the command."""


class Console(Protocol):
    """The gateway's part of the web pages. Each method raises `CommandError` with a sentence for the person."""

    @property
    def pages(self) -> Sequence[ConsolePage]: ...

    def find_person(self, ref: UserRef, name: str) -> WebPerson | None:
        """Return the person with their current role, or None if they have no access."""

    async def start_page(self) -> str | None:
        """Return the page on which the owner sets up a new gateway, or None once that is done."""

    async def load(self, page: str, person: WebPerson, query: Mapping[str, str]) -> Values:
        """Load the content of a page. The caller has checked that the person may see the page."""

    async def act(self, page: str, action: str, person: WebPerson, form: Mapping[str, str]) -> str | SentCommand:
        """Carry out an action of a page. Return a sentence that says what happened, or a command to send to a chat."""
