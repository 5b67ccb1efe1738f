"""Text of other people is printed without control characters."""

import asyncio
import io
import json
import re
import sqlite3
import sys
import unicodedata
from pathlib import Path

import pytest

from gateway.cli.output import progress_bar
from gateway.cli.status import status
from gateway.operator.socket import serve_control
from hermes_state.admin import pairings
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError
from hermes_state.sessions import set_title
from hermes_state.values import ChatKind, Sender, SystemClock
from tests.gateway.command_line import answering, stored
from tests.gateway.helpers import Run
from tests.hermes_state.rows import START, exchange, key_of

TITLE = "\x1b]0;your shell\x07"
COLOUR = "\x1b[31mred\x1b[0m"
BACK = "rm \x08\x08\x08ls\r"
C1 = "\x9b2J\x9d0;x\x9c"
TURNED = "\u202eexe.txt\u202c \u2066here\u2069"
HOSTILE = f"needle {TITLE} {COLOUR} {BACK} {C1} {TURNED} \x7f\nthe second line,\ttabbed"


def controls(text: str) -> set[str]:
    """Return the characters that control a terminal, except line feed and tab."""
    turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return {one for one in text if unicodedata.category(one) == "Cc" or one in turning} - {"\n", "\t"}


def fill(db: sqlite3.Connection) -> None:
    chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
    turn = exchange(db, chat, HOSTILE, f"{HOSTILE}!")
    db.execute("UPDATE messages SET sender_name = ?", (f"Eve{TITLE}\nm1  2026-01-01  admin",))
    set_title(db, turn.id, HOSTILE)
    sender = Sender(platform="telegram", id="66", name=f"Eve {TITLE}\ntelegram:1  Ada  approved")
    pairings.offer(db, sender, pairings.new_code(), 60_000, 10, SystemClock().now())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("history", "telegram:42"), "needle \\u001b]0;your shell\\u0007 \\u001b[31mred"),
        (("search", "needle"), "needle \\u001b]0;"),
        (("sessions",), "needle \\u001b]0;"),
        (("lineage",), "telegram:42"),
        (("pair", "list"), "Eve  ]0;your shell  telegram:1  Ada"),
    ],
)
async def test_look_ups_print_control_characters_as_their_codes(
    run: Run, home: Path, words: tuple[str, ...], shown: str
) -> None:
    await stored(home, fill)
    done = await asyncio.to_thread(run, *words)
    assert shown in done.output
    assert controls(done.output) == set()
    assert not [line for line in done.output.splitlines() if line.startswith(("m1  2026-01-01  admin", "telegram:1 "))]
    printed = (await asyncio.to_thread(run, *words, "--json")).output
    assert controls(printed) == set()
    if words[0] == "history":
        assert [row["text"] for row in json.loads(printed)] == [HOSTILE, f"{HOSTILE}!"]


async def test_text_from_the_daemon_prints_no_control_characters(run: Run, home: Path) -> None:
    status = {"platforms": {"telegram": {"state": "failed", "detail": f"Conflict: {HOSTILE}"}}}
    doctor = [{"check": "model", "verdict": "failed", "text": f"The server says: {HOSTILE}"}]
    handlers = {"status": answering(status), "doctor": answering(doctor)}
    async with serve_control(home / "control.sock", handlers):
        for words, shown in (
            (("status",), "owner's attention. Conflict: needle \\u001b"),
            (("doctor",), "says: needle \\u001b"),
        ):
            done = await asyncio.to_thread(run, *words)
            assert shown in done.output
            assert controls(done.output) == set(), words


async def test_an_error_prints_no_control_characters(home: Path, tmp_path: Path) -> None:
    async with serve_control(home / "control.sock", {"pair.approve": answering(CommandError(HOSTILE))}):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "pair", "approve", "K7QM4XPA"),
            env={"HERMES_HOME": str(home), "HOME": str(tmp_path)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, printed = await process.communicate()
    assert "failed: needle \\u001b" in printed.decode()
    assert controls(printed.decode()) == set()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, True), (io.StringIO, False)])
def test_progress_is_shown_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    with progress_bar() as progress:
        progress("needle \x1b[31m", 1, 4)
        progress("messages", 2, 4)
    printed = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert all((word in printed) is shown for word in ("needle \\u001b", "25%", "messages", "50%"))
    assert shown or not printed


async def test_the_status_has_colours_only_on_a_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = {"telegram": {"state": "failed", "detail": f"Conflict [bold]{HOSTILE}"}}
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    async with serve_control(home / "control.sock", {"status": answering({"platforms": platforms})}):
        await asyncio.to_thread(status, as_json=False, is_watched=False)
    printed = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31mtelegram: stopped" in printed, "a failed platform is red"
    assert "[bold]" in printed, "its text has no effect on the layout"
    assert controls(re.sub(r"\x1b\[[0-9;]*m", "", printed)) == set()
