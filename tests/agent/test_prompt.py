"""The system prompt: constant bytes for a session, independent of the date."""

import re

import pytest

from agent.prompt import DEFAULT_PERSONA, system_prompt
from hermes_state.values import ChatKey, ChatKind

CHAT = ChatKey(platform="telegram", account="telegram", chat_ref="42")
TOOLS = ("history_search", "history_open")


def prompt(kind: ChatKind = ChatKind.DIRECT, tools: tuple[str, ...] = TOOLS) -> str:
    return system_prompt(persona=DEFAULT_PERSONA, chat=CHAT, kind=kind, tool_names=tools)


@pytest.mark.parametrize("kind", list(ChatKind))
def test_every_kind_of_chat_has_a_system_prompt(kind: ChatKind) -> None:
    assert prompt(kind).startswith(DEFAULT_PERSONA)
    assert ("[Ann]" in prompt(kind)) is kind.is_shared


def test_it_explains_tools_stamps_and_untrusted_blocks() -> None:
    for part in ("history_search", "never write a timestamp yourself", "<quoted_message>", "<document>", "<history>"):
        assert part in prompt()
    assert "# Tools" not in prompt(tools=())
    assert "history_search" not in prompt(tools=("other",))
    no_example = prompt(ChatKind.GROUP).replace("[2026-03-31 14:05]", "")
    assert re.search(r"\b20\d\d\b", no_example) is None, "it contains no clock"
