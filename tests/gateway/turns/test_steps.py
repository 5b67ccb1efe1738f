"""The line about a turn's steps, and the buttons of messages that apply only for a time."""

from time import monotonic

import pytest
from msgspec.structs import replace

from agent.tools.registry import Step, StepWords
from gateway.outbound.adapters import FloodControl, Gate
from gateway.switches import StepLevel
from gateway.turns.previews import LivePreview
from gateway.turns.steps import MAX_LISTED, StepLine
from hermes_state.tool_runs import ToolRunState
from hermes_state.values import ChatKind, MessageId
from tests.gateway.helpers import MemoryAdapter, TestGateway, eventually, settled
from tests.gateway.turns.test_previews import TURN, nothing

READING = StepWords(doing="Reading", did="read files")


def step(number: int = 1, about: str = "report.pdf", **changes: object) -> Step:
    return replace(Step(key=(MessageId(1), str(number)), words=READING, about=about), **changes)  # type: ignore[arg-type]


async def line_of(*steps: Step, level: StepLevel = "short") -> str:
    async def load() -> StepLevel:
        return level

    line = StepLine(monotonic(), load)
    for one in steps:
        line.note(one)
    return await line.text()


DONE, CANCELLED = ToolRunState.DONE, ToolRunState.UNKNOWN
SEARCHES = [
    replace(step(number), words=StepWords(doing="Searching the web for", did="searched the web"), state=DONE)
    for number in (2, 3)
]


@pytest.mark.parametrize(
    ("level", "steps", "text"),
    [
        pytest.param("short", [*SEARCHES, step()], "Reading `report.pdf` · searched the web 2× · 0 s", id="short"),
        pytest.param("short", [step(), step(2)], "Reading `report.pdf` · 1 more · 0 s", id="two at once"),
        pytest.param("short", [step(is_subagent=True)], "Sub-agent: reading `report.pdf` · 0 s", id="sub-agent"),
        pytest.param("short", [step(about="")], "Reading · 0 s", id="nothing to name"),
        pytest.param("short", [step(about="a\u202e\n" + "b" * 90)], f"Reading `a {'b' * 57}…` · 0 s", id="long"),
        pytest.param("off", [step()], "", id="off"),
        pytest.param("short", [step(), step(state=CANCELLED)], "read files · 0 s", id="cancelled"),
        pytest.param("full", [step(state=DONE), step(2)], None, id="full"),
        pytest.param("short", [], "", id="no tools"),
    ],
)
async def test_the_line_is_short_and_in_peoples_words(level: StepLevel, steps: list[Step], text: str | None) -> None:
    full = "- Reading `report.pdf` (done)\n- Reading `report.pdf` (running)\n\nread files · 0 s"
    assert await line_of(*steps, level=level) == (full if text is None else text)


async def test_a_long_turn_keeps_few_steps() -> None:
    steps = [step(number, state=DONE) for number in range(1_000)]
    text = await line_of(*steps, level="full")
    assert text.count("\n- ") == MAX_LISTED - 1
    assert "read files 1000×" in text


def watching(*, interval: float = 0.01) -> MemoryAdapter:
    adapter = MemoryAdapter()
    adapter.capabilities = replace(
        adapter.capabilities, shows_steps=True, preview_interval_seconds=interval, preview_seconds=30.0
    )
    return adapter


async def test_text_and_steps_share_one_interval() -> None:
    adapter = watching(interval=0.2)
    preview = LivePreview(TURN, adapter, Gate(), FloodControl(), nothing)
    preview.begin()
    for number in range(20):
        preview.show("the" * number)
        preview.note_step(step(number))
        await settled(0.01)
    await preview.close()
    assert 1 <= len(adapter.previews) <= 3


async def test_a_preview_without_a_message_gets_a_stop_button_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = watching()
    preview = LivePreview(TURN, adapter, Gate(), FloodControl(), nothing)
    adapter.makes_placeholders = False
    preview.begin()
    preview.note_step(step())
    await eventually(lambda: adapter.previews, "a line")
    assert adapter.previews[-1].buttons == ()
    monkeypatch.setattr("gateway.turns.previews.MESSAGE_SECONDS", 0.0)
    monkeypatch.setattr("gateway.turns.steps.CHANGE_SECONDS", 0.0)
    preview.note_step(step(2))
    await eventually(lambda: adapter.previews[-1].buttons, "a button")
    assert [button.command for button in adapter.previews[-1].buttons] == ["/stop t1"]
    await preview.close()


async def test_the_stop_button_disappears_before_a_question() -> None:
    adapter = watching()
    preview = LivePreview(
        TURN.__class__(
            **{**{name: getattr(TURN, name) for name in TURN.__struct_fields__}, "chat_kind": ChatKind.GROUP}
        ),
        adapter,
        Gate(),
        FloodControl(),
        nothing,
    )
    preview.begin()
    preview.note_step(step())
    await eventually(lambda: adapter.previews, "a line")
    preview.is_paused = True
    await preview.close()
    shown, last = adapter.previews[-2:]
    assert shown.buttons
    assert not last.buttons
    assert last.text == shown.text


async def test_a_platform_with_its_own_progress_shows_no_line(gateway: TestGateway) -> None:
    adapter = MemoryAdapter()
    preview = LivePreview(TURN, adapter, Gate(), FloodControl(), nothing)
    preview.begin()
    preview.note_step(step())
    preview.show("the")
    await eventually(lambda: adapter.previews, "a preview")
    await preview.close()
    assert [(one.text, one.buttons) for one in adapter.previews] == [("the", ())]


async def test_older_history_is_one_press_away(gateway: TestGateway) -> None:
    for number in range(4):
        await gateway.ask(f"question {number}")
    assert "question 3" in await gateway.ask("/history 2")
    [older] = gateway.adapter.requests[-1].part.buttons
    said = await gateway.ask(older.command)
    assert "question 2" in said
    assert "question 3" not in said
