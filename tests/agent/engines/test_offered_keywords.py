"""Optional keywords that a plugin's methods can receive: message ids, a model, and a folder."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.engines.contract import ContextEngine
from agent.model.base import ChatModel
from hermes_state import sessions
from hermes_state.errors import ModelError
from hermes_state.models.ledger import call_outcomes
from hermes_state.transcripts import load_message
from hermes_state.values import Origin, parse_recall_id
from tests.agent.conftest import Chat
from tests.agent.context.contexts import Listening
from tests.agent.engines.examples import KeepNewest
from tests.agent.engines.test_plugin_engine import ROWS, job, plugin, prepared
from tests.agent.engines.test_plugin_engine_turns import agent_with, converse, texts
from tests.fakes.fake_llm import LLM

SECRET = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3


class Asking(KeepNewest):
    """Replaces older messages with a model's summary."""

    threshold_percent = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[tuple[list[Any], list[list[str]]]] = []
        self.failures: list[ModelError] = []

    def compress(  # type: ignore[override]
        self,
        messages: list[dict[str, Any]],
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        *,
        call_model: Callable[[str], str],
        message_ids: list[list[str]],
    ) -> list[dict[str, Any]]:
        self.ids.append((list(messages), message_ids))
        note, *rest = super().compress(messages, current_tokens, focus_topic)[1:]
        try:
            note = {"role": "user", "content": call_model(f"In one line: {note['content']} The key is {SECRET}.")}
        except ModelError as error:
            self.failures.append(error)
        return [note, *rest]


class AskingAsync(Asking):
    """The same engine with an async `compress`."""

    async def compress(  # type: ignore[override]
        self, messages: list[dict[str, Any]], *, call_model: Any, message_ids: list[list[str]], **kwargs: Any
    ) -> list[dict[str, Any]]:
        self.ids.append((list(messages), message_ids))
        note, *rest = KeepNewest.compress(self, messages, 1, None)[1:]
        return [{"role": "user", "content": await call_model(f"In one line: {note['content']} {SECRET}")}, *rest]


@pytest.mark.parametrize("kind", [Asking, AskingAsync])
async def test_an_engine_gets_model_calls_and_the_ids_of_its_messages(
    kind: type[Asking], chat: Chat, model: ChatModel, llm: LLM
) -> None:
    made: list[Asking] = []

    def make() -> Asking:
        made.append(kind())
        return made[-1]

    listening = Listening()
    agent = agent_with(make, chat, model, listening)
    conversation = await converse(chat, agent, texts(40))
    outcomes = await chat.store.read(call_outcomes, conversation.lineage_id, "summary")
    assert outcomes == ["ok"] * len(listening.compressions) != []
    asked = [row["body"]["messages"][-1]["content"] for row in llm.requests.rows if "In one line" in str(row["body"])]
    assert not any(SECRET in str(text) for text in asked)
    [summary] = [item for item in listening.compressions[-1].prepared.context if not isinstance(item, int)]
    assert "In one line: Earlier" in (summary.text or "")
    assert SECRET not in (summary.text or "")
    [engine] = [one for one in made if one.ids]
    for messages, ids in engine.ids:
        assert len(messages) == len(ids)
        for message, own in zip(messages, ids, strict=True):
            rows = [await chat.store.read(load_message, parse_recall_id(one)) for one in own]
            assert all(row.origin is not Origin.SUMMARY for row in rows)
            assert all((row.text or "") in str(message["content"]) for row in rows)
            assert rows or message["role"] == "system" or str(message["content"]).startswith("[CONTEXT COMPACTION")
    assert sum(not own for _, ids in engine.ids[1:] for own in ids) == 2 * len(engine.ids[1:]), "prompt and handoff"
    await agent.close()


async def test_a_failing_model_cools_down_and_the_engine_gets_the_error(chat: Chat, model: ChatModel, llm: LLM) -> None:
    engine = Asking()
    llm.scripts.append({"match": "In one line", "times": -1, "reply": {"error": {"kind": "401"}}})
    listening = Listening()
    agent = agent_with(lambda: engine, chat, model, listening)
    conversation = await converse(chat, agent, texts(60))
    assert len(listening.compressions) >= 2, "the engine continues without a summary"
    assert type(engine.failures[0]).__name__ == "AuthRejected"
    assert len(engine.failures) == len(listening.compressions)
    outcomes = await chat.store.read(call_outcomes, conversation.lineage_id, "summary")
    assert outcomes == ["auth"], "the model is not asked during its cooldown"
    await agent.close()


async def test_without_an_available_model_the_call_raises() -> None:
    engine = Asking()
    await prepared(plugin(lambda: engine), job(ROWS))
    assert [type(error).__name__ for error in engine.failures] == ["ModelUnavailable"]


async def test_a_call_after_the_end_of_its_compression_is_refused() -> None:
    calls: list[Callable[[str], str]] = []

    class Keeping(KeepNewest):
        def compress(self, messages: list[Any], *, call_model: Any, **kwargs: Any) -> list[Any]:  # type: ignore[override]
            calls.append(call_model)
            return messages

    await prepared(plugin(Keeping), job(ROWS))
    failures: list[str] = []

    def late() -> None:
        with pytest.raises(ModelError) as caught:
            calls[0]("too late")
        failures.append(str(caught.value))

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(5)
    assert failures == ["the compression has ended"]


async def test_a_conversations_folder_outlives_its_compressions(chat: Chat, model: ChatModel, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    class Placed(KeepNewest):
        threshold_percent = 0.5

        def on_session_start(self, session_id: str, *, storage: str, conversation: str, **kwargs: Any) -> None:  # type: ignore[override]
            assert "call_model" not in kwargs
            told.append((storage, conversation))
            with (Path(storage) / "notes").open("a") as notes:
                notes.write(f"{kwargs['reason']}\n")

    agent = agent_with(Placed, chat, model, Listening(), home=str(tmp_path))
    ref = await converse(chat, agent, texts(40))
    await agent.close()
    again = agent_with(Placed, chat, model, Listening(), home=str(tmp_path))
    await converse(chat, again, texts(1))
    await again.close()
    first = await chat.store.read(sessions.load_session, ref.lineage_id)
    assert set(told) == {(str(tmp_path / "context_engines" / "theirs" / first.key), first.key)}
    reasons = (Path(told[0][0]) / "notes").read_text().split()
    assert reasons[:2] == ["started", "compression"]
    assert reasons.count("resumed") == 1, "by the engine of a later process"


async def test_methods_without_these_parameters_get_no_keywords(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Older(KeepNewest):
        def on_session_start(self, session_id: str, **kwargs: Any) -> None:
            seen.append(set(kwargs))

        def compress(self, messages: list[Any], **kwargs: Any) -> list[Any]:  # type: ignore[override]
            seen.append(set(kwargs))
            return messages

        def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
            return "{}"

    engine: ContextEngine = Older()
    await prepared(plugin(lambda: engine, home=str(tmp_path)), job(ROWS))
    assert seen == [
        {"reason", "parent", "hermes_home", "platform", "model"},
        {"current_tokens", "focus_topic", "force"},
    ]
    assert not (tmp_path / "context_engines").exists()
