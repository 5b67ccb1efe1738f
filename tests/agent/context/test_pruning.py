"""Pruning: one line per old result, the same line each time, and the full text available with one call."""

import orjson
import pytest

from agent.context.pruning import MAX_DEPTH, prune
from hermes_state.redaction import Redactor
from hermes_state.values import Message, MessageBody, MessageRole, ToolCall, Transcript
from tests.agent.context.rows import answer, human, result, row

SECRET, KEY = "correct-horse-7", "sk-live-0123456789abcdef0123"
REDACT = Redactor([SECRET])
LONG = "line of output\n" * 200


def asked(arguments: str, name: str = "look", call_id: str = "a") -> Message:
    return row(
        MessageRole.ASSISTANT, None, body=MessageBody(calls=(ToolCall(id=call_id, name=name, arguments=arguments),))
    )


def pruned(*rows: Message, upto: int | None = None) -> Transcript:
    transcript, _ = prune(rows, upto=len(rows) if upto is None else upto, redact=REDACT)
    return transcript


def stub(text: str, arguments: str = "{}", name: str = "look") -> str:
    return pruned(asked(arguments, name), result("a", text))[1].text or ""


def test_a_stub_names_tool_target_outcome_size_and_recall_id() -> None:
    rows = (asked('{"mode": "fast", "path": "/srv/app/main.py"}', "read_file"), result("a", LONG))
    seen = pruned(*rows)[1].text
    assert seen == (
        f"[pruned m{rows[1].id}: look /srv/app/main.py: ok, begins 'line of output'; 3,000 characters in 201 lines; "
        "history_open reads them]"
    )


def test_a_result_without_a_tool_name_gets_it_from_the_call() -> None:
    bare = row(MessageRole.TOOL, LONG, tool_call_id="a")
    assert ": read_file: ok" in (pruned(asked("{}", "read_file"), bare)[1].text or "")
    assert ": tool: ok" in (pruned(bare)[0].text or "")


def test_a_stub_names_its_own_call_if_ids_repeat() -> None:
    texts = [f"{number}\n{LONG}" for number in range(3)]
    rows = [one for number in range(3) for one in (asked(f'{{"path": "/{number}"}}'), result("a", texts[number]))]
    stubs = [one.text or "" for one in pruned(*rows) if one.role is MessageRole.TOOL]
    assert [f"look /{number}: ok, begins '{number}'" in stubs[number] for number in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (f"exit code: 3\n{LONG}", "exit code 3"),
        (f"{LONG}\nProcess exited with code 0", "exit code 0"),
        (f'{{"returncode": -9, "out": "{"x" * 300}"}}', "exit code -9"),
        (f"Error: no such file\n{LONG}", "failed, 'Error: no such file'"),
        (f"\n\n  Traceback (most recent call last)\n{LONG}", "failed, 'Traceback (most recent call last)'"),
    ],
)
def test_a_stub_states_the_outcome_of_the_call(text: str, outcome: str) -> None:
    assert f": {outcome};" in stub(text)


def test_short_results_and_results_in_the_tail_stay() -> None:
    rows = (asked("{}"), result("a", "x" * 200), asked("{}", call_id="b"), result("b", LONG))
    assert prune(rows, upto=3, redact=REDACT) == (rows, 0)


def test_messages_of_people_and_the_model_stay() -> None:
    rows = (human(LONG), answer(LONG))
    assert pruned(*rows) == rows


def test_the_newest_of_identical_results_stays_and_the_others_point_to_it() -> None:
    rows = (asked("{}"), result("a", LONG), asked("{}", call_id="b"), result("b", LONG), human("x"))
    seen = pruned(*rows, upto=3)
    assert seen[1].text == f"[pruned m{rows[1].id}: the same result as m{rows[3].id}, which came later]"
    assert seen[3] is rows[3]


def test_the_given_rows_are_not_changed() -> None:
    rows = (asked('{"content": "' + "x" * 900 + '"}'), result("a", LONG))
    before = (rows[0].body.calls[0].arguments, rows[1].text)
    pruned(*rows)
    assert (rows[0].body.calls[0].arguments, rows[1].text) == before


def arguments_of(arguments: str) -> str:
    return pruned(asked(arguments))[0].body.calls[0].arguments


def test_long_arguments_are_shortened_inside_their_json() -> None:
    given = {"path": "/srv/a", "edits": [{"text": "漢" * 900}, "y" * 100], "count": 7, "none": None}
    rows = (asked(orjson.dumps(given).decode()),)
    done = pruned(*rows)
    read = orjson.loads(done[0].body.calls[0].arguments)
    cut = f"{'漢' * 200}… [pruned m{rows[0].id}: 900 characters]"
    assert read == {"path": "/srv/a", "edits": [{"text": cut}, "y" * 100], "count": 7, "none": None}


@pytest.mark.parametrize(
    "arguments",
    [
        "{" + "x" * 900,
        '{"a": "' + "x" * 900,
        '"' + "x" * 900 + '"',
        "7" * 900,
        "null" + " " * 900,
        "[" * 900 + "]" * 900,
        "[" * 300 + '"' + "x" * 900 + '"' + "]" * 300,
        '{"a":' * 300 + '"' + "x" * 900 + '"' + "}" * 300,
        '{"a": 1e999, "b": "' + "x" * 900 + '"}',
        '{"a": "\\ud800' + "x" * 900 + '"}',
        "",
    ],
)
def test_no_arguments_raise_an_error(arguments: str) -> None:
    rows = (asked(arguments), result("a", LONG))
    done = pruned(*rows)
    assert pruned(*done) == done
    assert len(arguments_of(arguments)) <= len(arguments)


def test_broken_json_and_too_deep_values_stay_unchanged() -> None:
    broken = '{"a": "' + "x" * 900
    deep = "[" * (MAX_DEPTH + 2) + '"' + "x" * 900 + '"' + "]" * (MAX_DEPTH + 2)
    assert (arguments_of(broken), arguments_of(deep)) == (broken, deep)


@pytest.mark.parametrize("arguments", ['{"path": 7}', '{"path": ["a"]}', "[]", "7", "{", '{"path": "  "}'])
def test_a_target_that_is_not_text_is_omitted(arguments: str) -> None:
    assert ": look: ok" in stub(LONG, arguments)


@pytest.mark.parametrize("words", ["a ", "word, ", "字"])
def test_no_part_of_a_secret_remains_at_a_cut(words: str) -> None:
    """Cut text is searched for secrets again before it is shown, and half a secret would not be recognised."""
    for at in range(0, 900, 7):
        before = (words * at)[:at]
        text = f"{before} {KEY} {SECRET} {words * 1_200}\n{words * 100} {KEY} {before}"
        arguments = orjson.dumps({"path": text.replace("\n", " "), "lines": [text]}).decode()
        rows = pruned(asked(arguments), result("a", text))
        shown = REDACT((rows[1].text or "") + rows[0].body.calls[0].arguments)
        assert "[pruned" in shown
        for secret in (KEY, SECRET):
            assert secret[:8] not in shown
            assert secret[-8:] not in shown
