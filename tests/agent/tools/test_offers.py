"""Tool offers of sessions, the tool `more_tools`, and access rules."""

from dataclasses import replace
from typing import Any

import pytest

from agent.tool_calls import ResultBudget, ToolCallRunner
from agent.tools.offers import MORE_TOOLS, OfferRegistry, OpenAccess, Policy, offer, schema_tokens
from agent.tools.planning import context_tool
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolContext, ToolRegistry, tool
from hermes_state import journal
from hermes_state.errors import ToolError
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, ChatKind, Tokens, ToolCall, ToolEffect, UserRef
from tests.agent.conftest import Chat

CALL = ModelCall(purpose="turn", route="r", model="m", outcome="ok", usage=None, took_ms=0)
WORDS = "A tool with a description of some length, so that a dozen of them need more room than a small window has. "


def plain(name: str, source: str = "") -> Tool:
    @tool(name=name, description=WORDS * 3, parameters={"type": "object"}, effect=ToolEffect.WRITES, source=source)
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"{name} ran with {arguments}"

    return run


TOOLS = [*recall_tools(), *(plain(f"own_{number}") for number in range(8)), plain("foreign", source="elsewhere")]


def names(tools: tuple[Tool, ...]) -> list[str]:
    return [tool.name for tool in tools]


def test_all_tools_are_listed_if_there_is_room() -> None:
    assert offer(TOOLS, {}, Tokens(64_000)) == tuple(TOOLS)


def test_plugin_tools_are_left_out_first_then_unused_tools() -> None:
    all_of_it = sum(map(schema_tokens, TOOLS))
    most = names(offer(TOOLS, {"own_7": 1}, Tokens(all_of_it * 10 - 10)))
    assert most[-2:] == ["own_7", MORE_TOOLS]
    assert "foreign" not in most
    few = names(offer(TOOLS, {"own_6": 3}, Tokens(6_000)))
    assert few[:2] == ["history_search", "history_open"]
    assert "own_6" in few
    assert "foreign" not in few
    assert few[-1] == MORE_TOOLS


