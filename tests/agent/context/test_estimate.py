import itertools
import random
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.context.estimate import Estimator
from agent.model.base import ModelRequest, ToolSchema
from agent.model.usage import RowTokenCache
from agent.model.wire import WireStyle, chat_messages
from hermes_state.models.profiles import Calibration
from hermes_state.transcripts import View
from hermes_state.values import Image, Message, MessageBody, ReportedTokens, SessionId
from tests.agent.context.rows import answer, human, result, session

TOOLS = (
    ToolSchema(name="look", description="Looks at a place.", parameters={"type": "object", "properties": {"at": {}}}),
)
SYSTEM = "You are a patient assistant who answers in the language of the person who asks. " * 20
STYLE = WireStyle(image_urls=dict.fromkeys(range(1, 50), "data:image/png;base64,AAAA"))

SHORT = st.integers(1, 20)
TEXTS = {
    "English": "The ferry leaves at nine, and if the wind holds we can be on the island before noon. ",
    "code": "for row in rows:\n    total += sizes.of(row, limit=LIMIT)  # measured once\n",
    "Chinese": "明天早上九点的船，如果风不大，我们中午之前就能到岛上。",
    "logs": "2026-01-01T00:00:00.123Z WARN worker-7 retry=3 took=182.44ms id=9f86d081\n",
}


def request(rows: Iterable[Message]) -> ModelRequest:
    return ModelRequest(system=SYSTEM, transcript=tuple(rows), tools=TOOLS, max_output_tokens=100, style=STYLE)


def view(rows: Sequence[Message], *, reported: int | None = None, at_seq: int | None = None) -> View:
    return View(session=session(reported_prompt_tokens=reported, reported_at_seq=at_seq), transcript=tuple(rows))


def counted(asked: ModelRequest, bytes_per_token: float, image_price: int = 0) -> ReportedTokens:
    """A provider whose own tokenizer counts bytes."""
    wire = chat_messages(asked.system, asked.transcript, replace(asked.style, image_urls={}))
    size = len(msgspec.json.encode([wire, [(tool.name, tool.description, tool.parameters) for tool in asked.tools]]))
    images = sum(len(row.body.images) for row in asked.transcript)
    return ReportedTokens(int(size / bytes_per_token) + images * image_price)


def talk(text: str, pairs: int, *, longest: int = 30) -> list[Message]:
    chance = random.Random(7)
    rows = []
    for _ in range(pairs):
        rows += [human(text * chance.randint(1, longest)), answer(text * chance.randint(1, longest))]
    return rows


def after_reports(estimator: Estimator, rows: Sequence[Message], reports: int, bytes_per_token: float) -> View:
    """The view after this number of calls. Each call adds a row and an answer to the last reported prompt."""
    known: View = view(rows[:1])
    for number in range(1, 2 * reports, 2):
        asked = request(rows[:number])
        reported = counted(asked, bytes_per_token)
        estimator.learn(asked, reported, known)
        known = view(rows[: number + 2], reported=reported, at_seq=rows[number - 1].seq)
    return known


# ---- the anchor


def test_before_the_first_report_everything_is_estimated() -> None:
    rows = talk(TEXTS["English"], 3)
    estimator = Estimator()
    assert estimator.prompt(view(rows), request(rows)) == estimator.whole(request(rows))
    assert estimator.whole(request(rows)) > estimator.rows(rows, STYLE) > 0


def test_only_rows_since_the_last_report_are_estimated() -> None:
    rows = talk(TEXTS["English"], 5)
    estimator = Estimator()
    covered = int(estimator.whole(request(rows[:7])))
    known = view(rows, reported=covered + 100, at_seq=rows[6].seq)
    since = estimator.rows(rows[7:], STYLE)
    assert estimator.prompt(known, request(rows)) == pytest.approx(covered + 100 + since, rel=0.02)
    nothing_new = view(rows, reported=covered + 100, at_seq=rows[-1].seq)
    assert estimator.prompt(nothing_new, request(rows)) == covered + 100


