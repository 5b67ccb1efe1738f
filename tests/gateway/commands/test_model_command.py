"""`/model` and `/think`: the list, and the scope of a choice."""

from collections.abc import AsyncIterator, Callable

import pytest

from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.model.base import ModelReply, ModelRequest
from agent.prompt import PromptBuilder
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from agent.turn import Agent
from gateway.config.routes import RouteConfig
from gateway.models.selection import ModelRegistry
from hermes_state.turns import find_open_turn
from hermes_state.values import ChatId, Tokens
from tests.agents import TurnSettings, handle_of
from tests.clients import client_of
from tests.gateway.helpers import BOSS, GROUP, Hang, ScriptedModel, Serve, TestGateway, answer, config_of, hanging
from tests.gateway.models.windows import WORDS, CountingModel

MODELS = {"aliases": {"fast": "small", "slow": "large"}, "fallbacks": ["spare"]}
CHOSEN = "SELECT chosen_model FROM sessions ORDER BY id"


def named(name: str) -> ScriptedModel:
    model = ScriptedModel()

    async def say(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        return answer(f"from {name}")

    model.respond = say
    return model


OTHERS = ("small", "large", "spare", "exotic")


def others() -> dict[str, ScriptedModel]:
    return {name: named(name) for name in OTHERS}


@pytest.fixture
async def gateway(serve: Serve) -> AsyncIterator[TestGateway]:
    async with serve(others=others(), model=MODELS) as running:
        yield running


async def test_model_without_a_name_lists_the_models_with_buttons(gateway: TestGateway) -> None:
    said = await gateway.ask("/model")
    assert said.splitlines()[:5] == [
        "Model: scripted, window 131,072 tokens (as configured)",
        "- `scripted` (current, configured)",
        "- `fast`: small",
        "- `slow`: large",
        "- `spare`",
    ]
    assert "Fallbacks: spare" in said
    assert "/model default" in said
    buttons = gateway.adapter.requests[-1].part.buttons
    assert [button.command for button in buttons] == ["/model fast", "/model slow", "/model spare"]
    assert (await gateway.rows("SELECT count(*) FROM sessions")) == [(0,)], "looking begins no conversation"


async def test_a_chosen_model_applies_from_the_next_turn_to_its_conversation_only(gateway: TestGateway) -> None:
    assert "uses fast: small, window 131,072 tokens (as configured)" in await gateway.ask("/model Fast")
    assert await gateway.ask("q") == "from small"
    assert await gateway.ask("q", chat=GROUP) == "echo: q"
    assert "- `fast`: small (current)" in await gateway.ask("/model")
    assert "- Model: fast (small), chosen here\n" in await gateway.ask("/status")
    assert "configured model answers" in await gateway.ask("/model default")
    assert (await gateway.ask("again")).startswith("echo: ")


async def test_a_running_turn_keeps_its_model(gateway: TestGateway) -> None:
    hang = await hanging(gateway)
    await gateway.say("/model fast")
    hang.release()
    replies = await gateway.replies(3)
    assert replies[1] == "finally"
    assert "fast" in replies[2]
    assert await gateway.ask("next") == "from small"


async def test_a_new_conversation_uses_the_configured_model_and_an_old_one_keeps_its_choice(
    gateway: TestGateway,
) -> None:
    await gateway.ask("/model fast")
    await gateway.ask("q")
    [(key,)] = await gateway.rows("SELECT key FROM sessions")
    await gateway.ask("/new")
    assert await gateway.ask("q") == "echo: q"
    await gateway.ask(f"/resume {key[:8]}")
    assert await gateway.ask("q") == "from small"


async def test_an_unknown_model_name_gets_a_suggestion_and_changes_nothing(gateway: TestGateway) -> None:
    said = await gateway.ask("/model fats")
    assert said == "There is no model “fats” in my configuration. Did you mean `/model fast`? /model lists all models."
    assert await gateway.ask("q") == "echo: q"


async def test_an_admin_can_choose_an_unconfigured_model(gateway: TestGateway) -> None:
    chat = GROUP
    asked = await gateway.ask("/model exotic", chat=chat, sender=BOSS)
    assert "nothing was changed" in asked
    assert "Did you mean" not in asked, "nothing is alike"
    assert "This model is not in the configuration" in await gateway.ask("/model =exotic", chat=chat, sender=BOSS)
    assert await gateway.ask("q", chat=chat) == "from exotic"
    assert "(exotic)" not in await gateway.ask("/status", chat=chat)


async def test_a_running_turn_records_its_chosen_model(gateway: TestGateway) -> None:
    await gateway.ask("/model fast")
    hang = Hang()
    gateway.others["small"].script.append(hang)
    await gateway.say("q")
    await hang.begun.wait()
    turn = await gateway.store.read(find_open_turn, ChatId(1))
    assert turn is not None
    assert turn.chosen_model == "fast"
    hang.release()
    await gateway.quiet()


async def test_a_turn_resumed_after_a_crash_uses_the_chosen_model(serve: Serve) -> None:
    first = others()
    async with serve(others=first, model=MODELS) as gateway:
        await gateway.ask("/model fast")
        hang = Hang()
        first["small"].script.append(hang)
        await gateway.say("q")
        await hang.begun.wait()
    async with serve(others=others(), model=MODELS) as gateway:
        assert await gateway.replies(1) == ["from small"]


async def test_a_choice_that_is_no_longer_configured_falls_back_with_one_notice(gateway: TestGateway) -> None:
    await gateway.ask("/model fast")
    await gateway.ask("one")
    gateway.configure(config_of())
    assert "- Model: scripted" in await gateway.ask("/status")
    await gateway.say("two")
    replies = await gateway.replies(5)
    gone = "The model “fast” is no longer configured, so scripted answers here again."
    assert gone in replies
    assert any(text.startswith("echo: ") for text in replies)
    await gateway.say("three")
    assert (await gateway.replies(6)).count(gone) == 1
    assert await gateway.rows(CHOSEN) == [(None,)]


class Windows:
    """Two models that count their prompts: the configured model with 128K, and `tiny` with 8K."""

    SIZES = {"scripted": 131_072, "tiny": 8_192}  # noqa: RUF012 - never changed

    def __init__(self, gateway: TestGateway) -> None:
        self.big, self.tiny = CountingModel(), CountingModel()
        self.tiny.name = "tiny"
        self._gateway = gateway
        gateway.live.agent = Agent(
            store=gateway.store,
            prompts=PromptBuilder(tools=ToolRegistry(recall_tools())),
            clock=gateway.clock,
            pending=CompressionRegistry(),
            listeners=[gateway.notices.write],
        )
        gateway.live.models = ModelRegistry(gateway.live.config.model.route, self.make)

    def make(self, route: RouteConfig) -> ModelHandle:
        size = self.SIZES[route.label]
        settings = TurnSettings(context_length=Tokens(size), max_output_tokens=Tokens(size // 4))
        client = client_of(self.tiny if route.label == "tiny" else self.big, self._gateway.store)
        return handle_of(client, settings, self._gateway.store, self._gateway.clock)


async def test_a_large_conversation_is_compressed_before_a_smaller_model_is_called(serve: Serve) -> None:
    settings = {"aliases": {"tiny": "tiny"}}
    async with serve(is_started=False, model=settings) as gateway:
        windows = Windows(gateway)
        await gateway.start()
        for number in range(40):
            await gateway.ask(f"TICKET-{number}. {WORDS * 10}")
        assert windows.big.requests
        assert (await gateway.rows("SELECT count(*) FROM compressions")) == [(0,)]
        said = await gateway.ask("/model tiny")
        assert "window 8,192 tokens" in said
        assert "so I will compress it before the next answer" in said
        assert (await gateway.ask("and now?")).startswith("echo: ")
        [request] = windows.tiny.turns
        [(prompt,)] = await gateway.rows("SELECT reported_prompt_tokens FROM sessions ORDER BY id DESC LIMIT 1")
        assert prompt < 8_192 * 3 // 4
        assert request.transcript[-1].text == "and now?"
        chosen = await gateway.rows(CHOSEN)
        assert len(chosen) >= 2
        assert chosen[-1] == ("tiny",), "the choice follows the split"
        assert "compress" in (await gateway.ask("/compress preview")).lower()
        await gateway.live.agent.close()


@pytest.mark.parametrize("back", ["default", "scripted"])
async def test_default_or_the_configured_name_resets_the_choice(gateway: TestGateway, back: str) -> None:
    await gateway.ask("/model slow")
    await gateway.ask(f"/model {back}")
    assert await gateway.rows(CHOSEN) == [(None,)]


# ---- slips


async def test_a_misspelt_model_name_needs_confirmation(gateway: TestGateway) -> None:
    asked = await gateway.ask("/model fasst", chat=GROUP, sender=BOSS)
    assert asked.startswith(
        "There is no model “fasst” in my configuration, so nothing was changed. Did you mean `/model fast`?"
    )
    assert await gateway.rows(CHOSEN) == []
    assert await gateway.ask("q", chat=GROUP) == "echo: q"
    assert "conversation uses fasst" in await gateway.ask("/model =fasst", chat=GROUP, sender=BOSS)
    assert await gateway.rows(CHOSEN) == [("=fasst",)]


async def test_a_model_in_the_built_in_list_needs_no_confirmation(serve: Serve) -> None:
    async with serve(others=others(), model={"fallbacks": ["gpt-4.1-mini"]}) as gateway:
        assert "conversation uses gpt-4.1-nano" in await gateway.ask("/model gpt-4.1-nano", chat=GROUP, sender=BOSS)
        assert "Did you mean" in await gateway.ask("/model gpt-4.1-nanno", chat=GROUP, sender=BOSS)
        assert "a single word" in await gateway.ask("/model =", chat=GROUP, sender=BOSS)


# ---- settings

SET = {
    "temperature": 0.2,
    "reasoning_effort": "high",
    "extra_headers": {"X-Key": "sesame-sesame"},
    "extra_body": {"top_k": 40},
    "aliases": {"fast": {"name": "small", "temperature": 0.9}, "same": "large"},
}


async def test_settings_are_shown_without_secrets(serve: Serve) -> None:
    async with serve(others=others(), model=SET) as gateway:
        lines = (await gateway.ask("/model")).splitlines()
        rest = "reasoning effort high, header X-Key, field top_k"
        assert lines[0] == f"Model: scripted, window 131,072 tokens (as configured), temperature 0.2, {rest}"
        assert f"- `fast`: small, temperature 0.9, {rest}" in lines
        assert "- `same`: large" in lines, "it has nothing of its own"
        assert f"(as configured), temperature 0.9, {rest}. " in await gateway.ask("/model fast")
        await gateway.ask("/think low")
        assert "reasoning effort low (chosen here)" in await gateway.ask("/model")


def efforts(gateway: TestGateway) -> list[str | None]:
    return [request.reasoning_effort for request in gateway.model.requests]


async def test_a_chosen_effort_applies_from_the_next_turn_to_its_conversation_only(gateway: TestGateway) -> None:
    await gateway.ask("one")
    assert await gateway.ask("/think High") == (
        "From your next message on, reasoning effort in this conversation is high. `/think default` resets it."
    )
    await gateway.ask("two")
    await gateway.ask("elsewhere", chat=GROUP)
    await gateway.ask("/think off")
    await gateway.ask("three")
    await gateway.ask("/think default")
    await gateway.ask("four")
    assert efforts(gateway) == [None, "high", None, "off", None]


async def test_an_effort_survives_a_restart_and_a_compression_but_not_a_new_conversation(serve: Serve) -> None:
    async with serve() as gateway:
        for number in range(12):
            await gateway.ask(f"{number} {WORDS * 10}")
        await gateway.ask("/think low")
    async with serve() as gateway:
        await gateway.ask("/compress")
        await gateway.quiet()
        await gateway.ask("on we go")
        assert efforts(gateway)[-1] == "low"
        assert await gateway.rows("SELECT depth, reasoning_effort FROM sessions ORDER BY id") == [
            (0, "low"),
            (1, "low"),
        ]
        await gateway.ask("/new")
        await gateway.ask("anew")
        assert efforts(gateway)[-1] is None


async def test_the_effort_is_shown_and_an_invalid_effort_changes_nothing(serve: Serve) -> None:
    async with serve(model={"reasoning_effort": "medium"}) as gateway:
        assert (await gateway.ask("/think")).startswith("Reasoning effort of scripted: medium (as configured).")
        buttons = gateway.adapter.requests[-1].part.buttons
        assert [button.command for button in buttons] == ["/think low", "/think medium", "/think high", "/think off"]
        assert "/think accepts off, minimal, low" in await gateway.ask("/think lots")
        await gateway.ask("/think none")
        assert (await gateway.ask("/think")).startswith("Reasoning effort of scripted: off (chosen here).")


async def test_the_reply_says_that_the_offline_model_ignores_settings(serve: Serve) -> None:
    async with serve(model={"aliases": {"none": {"protocol": "offline"}}}) as gateway:
        await gateway.ask("/model none")
        assert "The built-in offline model ignores all call settings" in await gateway.ask("/think low")
