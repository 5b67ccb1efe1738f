"""Lines that the daemon writes about itself, and the secrets that are in none of them."""

import contextlib
import io
import json
import logging
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from gateway import logs
from gateway.config.settings import LoggingConfig
from gateway.logs import configure_logging, update_logging
from hermes_state.redaction import Redactor

TOKEN = "1234567:AAE-notARealToken_notARealToken_123"
KEY = "sk-the-configured-key-0001"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Lines: TypeAlias = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _untouched_logging() -> Iterator[None]:
    """Logging is global: put back what configuring changes."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configured = structlog.get_config()
    levels = {name: logging.getLogger(name).level for name in ("telegram", "discord", "httpx", "openai", "anthropic")}
    yield
    for handler in list(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    structlog.configure(**configured)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    configure_logging(LoggingConfig(), secrets=[TOKEN, KEY], directory=None, stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_daemon_writes_one_json_object_a_line_with_what_is_bound(lines: Lines) -> None:
    with bound_contextvars(platform="telegram", turn_id=7):
        structlog.get_logger("gateway.turns.runner").info("turn.finished", tokens_before=10, ids=(1, 2))
    (line,) = lines()
    assert line.pop("at").endswith("Z")
    assert line == {
        **{"event": "turn.finished", "level": "info", "logger": "gateway.turns.runner"},
        **{"platform": "telegram", "turn_id": 7, "tokens_before": 10, "ids": [1, 2]},
    }


def test_a_line_on_a_screen_is_short(stream: io.StringIO) -> None:
    terminal = Terminal()
    configure_logging(LoggingConfig(), secrets=[], directory=None, stream=terminal)
    structlog.get_logger("gateway.daemon").info("gateway.started")
    logging.getLogger("telegram.ext").warning("odd")
    ours, theirs = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[info +\] gateway.started *", ours)
    assert "[telegram.ext]" in theirs


def test_what_a_server_says_cannot_steer_the_terminal() -> None:
    terminal = Terminal()
    configure_logging(LoggingConfig(), secrets=[], directory=None, stream=terminal)
    said = "gone \x1b]0;mine\x07 \x9b2J \u202eback"
    structlog.get_logger("x").warning("adapter.failed", error=said, more=[said])
    logging.getLogger("discord.http").warning("%s", said)
    plain = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert plain.count("gone") >= 3
    assert not [one for one in plain if one != "\n" and (unicodedata.category(one) == "Cc" or one == "\u202e")]


def test_discord_py_repeats_nothing_that_we_report_ourselves(lines: Lines) -> None:
    log = logging.getLogger("discord.client")
    log.warning("PyNaCl is not installed, voice will NOT be supported")
    try:
        raise ConnectionError("no route")
    except ConnectionError:
        log.exception("Attempting a reconnect in %.2fs", 1.2)
    log.warning("something else")
    assert [line["event"] for line in lines()] == ["something else"]


def test_the_format_can_be_fixed(stream: io.StringIO) -> None:
    terminal = Terminal()
    configure_logging(LoggingConfig(format="json"), secrets=[], directory=None, stream=terminal)
    structlog.get_logger("x").info("gateway.started")
    assert json.loads(terminal.getvalue())["event"] == "gateway.started"


@pytest.mark.parametrize(
    "name",
    ["telegram.ext.Updater", "httpx", "discord.gateway", "openai._base_client", "anthropic._base_client", "httpcore2"],
)
def test_libraries_that_print_addresses_are_silent_below_warning_at_any_level(
    lines: Lines, name: str, stream: io.StringIO
) -> None:
    configure_logging(LoggingConfig(level="debug"), secrets=[TOKEN], directory=None, stream=stream)
    logging.getLogger(name).info("HTTP Request: POST https://api.telegram.org/bot%s/getUpdates", TOKEN)
    assert lines() == []


def test_a_token_in_a_library_s_warning_or_traceback_never_gets_out(lines: Lines) -> None:
    url = f"https://api.telegram.org/bot{TOKEN}/getUpdates"
    logging.getLogger("telegram.ext.Updater").warning("cannot reach %s", url)
    try:
        raise ConnectionError(f"failed: {url}")
    except ConnectionError:
        logging.getLogger("httpx").exception("request failed")
        structlog.get_logger("x").exception("adapter.crashed", url=url)
    written = lines()
    assert len(written) == 3
    assert TOKEN not in json.dumps(written)
    assert "ConnectionError" in written[1]["exception"]
    assert "getUpdates" in written[0]["event"]


@pytest.mark.parametrize("value", [KEY, [KEY], {"deep": {"er": (KEY,)}}, ValueError(KEY), {KEY}, KEY.encode()])
def test_a_configured_secret_never_gets_out_whatever_it_is_wrapped_in(
    lines: Lines, stream: io.StringIO, value: object
) -> None:
    structlog.get_logger("x").info("thing.happened", detail=value)
    assert lines()[0]["event"] == "thing.happened"
    assert KEY not in stream.getvalue()


def test_a_field_named_like_a_secret_is_masked_even_if_its_value_is_unknown(lines: Lines) -> None:
    structlog.get_logger("x").info("thing.happened", api_key="unknown", max_tokens=5)
    assert (lines()[0]["api_key"], lines()[0]["max_tokens"]) == ("[redacted]", 5)


def test_another_level_takes_effect_at_once(lines: Lines) -> None:
    log = structlog.get_logger("x")
    log.debug("thing.hidden")
    update_logging("debug", ())
    log.debug("thing.shown")
    update_logging("error", ())
    log.warning("thing.hidden")
    assert [line["event"] for line in lines()] == ["thing.shown"]


def test_a_reload_brings_its_level_and_its_secrets(lines: Lines, stream: io.StringIO) -> None:
    log = structlog.get_logger("x")
    log.info("thing.before", detail="a-new-secret-value")
    update_logging("warning", ["a-new-secret-value"])
    log.info("thing.hidden")
    log.warning("thing.after", detail="a-new-secret-value")
    assert [line["detail"] for line in lines()] == ["a-new-secret-value", "[redacted]"]


def test_the_file_gets_json_even_at_a_terminal(tmp_path: Path) -> None:
    configure_logging(LoggingConfig(), secrets=[KEY], directory=tmp_path, stream=Terminal())
    structlog.get_logger("x").info("thing.happened", detail=KEY)
    text = (tmp_path / "gateway.log").read_text()
    assert json.loads(text)["event"] == "thing.happened"
    assert KEY not in text


def test_lines_that_cannot_be_written_are_told_once_and_not_shown(
    tmp_path: Path, stream: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gateway.log").symlink_to("/dev/full")
    configure_logging(LoggingConfig(), secrets=[KEY], directory=tmp_path, stream=stream)
    for _ in range(3):
        structlog.get_logger("x").info("thing.happened", detail=KEY)
    said = capfd.readouterr().err
    assert KEY not in said
    assert len(said.splitlines()) == 1
    assert "No space left" in said
    for handler in logging.getLogger().handlers:
        with contextlib.suppress(OSError):  # what is left in its buffer cannot be written either
            handler.close()
    assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize("loss", ["file", "folder", "moved", "replaced"])
def test_a_log_file_that_somebody_takes_away_is_opened_again(loss: str, stream: io.StringIO, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file, log = folder / "gateway.log", structlog.get_logger("x")
    configure_logging(LoggingConfig(), secrets=[], directory=folder, stream=stream)
    log.info("first.written")
    match loss:
        case "file":
            file.unlink()
        case "folder":
            shutil.rmtree(folder)
        case "moved":
            file.rename(tmp_path / "gateway.log.old")
        case "replaced":
            file.unlink()
            file.touch()
    log.info("second.written")
    log.info("third.written")
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["second.written", "third.written"]


def test_configuring_again_replaces_the_first_handlers(stream: io.StringIO, tmp_path: Path) -> None:
    for _ in range(3):
        configure_logging(LoggingConfig(), secrets=[], directory=tmp_path, stream=stream)
    structlog.get_logger("x").info("thing.happened")
    assert (len(stream.getvalue().splitlines()), len((tmp_path / "gateway.log").read_text().splitlines())) == (1, 1)


def test_a_line_for_two_handlers_is_rendered_once(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    class Recording(Redactor):
        def __call__(self, text: str) -> str:
            looked.append(text)
            return super().__call__(text)

    monkeypatch.setattr(logs, "Redactor", Recording)
    configure_logging(LoggingConfig(), secrets=[KEY], directory=tmp_path, stream=stream)
    structlog.get_logger("x").info("thing.happened", chat="one")
    logging.getLogger("some.package").warning("said %s", "two", extra={"more": "three"})
    assert stream.getvalue() == (tmp_path / "gateway.log").read_text()
    assert [looked.count(text) for text in ("thing.happened", "one", "three", "some.package")] == [1] * 4


def test_values_that_json_cannot_carry_become_text(lines: Lines) -> None:
    structlog.get_logger("x").info("thing.happened", big=2**80, path=Path("/a"), nothing=None, ratio=0.5, kind=sys)
    line = lines()[0]
    assert (line["big"], line["path"], line["nothing"], line["ratio"]) == (str(2**80), "/a", None, 0.5)


def test_connections_that_cannot_be_accepted_are_one_line_a_minute(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "ACCEPT_ERROR_SECONDS", 0.2)
    log = logging.getLogger("asyncio")
    for _ in range(100):
        log.error("socket.accept() out of system resource\nsocket: <…>")
    log.error("Task exception was never retrieved")
    time.sleep(0.2)
    log.error("socket.accept() out of system resource\nsocket: <…>")
    assert [line["event"].partition("\n")[0] for line in lines()] == [
        "socket.accept() out of system resource",
        "Task exception was never retrieved",
        "socket.accept() out of system resource",
    ]
