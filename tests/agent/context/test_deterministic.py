"""The record that is made by rule if no model can write a summary."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.deterministic import READ_CHARACTERS, deterministic_summary
from agent.context.excerpt import QUOTED_CHARACTERS, fitted, said
from agent.handoff import END_MARKER, SUMMARY_PREFIX
from agent.model.usage import estimated_text_tokens
from hermes_state.redaction import Redactor
from hermes_state.transcripts import FORWARDED_NOTE
from hermes_state.values import Document, Message, MessageBody, MessageRole, Millis, Origin, Tokens, ToolCall
from tests.agent.context.rows import answer, human, result, row
from tests.sampling import examples

SECRET, KEY = "correct-horse-7", "sk-live-0123456789abcdef0123"
REDACT = Redactor([SECRET])


def made(*rows: Message, **changes: Any) -> str:
    values: dict[str, Any] = {"redact": REDACT, "limit": Tokens(4_000), "removed": len(rows)}
    previous = changes.pop("previous", None)
    return deterministic_summary(rows, previous, **(values | changes))


def section(text: str, title: str) -> list[str]:
    """The lines under a heading, or none if the heading is missing."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return [line for line in found[1].splitlines() if line] if found else []


def calling(number: int, name: str, arguments: str) -> Message:
    return answer(None, body=MessageBody(calls=(ToolCall(id=f"c{number}", name=name, arguments=arguments),)))


def test_the_opening_says_that_it_is_no_summary_and_how_to_continue() -> None:
    text = made(human("hello"), removed=1_234)
    opening = text.split("\n\n")[0]
    assert "No summary could be made of the 1,234 messages" in opening
    assert "Continue from the recent messages and the current state" in opening
    assert "history tools" in opening
    assert "of the one message that" in made(human("hello"))
    assert "Active Task" not in made(human("   \n ")), "a blank message is not a request"
    assert made().startswith("No summary could be made of the 0 messages")


def test_the_latest_request_is_quoted_verbatim() -> None:
    text = "Move the shop:\n\n1. stop it\n2. copy `/srv/shop`\n## not a heading\n   and   start it"
    lines = section(made(human("old"), human(text), answer("I begin.")), "Active Task")
    assert [line.removeprefix("> ").removeprefix(">") for line in lines[1:]] == [
        "Move the shop:",
        "",
        "1. stop it",
        "2. copy `/srv/shop`",
        "## not a heading",
        "   and   start it",
    ]


def test_forwarded_text_is_neither_a_request_nor_an_open_question() -> None:
    forwarded = human("Will you delete everything?", body=MessageBody(words_by="Bob", notes=(FORWARDED_NOTE,)))
    text = made(human("move the shop"), forwarded)
    assert (section(text, "Active Task")[1:], section(text, "Pending User Asks")) == (["> move the shop"], [])


def test_a_long_request_is_cut_in_the_middle_and_leaves_room_for_the_rest() -> None:
    text = made(
        answer("We decided to use Postgres."), human("begin " + "部署 x\n" * 9_000 + " end"), limit=Tokens(1_000)
    )
    quoted = section(text, "Active Task")
    assert (quoted[1], quoted[-1]) == ("> begin 部署 x", ">  end")
    assert "decided to use Postgres" in text
    assert estimated_text_tokens(text) <= 1_000


def test_unanswered_questions_are_open() -> None:
    rows = (
        human("Why is it red?"),
        answer("A port."),
        human("And who pays?"),
        human("要多少钱？"),
        calling(1, "look", "{}"),
    )
    lines = section(made(*rows), "Pending User Asks")
    assert len(lines) == 2
    assert "要多少钱" in lines[0]
    assert "who pays" in lines[1]


@pytest.mark.parametrize(
    "question", ["هل انتهى العمل؟", "終わりましたか。", "做完了吗", "다 됐나요?", "¿Listo?", "Fertig? "]
)
def test_questions_are_recognised_in_several_languages(question: str) -> None:
    assert question.strip()[:-1] in "".join(section(made(human(question)), "Pending User Asks"))


@pytest.mark.parametrize(
    "sentence",
    [
        "We decided to use Postgres.",
        "Wir haben uns für Postgres entschieden.",
        "On a décidé de garder Postgres.",
        "Decidimos usar Postgres.",
        "Мы решили взять Postgres.",
        "我们决定使用 Postgres。",
        "Postgres に決定しました。",
        "Postgres를 쓰기로 결정했습니다.",
        "قررنا استخدام Postgres.",
    ],
)
def test_decisions_are_found_in_several_languages(sentence: str) -> None:
    (line,) = section(made(human("ok"), answer(f"Fine. {sentence} More follows.")), "Key Decisions")
    assert "Postgres" in line


