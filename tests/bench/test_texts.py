"""`make texts`: it finds the sentences that people read, and none of them breaks a rule."""

import pytest

from bench.source import parse
from bench.texts import all_sentences, faults, sentences_of, texts_of


def test_all_sentences_of_the_product_are_short_and_plain() -> None:
    assert [(found.path, found.line, found.text) for found in all_sentences() if faults(found.text)] == []


@pytest.mark.parametrize("place", ["chats", "command line", "errors", "models", "operators", "settings", "web pages"])
def test_each_place_has_sentences(place: str) -> None:
    assert any(found.place == place for found in all_sentences())


@pytest.mark.parametrize(
    "text",
    [
        "assumed, for nobody says it; model.context_length does",
        "Whoever runs this gateway has to check this model's api_key.",
        "Refused are messages of strangers.",
        "There is no compression that could be taken back.",
        "What waits of one that is paused comes no more.",
        "The table has to be made anew.",
        "word " * 26,
    ],
)
def test_sentences_that_make_readers_stumble_are_faults(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "The model provider does not accept the API key; the bot owner must check `model.api_key`.",
        "What can I do for you?",
        "Nothing to undo.",
        "Use `/find a | b | c | d | e | f | g | h | i | j | k | l | m | n | o | p | q | r | s | t | u | v | w | x`.",
    ],
)
def test_plain_sentences_have_no_faults(text: str) -> None:
    assert faults(text) == []


def test_literals_are_found_with_their_place_and_line() -> None:
    module = parse(
        "gateway/commands/greeting.py",
        '''"""Docstrings are for developers."""
import re
PATTERN = re.compile("not a sentence at all")

def greet(name):
    log.info("nobody reads this event here")
    if not name:
        raise CommandError(f"The name {name!r} is empty. Send /greet and a name.")
    return "Welcome to the gateway!"
''',
    )
    assert [(found.place, found.line, found.text) for found in sorted(texts_of(module))] == [
        ("chats", 9, "Welcome to the gateway!"),
        ("errors", 8, "Send /greet and a name."),
        ("errors", 8, "The name … is empty."),
    ]


@pytest.mark.parametrize(
    "line",
    [
        """raise CommandError("There is nothing to undo.")""",
        """reason, kind = "No model can answer now.", "cooling_down\"""",
        """report(f"{name} did not answer in {seconds} seconds")""",
        """raise ConfigError("get_tool_schemas must not be async")""",
        """raise ConfigError("A request must look like {\\"ask\\": 1}.")""",
    ],
)
def test_messages_are_sentences(line: str) -> None:
    assert list(texts_of(parse("gateway/turns/line.py", line)))


@pytest.mark.parametrize(
    "line",
    [
        """assert row is not None, "a turn has a row before it runs\"""",
        """raise TurnMoved("the turn does not run in this epoch")""",
        """raise TypeError("the index of a block is a number")""",
        """if "message is not modified" in text: pass""",
        """text.startswith(("the first words of a log line", "other words of it"))""",
        """NAMES = "these are several names".split()""",
        """GONE = ("chat was not found", "user is not known", "peer_id_invalid")""",
        """SCHEMA = json.loads('{"properties": {"pattern": {"type": "string of words"}}}')""",
        """part = '"properties": {"pattern": {"type": "text or number"}}'""",
        """value = cast("dict[str, int] | None", value)""",
        """Reply: TypeAlias = "Answer | str | None\"""",
        """CODE = "import os, re, sys\\nfor name in sys.argv: print(name)\"""",
        """PREFIX = 'ulimit -c 0; then exec "$@"'""",
        """scope = f"c{chat} l{lineage} r{role}\"""",
        """SET = "version = version + 1, model = ?\"""",
        """COLUMNS = f"id, {key}, kind, title, active_session_id\"""",
        """FILES = "memory.current memory.stat pids.current\"""",
        """query = "SELECT id FROM turns WHERE chat = ?\"""",
    ],
)
def test_literals_that_only_the_program_reads_are_not_sentences(line: str) -> None:
    assert list(texts_of(parse("gateway/turns/line.py", line))) == []


def test_labels_are_not_sentences() -> None:
    assert list(sentences_of("TOTAL COST\nmodel.name")) == []
