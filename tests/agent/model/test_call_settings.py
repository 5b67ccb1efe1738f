"""Settings of calls over each protocol, and the handling of refused settings."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.model.base import ChatModel, Endpoint
from agent.model.protocols.anthropic import effort_forms, temperature_field
from agent.model.protocols.chat_completions import ChatCompletionsModel
from hermes_state.errors import ModelError
from hermes_state.values import MessageBody, ReasoningEffort, ToolCall
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, ask, request
from tests.agent.model.ways import WAYS, Json, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

SETTINGS: Json = {
    "temperature": 0.3,
    "reasoning_effort": "high",
    "extra_headers": {"x-lab-title": "the lab", "x-lab-key": "sesame"},
    "extra_body": {"service_tier": "flex"},
}
OPENAI_WAYS = [way for way in WAYS if way.protocol != "anthropic"]
ANTHROPIC_WAYS = [way for way in WAYS if way.protocol == "anthropic"]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


def bodies(llm: LLM) -> list[Json]:
    return [row["body"] for row in llm.requests.rows]


def effort_of(way: Way, body: Json) -> Any:
    match way.protocol:
        case "chat_completions":
            return body.get("reasoning_effort")
        case "responses":
            return body.get("reasoning", {}).get("effort")
        case _:
            return body.get("output_config", {}).get("effort")


def refusal(message: str, param: str | None = None, code: str | None = None) -> Json:
    """Return an error body that both SDKs understand."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"type": "error", "error": error}


# ---- sent settings


async def test_settings_that_are_not_set_are_not_sent(way: Way, server: Server, llm: LLM) -> None:
    async with way.dialled(server.url) as model:
        await ask(model)
    [body] = bodies(llm)
    for key in ("temperature", "top_p", "reasoning_effort", "reasoning", "thinking", "output_config", "extra_body"):
        assert key not in body


async def test_an_empty_authorization_header_is_accepted(way: Way, server: Server, llm: LLM) -> None:
    """Some proxies expect another header instead."""
    async with way.dialled(server.url, extra_headers={"Authorization": "", "x-proxy-key": "sesame"}) as model:
        await ask(model)
    [row] = llm.requests.rows
    assert row["headers"]["x-proxy-key"] == "sesame"
    assert "lab-key" not in row["headers"].get("authorization", "")


async def test_settings_use_the_field_names_of_each_protocol(way: Way, server: Server, llm: LLM) -> None:
    async with way.dialled(
        server.url, "claude-opus-4-6" if way.protocol == "anthropic" else "lab-128k", **SETTINGS
    ) as model:
        await ask(model)
    [row] = llm.requests.rows
    body = row["body"]
    assert (body["service_tier"], effort_of(way, body)) == ("flex", "high")
    if way.protocol == "anthropic":
        assert body["thinking"] == {"type": "adaptive"}
        assert "temperature" not in body, "no temperature while thinking"
    else:
        assert body["temperature"] == 0.3
    headers = {name.lower(): value for name, value in row["headers"].items()}
    assert (headers["x-lab-title"], headers["x-lab-key"]) == ("the lab", "sesame")


async def test_the_effort_of_a_conversation_overrides_the_setting(way: Way, server: Server, llm: LLM) -> None:
    async with way.dialled(server.url, "claude-opus-4-6", reasoning_effort="high") as model:
        await ask(model, request(reasoning_effort="low"))
        await ask(model, request(reasoning_effort="off"))
        await ask(model)
    low, off, high = bodies(llm)
    assert (effort_of(way, low), effort_of(way, high)) == ("low", "high")
    if way.protocol == "anthropic":
        assert off["thinking"] == {"type": "disabled"}
    else:
        assert effort_of(way, off) == "none"


async def test_no_call_requests_more_output_than_configured(way: Way, server: Server, llm: LLM) -> None:
    async with way.dialled(server.url, max_output_tokens=300) as model:
        await ask(model, request(max_output_tokens=2_000))
        await ask(model, request(max_output_tokens=200))
    key = "max_output_tokens" if way.protocol == "responses" else "max_tokens"
    assert [body[key] for body in bodies(llm)] == [300, 200]


