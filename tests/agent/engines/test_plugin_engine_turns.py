"""Whole turns with a plugin's engine: real store, real SDK, a fake model server that judges every list."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.context.compressor import Engine
from agent.context.job import BlockedEvent
from agent.context.limits import ContextSettings
from agent.context.model_handle import ModelInfo
from agent.engines.adapter import PluginEngine
from agent.engines.contract import ContextEngine
from agent.engines.loader import FOLDER, load_engine
from agent.model.base import ChatModel, ToolSchema
from hermes_state import sessions
from hermes_state.redaction import redact
from hermes_state.transcripts import load_messages, load_view
from hermes_state.values import ConversationRef, MessageRole, Origin, Tokens
from tests.agent.conftest import Chat, Sink, agent_for, settings
from tests.agent.context.contexts import Listening, look
from tests.agent.engines.examples import KeepNewest
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM
from tests.fakes.llm_legality import untidy

WINDOW = 8_192
FILLER = "The quick brown fox jumps over the lazy dog and runs through the forest. " * 8


def agent_with(
    make: Callable[[], ContextEngine], chat: Chat, model: ChatModel, listening: Listening, home: str = ""
) -> SingleModelAgent:
    def make_engine(built_in: Engine) -> Engine:
        facts = ModelInfo(name=model.name, context_length=Tokens(WINDOW))
        schemas = [ToolSchema(**schema) for schema in make().get_tool_schemas()]
        return PluginEngine(
            "theirs",
            make,
            model=facts,
            fallback=built_in,
            redact=redact,
            clock=chat.clock,
            schemas=schemas,
            home=home,
            store=chat.store,
        )

    return agent_for(
        chat,
        model,
        configured=settings(
            context_length=Tokens(WINDOW),
            max_output_tokens=Tokens(WINDOW // 4),
            context=ContextSettings(mode="blocking"),
        ),
        listeners=[listening],
        make_engine=make_engine,
    )


async def converse(chat: Chat, agent: SingleModelAgent, texts: list[str]) -> ConversationRef:
    for text in texts:
        turn = await chat.start(text)
        await chat.finish(turn, await agent.run(turn, Sink()))
    return turn.conversation


def texts(count: int) -> list[str]:
    return [f"Message {number}: {FILLER}" for number in range(count)]


async def test_a_long_conversation_continues_with_a_plugin(chat: Chat, model: ChatModel, llm: LLM) -> None:
    made: list[KeepNewest] = []

    def make() -> KeepNewest:
        engine = KeepNewest()
        engine.threshold_percent = 0.5
        made.append(engine)
        return engine

    listening = Listening()
    agent = agent_with(make, chat, model, listening)
    conversation = await converse(chat, agent, texts(60))
    assert len(listening.compressions) >= 2
    assert {event.prepared.model for event in listening.compressions} == {"theirs"}
    [engine] = [one for one in made if one.calls]
    children = [("start", event.child.key, "compression", event.parent.key) for event in listening.compressions]
    assert [call for call in engine.calls if call[0] == "start"][1:] == children
    assert sum(call[0] == "usage" for call in engine.calls) == 60
    assert not any(call[0] == "end" for call in engine.calls)
    said = await chat.store.read(load_messages, conversation.lineage_id, 10_000)
    assert [row.text for row in said if row.role is MessageRole.USER] == texts(60)
    view = await chat.store.read(load_view, conversation.lineage_id)
    assert sum(row.origin is Origin.SUMMARY for row in view.transcript) == 1
    assert all(not untidy(row["violations"]) for row in llm.requests.rows)
    await agent.context.ended(view.session.id, was_reset=True)
    assert engine.calls[-1][0] != "reset", "it has not ended yet"
    await chat.store.write(sessions.reset, conversation.chat_id, chat.clock.now())
    await agent.context.ended(view.session.id, was_reset=True)
    assert [call[0] for call in engine.calls[-2:]] == ["end", "reset"]
    await agent.close()


async def test_a_plugin_with_a_high_threshold_gets_no_strikes(chat: Chat, model: ChatModel, llm: LLM) -> None:
    class KeepsMuch(KeepNewest):
        threshold_percent = 0.64
        protect_last_n = 22

    listening = Listening()
    agent = agent_with(KeepsMuch, chat, model, listening)
    conversation = await converse(chat, agent, texts(80))
    status = await agent.context.status(conversation)
    assert status.threshold == int(WINDOW * 0.64) > status.limits.threshold
    assert len(listening.compressions) >= 3
    assert min(event.prepared.tokens_after for event in listening.compressions) > status.limits.threshold
    assert not any(isinstance(event, BlockedEvent) for event in listening.events)
    assert (await look(chat, conversation.lineage_id)).state.strikes == 0
    await agent.close()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_plugin_written_for_hermes_agent_runs_unchanged(
    is_async: bool, chat: Chat, model: ChatModel, llm: LLM, tmp_path: Path
) -> None:
    """The plugin imports that project's modules, also registers a command, cannot be copied, and accepts fewer
    keywords."""
    folder = tmp_path / FOLDER / "pages"
    shutil.copytree(Path(__file__).parents[2] / "fixtures/plugins/pages", folder)
    if is_async:
        code = (folder / "__init__.py").read_text()
        for method in ("compress", "should_compress", "on_session_start", "handle_tool_call", "update_model"):
            code = code.replace(f"    def {method}(", f"    async def {method}(")
        (folder / "__init__.py").write_text(code)
    loaded = load_engine("pages", tmp_path)
    assert loaded is not None
    listening = Listening()
    agent = agent_with(loaded.make, chat, model, listening, home="/state")
    await converse(chat, agent, texts(20))
    assert {event.prepared.model for event in listening.compressions} == {"theirs"}
    llm.scripts.append({"times": 1, "reply": {"tool_calls": [{"name": "pages_open", "arguments": {"n": 1}}]}})
    conversation = await converse(chat, agent, ["What was on the first page?"])
    view = await chat.store.read(load_view, conversation.lineage_id)
    [result] = [row for row in view.transcript if row.role is MessageRole.TOOL]
    told = json.loads(result.text or "")
    assert told["pages"] == len(listening.compressions) >= 1
    assert told["live"] > 2
    assert told["told"] == ["/state", "telegram", model.name]
    await agent.close()