@given(data=st.data())
def test_the_rows_since_a_report_are_the_same_as_in_a_full_count(data: st.DataObject) -> None:
    """The search for these rows ends early. A row that replaces a shortened one has a negative `seq`."""
    earlier = [answer("An earlier answer. " * count, session_id=SessionId(0)) for count in data.draw(st.lists(SHORT))]
    own = [
        human("A question. " * count, seq=-number if is_replaced else number)
        for number, (count, is_replaced) in enumerate(data.draw(st.lists(st.tuples(SHORT, st.booleans()))), 1)
    ]
    rows, at_seq = (*earlier, *own), data.draw(st.integers(0, len(own) + 1))
    estimator = Estimator()
    whole = estimator.whole(request(rows))
    covered = whole - estimator.rows([row for row in own if row.seq > at_seq], STYLE)
    assert estimator.prompt(view(rows, reported=covered, at_seq=at_seq), request(rows)) == whole


def test_reasoning_tokens_do_not_count_towards_the_next_prompt() -> None:
    """After 40,000 tokens of prompt and 30,000 of reasoning, the next prompt has 40,000 plus a short answer."""
    rows = [human(TEXTS["English"] * 2_000), answer("It is done.")]
    known = view(rows, reported=40_000, at_seq=rows[0].seq)
    assert 40_000 < Estimator().prompt(known, request(rows)) < 40_050


def test_a_report_covers_rows_of_the_parent_and_rows_made_for_the_view() -> None:
    inherited = [human("x", session_id=SessionId(9), seq=500), answer("handoff " * 50, seq=-1)]
    own = [human("hello " * 300), answer("yes")]
    rows = [*inherited, *own]
    known = view(rows, reported=1_000, at_seq=own[0].seq)
    assert 1_000 < Estimator().prompt(known, request(rows)) < 1_020


# ---- learning


@pytest.mark.parametrize("kind", ["English", "code", "Chinese"])  # by bytes, logs would be half as dense as prose
@pytest.mark.parametrize("bytes_per_token", [2.5, 3.2, 4.0, 4.6])
def test_after_three_reports_the_estimate_is_within_three_percent(kind: str, bytes_per_token: float) -> None:
    rows = talk(TEXTS[kind], 20)
    estimator = Estimator()
    for reports in (3, 4, 5, 6):
        known = after_reports(estimator, rows, reports, bytes_per_token)
        asked = request(known.transcript)
        assert estimator.prompt(known, asked) == pytest.approx(counted(asked, bytes_per_token), rel=0.03)


@pytest.mark.parametrize("kind", TEXTS)
def test_the_child_of_a_compression_is_estimated_with_the_learned_scale(kind: str) -> None:
    rows = talk(TEXTS[kind], 20)
    cold, learned = Estimator(), Estimator()
    after_reports(learned, rows, 6, 2.5)
    child = request([*rows[:2], *rows[30:]])
    truth = counted(child, 2.5)
    assert learned.whole(child) == pytest.approx(truth, rel=0.15)  # this server counts bytes, as no real tokenizer does
    assert abs(learned.whole(child) - truth) <= abs(cold.whole(child) - truth)


def test_a_new_estimator_uses_the_stored_calibration() -> None:
    rows = talk(TEXTS["code"], 10)
    first = Estimator()
    after_reports(first, rows, 4, 2.5)
    kept = msgspec.json.decode(msgspec.json.encode(first.calibration), type=Calibration)
    assert Estimator(kept).whole(request(rows)) == first.whole(request(rows))


def with_image(number: int) -> Message:
    body = MessageBody(images=(Image(attachment_id=number, mime="image/png", path=f"{number}.png"),))
    return human("What is on it?", body=body)


@pytest.mark.parametrize("price", [85, 258, 1_105, 1_600, 4_784])
def test_the_price_of_an_image_is_learned_in_a_long_conversation(price: int) -> None:
    rows = talk(TEXTS["English"], 40)
    estimator = Estimator()
    reported = counted(request(rows), 4.0)
    estimator.learn(request(rows), reported)
    for number in range(1, 6):
        known = view(rows, reported=reported, at_seq=rows[-1].seq)
        rows = [*rows, with_image(number)]
        reported = counted(request(rows), 4.0, price)
        estimator.learn(request(rows), reported, known)
        rows = [*rows, answer("A ferry.")]
    assert estimator.calibration.image_tokens == pytest.approx(price, rel=0.2, abs=40)