def test_errors_files_and_identifiers_are_found_in_all_kinds_of_rows() -> None:
    body = MessageBody(documents=(Document(name="notes", text="see build/报告.pdf and docs/plan.md"),))
    text = made(
        human("Ticket SHOP-412 is about /srv/shop/app.py", body=body),
        calling(1, "run", '{"cmd": "cat ~/conf/app.toml", "host": "10.0.0.7:5432"}'),
        result("c1", "ValueError: no such table: `order_items`"),
        answer(
            "Version 2.4.1 at https://example.org/shop?x=1, commit 9fceb02d0ae5, ann.lee@example.org. 错误：连接失败。"
        ),
    )
    files, names = " ".join(section(text, "Relevant Files")), " ".join(section(text, "Critical Context"))
    for name in ("/srv/shop/app.py", "~/conf/app.toml", "https://example.org/shop?x=1", "docs/plan.md", "报告.pdf"):
        assert name in files
    for name in ("SHOP-412", "10.0.0.7:5432", "order_items", "2.4.1", "9fceb02d0ae5", "ann.lee@example.org"):
        assert name in names
    assert "连接失败" in " ".join(section(text, "Blocked"))
    assert "ValueError: no such table: `order_items`" in " ".join(section(text, "Blocked"))


def test_actions_are_listed_newest_first_with_their_outcomes() -> None:
    rows = (
        calling(1, "write", '{"path": "a.txt", "text": "x"}'),
        result("c1", "written"),
        calling(2, "run", '{"cmd": "make'),
        result("c2", "exit code 2"),
        calling(3, "run", '["odd"]'),
    )
    assert [line.split(" (m")[0] for line in section(made(*rows), "Completed Actions")] == [
        '- run ["odd"]: no result is known',
        '- run {"cmd": "make: exit code 2',
        "- write path=a.txt, text=x: written",
    ]


def test_an_action_has_the_outcome_of_its_own_call_if_ids_repeat() -> None:
    first, second = calling(1, "run", '{"cmd": "make"}'), calling(1, "run", '{"cmd": "ls"}')
    lost = calling(1, "run", '{"cmd": "rm"}')
    text = made(first, result("c1", "it failed"), second, result("c1", "two files"), result("c1", "late"), lost)
    done = section(text, "Completed Actions")
    assert done == [
        f"- run cmd=rm: no result is known (m{lost.id})",
        f"- run cmd=ls: two files (m{second.id})",
        f"- run cmd=make: it failed (m{first.id})",
    ]


def test_findings_name_their_message_are_newest_first_and_unique() -> None:
    text = made(human("Read /a/one.txt"), human("Read /a/two.txt"), human("Never read /a/one.txt again", id=77))
    assert [line.split()[1] for line in section(text, "Relevant Files")] == ["/a/one.txt", "/a/two.txt"]
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert all(re.search(r"\(m\d+\)$", line) for line in lines)
    assert lines[0].endswith("(m77)")


def test_no_part_of_a_secret_remains_where_a_long_message_is_cut() -> None:
    for at in range(QUOTED_CHARACTERS - 60, QUOTED_CHARACTERS, 4):
        assert KEY[:8] not in made(answer(f"{'x ' * (at // 2)}\nerror with {KEY}\nmore"))


def test_an_earlier_record_is_included_under_one_heading_without_its_opening() -> None:
    first = made(human("We decided on prod."), removed=10)
    second = made(human("And now?"), previous=first, removed=20)
    third = made(human("So?"), previous=second, removed=30)
    assert (third.count("No summary could be made"), third.count("Earlier record")) == (1, 1)
    assert "30 messages" in third
    assert "We decided on prod." in third
    assert re.findall(r"^## .+$", third, re.MULTILINE)[-1] == "## Earlier record"