async def test_extra_body_fields_are_merged_into_the_request(way: Way, server: Server, llm: LLM) -> None:
    extra = {"reasoning": {"summary": "auto"}, "temperature": 0.9}
    async with way.dialled(server.url, temperature=0.1, reasoning_effort="low", extra_body=extra) as model:
        await ask(model)
    [body] = bodies(llm)
    assert (body["temperature"], body["reasoning"]["summary"]) == (0.9, "auto")
    if way.protocol == "responses":
        assert body["reasoning"]["effort"] == "low"


def test_the_thinking_budget_stays_below_the_output_limit() -> None:
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        for limit in (16, 1_024, 1_600, 2_048, 8_192, 32_000, 128_000):
            first = effort_forms(effort, "claude-sonnet-4-5", limit)[0]
            budget = first.get("thinking", {}).get("budget_tokens")
            assert (budget is None) == (limit < 1_536)
            assert budget is None or 1_024 <= budget <= limit - 512


@pytest.mark.parametrize(
    ("model", "is_adaptive"),
    [
        ("claude-3-7-sonnet-20250219", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-5-20251101", False),
        ("claude-haiku-4-5", False),
        ("claude-opus-4-6", True),
        ("anthropic/claude-sonnet-4.6", True),
        ("claude-opus-4-8", True),
        ("claude-sonnet-5", True),
        ("claude-opus-5-5", True),
        ("claude-fable-5-1", True),
        ("glm-5", False),
    ],
)
def test_newer_claude_models_use_adaptive_thinking(model: str, is_adaptive: bool) -> None:
    first = effort_forms("medium", model, 8_192)[0]
    assert (first["thinking"]["type"] == "adaptive") is is_adaptive
    assert first.get("output_config") == ({"effort": "medium"} if is_adaptive else None)


@pytest.mark.parametrize(
    ("temperature", "thinks", "sent"),
    [
        (None, False, {}),
        (0.2, False, {"temperature": 0.2}),
        (1.7, False, {"temperature": 1.0}),
        (0.2, True, {}),
    ],
)
def test_claude_gets_a_temperature_of_at_most_1_and_none_while_thinking(
    temperature: float | None, thinks: bool, sent: Json
) -> None:
    assert temperature_field(temperature, {"thinking": {"type": "enabled" if thinks else "disabled"}}) == sent


@pytest.mark.parametrize(
    ("host", "effort", "fields"),
    [
        ("api.openai.com", "high", {"reasoning_effort": "high"}),
        ("api.deepseek.com", "high", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("api.z.ai", "off", {"thinking": {"type": "disabled"}}),
        ("fuzz.ai", "off", {"reasoning_effort": "none"}),
        ("dashscope-intl.aliyuncs.com", "low", {"enable_thinking": True}),
        ("dashscope.aliyuncs.com", "off", {"enable_thinking": False}),
    ],
)
async def test_some_hosts_have_their_own_field_for_thinking(host: str, effort: ReasoningEffort, fields: Json) -> None:
    model = ChatCompletionsModel(Endpoint(model="m", api_key="k", base_url=f"https://{host}/v1"))
    assert model._efforts(request(), effort)[0] == fields
    await model.close()


# ---- refused settings

TEMPERATURE_REFUSALS = [
    refusal(
        "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) is supported.",
        "temperature",
        "unsupported_value",
    ),
    refusal("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"),
    refusal("`temperature` is deprecated for this model."),
    {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "temperature: Extra inputs"}}},
    {"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]},
]


@pytest.mark.parametrize("body", TEMPERATURE_REFUSALS, ids=range(len(TEMPERATURE_REFUSALS)))
async def test_a_refused_temperature_is_not_sent_again(way: Way, server: Server, llm: LLM, body: Json) -> None:
    llm.config["refuses"] = [{"fields": ["temperature"], "body": body}]
    async with way.dialled(server.url, temperature=0.3) as model:
        with capture_logs() as logs:
            first, _ = await ask(model)
            second, _ = await ask(model)
    assert (len(first.refused), second.refused) == (1, ()), "each refused call has its row in the ledger"
    assert ["temperature" in one for one in bodies(llm)] == [True, False, False]
    [entry] = [entry for entry in logs if entry["event"] == "settings.rejected"]
    assert "temperature" not in entry["sent"]


async def test_top_p_in_extra_body_is_kept_if_it_conflicts_with_the_temperature(
    way: Way, server: Server, llm: LLM
) -> None:
    both = refusal("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    llm.config["refuses"] = [{"fields": ["temperature", "top_p"], "body": both}]
    async with way.dialled(server.url, temperature=0.3, extra_body={"top_p": 0.9}) as model:
        await ask(model)
    first, last = bodies(llm)
    assert (first["temperature"], first["top_p"], last["top_p"]) == (0.3, 0.9, 0.9)
    assert "temperature" not in last


NOT_TAKEN = [
    refusal("Unrecognized request argument supplied: reasoning_effort"),
    refusal("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "reasoning.effort"),
    refusal("Model grok-4 does not support parameter reasoningEffort."),
    refusal('"llama3.1" does not support thinking'),
    refusal("reasoning_effort must be one of `none` or `default`"),
]


@pytest.mark.parametrize("body", NOT_TAKEN, ids=range(len(NOT_TAKEN)))
@pytest.mark.parametrize("way", OPENAI_WAYS, ids=str)
async def test_an_unknown_effort_is_not_sent_again(way: Way, server: Server, llm: LLM, body: Json) -> None:
    field = "reasoning_effort" if way.protocol == "chat_completions" else "reasoning"
    llm.config["refuses"] = [{"fields": [field], "body": body}]
    async with way.dialled(server.url, reasoning_effort="high") as model:
        await ask(model)
        await ask(model)
    assert [effort_of(way, one) for one in bodies(llm)] == ["high", None, None]


WITHOUT_NONE = "does not support 'none' with this model. Supported values are: 'minimal', 'low', 'medium', and 'high'."
NO_EXTREMES = "Input should be 'low', 'medium' or 'high' [type=enum, input_value='x', input_type=str]"


@pytest.mark.parametrize(
    ("wanted", "refused", "text", "sent"),
    [
        ("off", ["none"], f"Unsupported value: 'reasoning_effort' {WITHOUT_NONE}", "minimal"),
        ("off", ["none", "minimal"], f"1 validation error\nreasoning_effort\n {NO_EXTREMES}", "low"),
        ("xhigh", ["xhigh", "max"], f"1 validation error\nreasoning_effort\n {NO_EXTREMES}", "high"),
        ("max", ["max"], "Invalid reasoning.effort: max. Must be one of low, medium, high, xhigh.", "xhigh"),
    ],
)
@pytest.mark.parametrize("way", OPENAI_WAYS, ids=str)
async def test_the_nearest_accepted_effort_is_sent_instead(
    way: Way, server: Server, llm: LLM, wanted: str, refused: list[str], text: str, sent: str
) -> None:
    field = "reasoning_effort" if way.protocol == "chat_completions" else "reasoning.effort"
    llm.config["refuses"] = [{"fields": [field], "values": refused, "body": refusal(text)}]
    async with way.dialled(server.url, reasoning_effort=wanted) as model:
        await ask(model)
        await ask(model)
        await ask(model, request(reasoning_effort="medium"))
    assert [effort_of(way, one) for one in bodies(llm)][-3:] == [sent, sent, "medium"]


NONE_WITH_TOOLS = [
    "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. "
    "To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
    "Function tools with reasoning_effort are not supported for gpt-5.5 in /v1/chat/completions. "
    "Please use /v1/responses instead.",
]


@pytest.mark.parametrize("text", NONE_WITH_TOOLS)
@pytest.mark.parametrize("wanted", [None, "high"])
@pytest.mark.parametrize("way", [one for one in WAYS if one.protocol == "chat_completions"], ids=str)
async def test_thinking_is_disabled_if_a_model_only_calls_tools_without_it(
    way: Way, server: Server, llm: LLM, wanted: str | None, text: str
) -> None:
    rule = {"fields": ["tools"], "unless": {"reasoning_effort": ["none"]}, "body": refusal(text, "reasoning_effort")}
    llm.config["refuses"] = [rule]
    async with way.dialled(server.url, reasoning_effort=wanted) as model:
        await ask(model, request(tools=(TOOL,)))
        await ask(model, request(tools=(TOOL,)))
        await ask(model)
    sent = [one.get("reasoning_effort") for one in bodies(llm)]
    assert sent[-3:] == ["none", "none", wanted], "without tools, the effort is unchanged"


@pytest.fixture(params=ANTHROPIC_WAYS, ids=str)
async def claude(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[ChatModel]:
    async with request.param.dialled(server.url, "claude-haiku-4-5", reasoning_effort="high") as model:
        yield model


def thinking(llm: LLM) -> list[str | None]:
    return [one.get("thinking", {}).get("type") for one in bodies(llm)]


async def test_a_claude_model_without_budgets_gets_an_effort(claude: ChatModel, llm: LLM) -> None:
    text = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    llm.config["refuses"] = [{"fields": ["thinking.type"], "values": ["enabled"], "body": refusal(text)}]
    long = request(max_output_tokens=8_000)
    await ask(claude, long)
    await ask(claude, long)
    assert thinking(llm) == ["enabled", "adaptive", "adaptive"]
    assert bodies(llm)[-1]["output_config"] == {"effort": "high"}


async def test_a_claude_model_without_thinking_gets_no_effort(claude: ChatModel, llm: LLM) -> None:
    llm.config["refuses"] = [
        {"fields": ["output_config"], "body": refusal("This model does not support the effort parameter.")},
        {"fields": ["thinking"], "body": refusal("adaptive thinking is not supported on this model")},
    ]
    long = request(max_output_tokens=8_000)
    await ask(claude, long)
    await ask(claude, long)
    assert thinking(llm) == ["enabled", "adaptive", None, None]


@pytest.mark.parametrize("way", ANTHROPIC_WAYS, ids=str)
async def test_a_claude_model_that_always_thinks_gets_low_effort(way: Way, server: Server, llm: LLM) -> None:
    text = '"thinking.type.disabled" is not supported for this model. Use "thinking.type.adaptive"'
    llm.config["refuses"] = [{"fields": ["thinking.type"], "values": ["disabled"], "body": refusal(text)}]
    async with way.dialled(server.url, "claude-opus-5-5", reasoning_effort="off") as model:
        await ask(model)
        await ask(model)
    assert (thinking(llm), bodies(llm)[-1]["output_config"]) == (["disabled", None, None], {"effort": "low"})


async def test_missing_reasoning_before_calls_disables_thinking_for_one_call_only(claude: ChatModel, llm: LLM) -> None:
    text = (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` "
    )
    text += "is enabled, a final `assistant` message must start with a thinking block."
    llm.config["refuses"] = [{"fields": ["thinking"], "body": refusal(text)}]
    long = request(max_output_tokens=8_000)
    await ask(claude, long)
    llm.config["refuses"] = []
    await ask(claude, long)
    assert thinking(llm) == ["enabled", None, "enabled"]


async def test_a_refusal_not_caused_by_settings_is_raised_at_once(way: Way, server: Server, llm: LLM) -> None:
    llm.config["refuses"] = [{"fields": ["model"], "body": refusal("tools: not a list")}]
    async with way.dialled(server.url, **SETTINGS) as model:
        with pytest.raises(ModelError):
            await ask(model)
    assert len(bodies(llm)) == 1


async def test_an_unexplained_refusal_is_retried_in_a_stricter_form(server: Server, llm: LLM) -> None:
    [way] = [way for way in WAYS if way.protocol == "chat_completions" and way.streams]
    odd = {"error": {"status": 400, "body": refusal("something is wrong with this")}}
    called = ToolCall(id="call_PTLP8xhu3uwZk4l3nlnrrJha", name="look", arguments="{}")
    rows = (human("look"), answer(None, body=MessageBody(calls=(called,))), result(called.id, "a sea"), human("and?"))
    async with way.dialled(server.url) as model:
        llm.scripts[:] = [{"times": 1, "reply": odd}]
        await ask(model, request(transcript=rows))
        await ask(model, request(transcript=rows))
        first, *later = [body["messages"] for body in bodies(llm)]
        assert [message["role"] for message in first] == ["system", "user", "assistant", "tool", "user"]
        roles = ["system", "user", "assistant", "tool", "assistant", "user"]
        assert [[message["role"] for message in messages] for messages in later] == [roles, roles]
        llm.scripts[:] = [{"times": -1, "reply": odd}]
        before = len(bodies(llm))
        with pytest.raises(ModelError):
            await ask(model, request(transcript=rows))
        assert len(bodies(llm)) == before + 1, "the form is as strict as it gets without a reason"