def test_images_do_not_change_the_learned_scale_of_text() -> None:
    rows = talk(TEXTS["English"], 10)
    estimator = Estimator()
    after_reports(estimator, rows, 4, 4.0)
    before = estimator.calibration.scale
    pictured = [*rows, with_image(1), with_image(2), with_image(3)]
    estimator.learn(request(pictured), counted(request(pictured), 4.0, 4_000), None)
    assert estimator.calibration.scale == pytest.approx(before, rel=0.05)


# ---- impossible reports


@pytest.mark.parametrize("reported", [0, -5, 1, 60, 10**9])
def test_an_impossible_count_is_neither_learned_nor_used(reported: int) -> None:
    rows = talk(TEXTS["English"], 10)
    estimator = Estimator()
    estimator.learn(request(rows), ReportedTokens(reported))
    assert estimator.calibration == Calibration()
    known = view(rows, reported=reported, at_seq=rows[-3].seq)
    assert estimator.prompt(known, request(rows)) == estimator.whole(request(rows))


def test_a_count_without_cached_tokens_is_not_used() -> None:
    rows = talk(TEXTS["English"], 20)
    estimator = Estimator()
    after_reports(estimator, rows, 5, 4.0)
    truth = counted(request(rows), 4.0)
    known = view(rows, reported=truth * 2 // 5, at_seq=rows[-2].seq)
    assert estimator.prompt(known, request(rows)) == pytest.approx(truth, rel=0.08)


def test_a_single_odd_report_hardly_changes_the_learned_scale() -> None:
    rows = talk(TEXTS["English"], 20)
    estimator = Estimator()
    after_reports(estimator, rows, 8, 4.0)
    before = estimator.calibration.scale
    estimator.learn(request(rows), ReportedTokens(counted(request(rows), 4.0) * 3))
    assert estimator.calibration.scale == pytest.approx(before, rel=0.11)


def test_the_scale_follows_a_changed_tokenizer() -> None:
    rows = talk(TEXTS["English"], 20)
    estimator = Estimator()
    after_reports(estimator, rows, 10, 4.0)
    for _ in range(12):
        estimator.learn(request(rows), counted(request(rows), 1.6))
    assert estimator.whole(request(rows)) == pytest.approx(counted(request(rows), 1.6), rel=0.1)


_ROW_TEXTS = st.text(max_size=60) | st.sampled_from(list(TEXTS.values())).map(lambda text: text * 20)
_ROWS = st.lists(
    st.one_of(
        _ROW_TEXTS.map(human),
        _ROW_TEXTS.map(answer),
        st.none().map(answer),
        _ROW_TEXTS.map(lambda text: result("1", text)),
        st.integers(1, 60).map(with_image),
    ),
    max_size=12,
)


@given(rows=_ROWS, reports=st.lists(st.integers(-10, 10**10), max_size=12), seqs=st.lists(st.integers(0, 10**6)))
def test_any_reports_leave_the_estimate_a_sane_number(rows: list[Message], reports: list[int], seqs: list[int]) -> None:
    estimator = Estimator()
    cold = int(estimator.whole(request(rows)))
    known = view(rows)
    for reported, seq in zip(reports, itertools.chain(seqs, itertools.repeat(0)), strict=False):
        estimator.learn(request(rows), ReportedTokens(reported), known)
        known = view(rows, reported=reported, at_seq=seq)
        estimated = estimator.prompt(known, request(rows))
        assert 0 < estimated <= 40 * cold + 20_000
        calibration = estimator.calibration
        assert msgspec.json.decode(msgspec.json.encode(calibration), type=Calibration) == calibration


def test_each_row_is_measured_as_if_alone() -> None:
    rows = [human("Where is it?"), answer("There.", "call"), result("call", "x" * 5_000)]
    estimator = Estimator(Calibration(scale=1.3, samples=3))
    assert estimator.each(rows, STYLE) == [estimator.rows([row], STYLE) for row in rows]


def test_a_long_unmeasured_conversation_is_not_quick_to_estimate() -> None:
    estimator = Estimator(sizes=RowTokenCache())
    long = request(human(f"Message {number}.") for number in range(1, 1_001))
    assert estimator.is_quick(request(long.transcript[:10]))
    assert not estimator.is_quick(long)
    estimator.whole(long)
    assert estimator.is_quick(long)