def test_secrets_are_absent_even_at_cuts() -> None:
    for at in range(0, 260, 3):
        words = "a " * (at // 2) + "b" * (at % 2) + " "
        escaped = "".join(f"\\u{ord(character):04x}" for character in SECRET)
        text = made(
            human(f"{words}{KEY} must be kept? {words}{SECRET}"),
            calling(1, "login", f'{{"x": "{words}", "password": "{SECRET}", "note": "{escaped}", "key": "{KEY}"}}'),
            result("c1", f"{words}{KEY} failed"),
            previous=f"{words}{KEY}",
            limit=Tokens(600),
        )
        assert SECRET[:8] not in text
        assert KEY[:12] not in text
        assert "[redacted]" not in text


def test_no_text_in_the_record_can_end_the_handoff() -> None:
    text = made(human(f"{END_MARKER} never {SUMMARY_PREFIX}?"), previous=f"x\n{END_MARKER}")
    assert END_MARKER not in text
    assert SUMMARY_PREFIX not in text


SCRIPTS = {
    "english": "We decided that /srv/shop/app{n}.py must never fail with error {n}. ",
    "chinese": "我们决定 /srv/shop/app{n}.py 不要出现错误 {n}。",
    "japanese": "エラー{n}は絶対に駄目だと決定しました。",
    "korean": "오류 {n}은 절대 안 된다고 결정했습니다. ",
    "arabic": "قررنا أن الخطأ {n} يجب أن لا يحدث أبدا. ",
    "emoji": "🚀🔥 error {n} 💥? ",
    "code": "raise ShopError({n})  # app_{n}.py\n",
}


@pytest.mark.parametrize("limit", [256, 1_000, 12_000])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_limit_holds_for_every_script(script: str, limit: int) -> None:
    rows = [human("".join(SCRIPTS[script].format(n=n * 10 + k) for k in range(10))) for n in range(200)]
    text = made(*rows, previous="\n".join(SCRIPTS[script].format(n=n) for n in range(2_000)), limit=Tokens(limit))
    assert estimated_text_tokens(text) <= limit
    assert estimated_text_tokens(text) > limit // 3


def test_the_work_is_bounded_for_long_conversations() -> None:
    searched: list[int] = []
    rows = [human(f"number {n} " + "word " * 200) for n in range(5_000)]
    made(*rows, redact=lambda text: searched.append(len(text)) or text)
    assert sum(searched) < 2 * READ_CHARACTERS


HOSTILE = {
    "hyphens": "a-",
    "slashes": "a/",
    "dots": "a.",
    "numbers": "1.",
    "at signs": "a@",
    "underscores": "a_",
    "tags": "<think>\n",
    "backticks": "`",
    "hex": "abcdef0",
    "letters": "error",
    "urls": "https://",
    "spaces": " ",
    "tildes": "~/.",
    "beyond ASCII": "部",
}


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_causes_no_backtracking(piece: str) -> None:
    """A backtracking rule would try every start with every end, which takes forever at this length."""
    text = HOSTILE[piece] * 40_000
    for one in (human(text), answer(text), calling(1, "run", text)):
        assert len(made(one)) < 40_000


@given(
    st.lists(
        st.tuples(st.sampled_from(list(MessageRole)), st.sampled_from(list(Origin)), st.none() | st.text(), st.text())
    ),
    st.none() | st.text(),
    st.integers(-10, 3_000),
)
@examples(100)
def test_any_rows_give_a_record_within_the_limit(
    pieces: list[tuple[MessageRole, Origin, str | None, str]], previous: str | None, limit: int
) -> None:
    rows = []
    for role, origin, text, arguments in pieces:
        calls = (ToolCall(id=arguments[:3], name="look", arguments=arguments),) if role is MessageRole.ASSISTANT else ()
        call_id = arguments[:3] if role is MessageRole.TOOL else None
        body = MessageBody(calls=calls, notes=(arguments,))
        rows.append(row(role, text, origin=origin, body=body, tool_call_id=call_id, created_at=Millis(-1)))
    text = made(*rows, previous=previous, limit=Tokens(limit))
    assert text.startswith("No summary could be made")
    assert estimated_text_tokens(text) <= max(limit, 110)


# ---- texts that are too long lose lines, with a note about that


RECORD = "\n\n".join(f"## {title}\n" + "\n".join(f"- fact {n} of {title}" for n in range(50)) for title in "ABCD")


def test_a_text_that_fits_is_unchanged() -> None:
    assert fitted(RECORD, Tokens(5_000)) == RECORD


def test_every_section_keeps_its_heading_and_counts_missing_lines() -> None:
    text = fitted(RECORD, Tokens(500))
    assert estimated_text_tokens(text) <= 500
    for title in "ABCD":
        assert f"## {title}\n- fact 0 of {title}\n" in text
    assert text.count("lines left out for length]") == 4


def test_a_text_without_headings_is_shortened() -> None:
    text = fitted("\n".join(f"a line with the number {n}" for n in range(200)), Tokens(300))
    assert estimated_text_tokens(text) <= 300
    assert text.startswith("a line with the number 0\n")


@given(
    st.lists(st.sampled_from(["## H", "### 题", "- fact", "", "部署失败了。", "x" * 200])).map("\n".join),
    st.integers(0, 200),
)
@examples(100)
def test_any_text_fits_or_consists_of_headings_and_notes(text: str, limit: int) -> None:
    kept = fitted(text, Tokens(limit))
    rest = [line for line in kept.splitlines() if line and not line.startswith(("#", "["))]
    assert not rest or estimated_text_tokens(kept) <= limit


def test_forwarded_words_are_marked() -> None:
    assert list(said(human("delete it", body=MessageBody(words_by="Bob")))) == ["(forwarded from Bob: delete it)"]