@pytest.mark.parametrize("window", [4_096, 16_384, 64_000, 200_000, 2_000_000])
def test_schemas_use_a_tenth_of_the_threshold_and_at_most_6000_tokens(window: int) -> None:
    many = [*recall_tools(), *(plain(f"tool_{number}", source="elsewhere") for number in range(200))]
    taken = sum(map(schema_tokens, offer(many, {}, Tokens(window))))
    least = sum(map(schema_tokens, offer(many, {}, Tokens(1))))
    assert taken <= max(least, min(6_000, window // 10))


class Conversation:
    """Chat with its offers."""

    def __init__(self, chat: Chat, registry: ToolRegistry, access: OpenAccess | None = None) -> None:
        self.chat = chat
        self.offers = OfferRegistry(registry, chat.store, access)

    async def names(self, threshold: int = 64_000) -> list[str]:
        turn = await self.chat.start("hello")
        view = await self.chat.store.read(_load, turn.lineage_id)
        return names(await self.offers.of(turn.conversation, view, Tokens(threshold)))


def _load(db: Any, lineage_id: Any) -> Any:
    from hermes_state.sessions import load_tip

    return load_tip(db, lineage_id).id


def test_a_small_window_lists_the_recall_tools_and_more_tools() -> None:
    listed = offer([*recall_tools(), context_tool, plain("own")], {}, Tokens(4_096))
    assert names(listed) == ["history_search", "history_open", MORE_TOOLS]
    assert sum(map(schema_tokens, listed)) <= (4_096 - 1_024) // 10


async def test_the_offer_of_a_session_does_not_change(chat: Chat, store: Store) -> None:
    registry = ToolRegistry(recall_tools())
    first = Conversation(chat, registry)
    turn = await chat.start("hello")
    session_id = await store.read(_load, turn.lineage_id)
    before = names(await first.offers.of(turn.conversation, session_id, Tokens(64_000)))
    registry.add(plain("later"))
    again = OfferRegistry(registry, store)  # as after a restart
    assert names(await again.of(turn.conversation, session_id, Tokens(64_000))) == before


class Harbour:
    """Source of one tool, which appears later."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tool] = {}

    def come_in(self, **fields: Any) -> None:
        self.by_name["harbour__look"] = replace(plain("harbour__look", source="harbour"), **fields)

    def why_missing(self, name: str) -> str | None:
        return "the harbour is closed" if name.startswith("harbour__") else None


async def test_an_awaited_tool_is_listed_as_soon_as_its_server_connects(chat: Chat) -> None:
    harbour = Harbour()
    harbour.come_in()
    registry = ToolRegistry(recall_tools(), harbour)
    turn = await chat.start("hello")
    session_id = await chat.store.read(_load, turn.lineage_id)
    before = names(await OfferRegistry(registry, chat.store).of(turn.conversation, session_id, Tokens(64_000)))
    assert before[-1] == "harbour__look"
    harbour.by_name.clear()
    offers = OfferRegistry(registry, chat.store)  # as after a restart
    assert names(await offers.of(turn.conversation, session_id, Tokens(64_000))) == before[:-1]
    harbour.come_in()
    assert names(await offers.of(turn.conversation, session_id, Tokens(64_000))) == before
    harbour.come_in(description="Another.")
    assert (await offers.of(turn.conversation, session_id, Tokens(64_000)))[-1].description != "Another."


def test_a_source_cannot_replace_a_built_in_tool() -> None:
    harbour, own = Harbour(), plain("harbour__look")
    harbour.come_in()
    registry = ToolRegistry([own], harbour)
    assert registry.get("harbour__look") is own
    assert registry.available() == (own,)


def test_a_call_to_a_missing_tool_says_why() -> None:
    harbour = Harbour()
    registry = ToolRegistry([], harbour)
    call = ToolCall(id="c", name="harbour__look", arguments="{}")
    for _ in range(2):
        with pytest.raises(ToolError, match="the harbour is closed"):
            registry.check(call)
        harbour.come_in(why_unavailable=lambda: "closed")
    with pytest.raises(ToolError, match="there is no tool named 'look'"):
        registry.check(ToolCall(id="c", name="look", arguments="{}"))


async def test_more_tools_finds_shows_and_runs_a_tool(chat: Chat) -> None:
    offers = OfferRegistry(ToolRegistry(TOOLS), chat.store)
    context = ToolContext.of(await chat.start("hello"), chat.store)

    def call(arguments: str) -> ToolCall:
        return ToolCall(id="c", name=MORE_TOOLS, arguments=arguments)

    listed = offers.resolve(call('{"query": "own_3"}'), context)
    assert "own_3" in (await listed.tool.reply(listed.arguments, context)).text.splitlines()[0]
    shown = offers.resolve(call('{"tool": "own_3"}'), context)
    assert "JSON schema" in (await shown.tool.reply(shown.arguments, context)).text
    run = offers.resolve(call('{"tool": "own_3", "arguments": {"a": 1}}'), context)
    assert (run.tool.name, run.call.name, run.call.id) == ("own_3", "own_3", "c")
    assert run.may_need_approval
    with pytest.raises(ToolError, match="no tool named 'nothing'"):
        offers.resolve(call('{"tool": "nothing", "arguments": {}}'), context)
    with pytest.raises(ToolError, match="no tool named 'more_tools'"):
        offers.resolve(call('{"tool": "more_tools", "arguments": {}}'), context)


class Closed(OpenAccess):
    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        return "it is switched off here" if tool.name == "own_1" else None


async def test_a_forbidden_tool_is_neither_listed_nor_run(chat: Chat) -> None:
    made = Conversation(chat, ToolRegistry(TOOLS), Closed())
    assert "own_1" not in await made.names()
    context = ToolContext.of(
        await Chat(chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="9")).start("x"),
        chat.store,
    )
    for name, arguments in (("own_1", "{}"), (MORE_TOOLS, '{"tool": "own_1", "arguments": {}}')):
        with pytest.raises(ToolError, match="switched off"):
            made.offers.resolve(ToolCall(id="c", name=name, arguments=arguments), context)


async def test_a_refused_call_through_more_tools_is_answered_under_its_own_name(chat: Chat) -> None:
    class Denying(OpenAccess):
        def policy(self, effect: ToolEffect, chat: ChatKey) -> Policy:
            return Policy.DENY

    registry = ToolRegistry([plain("own")])
    runner = ToolCallRunner(
        store=chat.store,
        clock=chat.clock,
        offers=OfferRegistry(registry, chat.store, Denying()),
        budget=ResultBudget(),
    )
    turn = await chat.start("hello")
    call = ToolCall(id="c", name=MORE_TOOLS, arguments='{"tool": "own", "arguments": {}}')
    step = ModelAnswer(text="", call=CALL, reported_prompt_tokens=None, calls=(call,))
    message = await chat.store.write(journal.append_calls, turn, step, chat.clock.now())
    await runner.run(turn, message, [call], ToolContext.of(turn, chat.store))
    row = (await chat.said(turn))[-1]
    assert (row.tool_name, row.tool_call_id) == (MORE_TOOLS, "c")
    assert "does not allow" in row.text
