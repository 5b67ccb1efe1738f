"""`hermes-gateway trajectories` with real processes, a real database and a model server."""

import asyncio
import json
import os
import pty
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli.trajectories import model_summary
from gateway.operator.lookups import LOOKUPS, look_up
from gateway.operator.socket import serve_control
from hermes_state.chats import ensure_chat
from hermes_state.redaction import redact
from hermes_state.sessions import reset, set_system_prompt, start_subagent_session
from hermes_state.tool_runs import keep_offer
from hermes_state.transcripts import NewMessage, append, hide, load_view
from hermes_state.values import ChatKind, MessageBody, MessageRole, Millis, Origin, Reasoning, SessionId, ToolCall
from tests.databases import open_store
from tests.fakes import fake_llm
from tests.fakes.labkit import Control, Server
from tests.gateway.command_line import answering, stored
from tests.gateway.helpers import Load, Run
from tests.hermes_state.rows import START, exchange, key_of

KEY = "sk-abcdefghij0123456789"
WITHOUT_MODEL = ("--summary-model", "none", "--target-max-tokens", "200", "--summary-target-tokens", "60")
BROKEN = (
    b'{"conversations": [{"from": "human"\n',
    b"\xff\xfe junk\r\n",
    b'{"prompt": "a", "completion": "b"}\n',
    b'{"conversations": [{"from": "narrator", "value": "x"}]}\n',
)


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "trajectories")


def started(environ: Mapping[str, str], *words: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command as a process in its own session, so that signals reach only this process."""
    command = [sys.executable, "-m", "gateway", "trajectories", *map(str, words)]
    return subprocess.Popen(command, env=dict(environ), start_new_session=True, **options)


def line_of(number: int, turns: int, words: int = 30) -> bytes:
    said = [{"from": "system", "value": "You keep the register."}]
    for turn in range(turns):
        said.append({"from": "human", "value": f"{number}.{turn}?"})
        said.append({"from": "gpt", "value": f"<tool_call>\n{{}}\n</tool_call> {turn}"})
        said.append({"from": "tool", "value": f"<tool_response>\n{'boat Zürich ' * words}{turn}\n</tool_response>"})
        said.append({"from": "gpt", "value": f"It is {number + turn}."})
    return json.dumps({"id": number, "conversations": said}, ensure_ascii=number % 2 == 0).encode() + b"\n"


# -- interrupted runs


def written(target: Path) -> dict[str, bytes]:
    """Return the files of a run, by the end of their names."""
    return {path.name.removeprefix(target.name): path.read_bytes() for path in target.parent.glob(f"{target.name}*")}


def interrupt_at(process: subprocess.Popen[bytes], target: Path, size: int, number: signal.Signals) -> int:
    """Signal the process once its output has grown and reached `size` bytes; return its exit code.

    There is no event for a file's size.
    """
    size = max(size, target.stat().st_size + 1 if target.exists() else 0)  # an earlier signal could kill its imports
    while process.poll() is None and (not target.exists() or target.stat().st_size < size):
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(timeout=60)


def test_a_run_that_is_interrupted_repeatedly_writes_the_same_bytes(environ: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(5)
    lines = [
        chance.choice(BROKEN) if chance.random() < 0.01 else line_of(number, chance.randrange(1, 4))
        for number in range(2_000)
    ]
    source, whole, target = tmp_path / "in.jsonl", tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"".join(lines))
    done = started(environ, "compress", source, whole, *WITHOUT_MODEL, stderr=subprocess.PIPE)
    assert done.communicate(timeout=120)[1].count(b"was rejected") == sum(line in BROKEN for line in lines)
    assert done.returncode == 0

    most = whole.stat().st_size // 8  # later, a run could be over before the signal of a busy machine arrives
    sizes = sorted(chance.randrange(1, most) for _ in range(4))
    ends = []
    for index, size in enumerate(sizes):
        process = started(environ, "compress", source, target, *WITHOUT_MODEL, stderr=subprocess.PIPE)
        ends.append(interrupt_at(process, target, size, (signal.SIGKILL, signal.SIGINT)[index % 2]))
        said = process.communicate()[1].decode()
        state = json.loads((tmp_path / "out.jsonl.metrics.json").read_bytes())
        assert not state["is_complete"]
        if ends[-1] == 130:
            assert said.endswith("Interrupted. Run the same command again to continue.\n")
            assert state["written_bytes"]["out"] == target.stat().st_size > 0
    assert ends == [-signal.SIGKILL, 130] * 2
    last = started(environ, "compress", source, target, *WITHOUT_MODEL, stderr=subprocess.DEVNULL)
    assert (last.wait(timeout=120), written(target)) == (0, written(whole))

    kept = [json.loads(line)["id"] for line in target.read_bytes().splitlines()]
    assert kept == [number for number, line in enumerate(lines) if line not in BROKEN]
    assert (tmp_path / "out.jsonl.rejected.jsonl").read_bytes() == b"".join(line for line in lines if line in BROKEN)
    total = json.loads((tmp_path / "out.jsonl.metrics.json").read_bytes())["total"]
    assert (total["lines"], total["trajectories"]) == (2_000, len(kept))
    assert total["was_compressed"] > 600


def test_a_full_disk_ends_the_run_and_a_later_run_continues(environ: dict[str, str], tmp_path: Path) -> None:
    source, whole, target = tmp_path / "in.jsonl", tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    lines = [BROKEN[number % 4] if number % 5 == 4 else line_of(number, 4) for number in range(400)]
    source.write_bytes(b"".join(lines))
    assert started(environ, "compress", source, whole, *WITHOUT_MODEL, stderr=subprocess.DEVNULL).wait(60) == 0
    size = whole.stat().st_size // 3
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    process = started(
        environ, "compress", source, target, *WITHOUT_MODEL, "--force", stderr=subprocess.PIPE, preexec_fn=full
    )
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 1
    assert "File too large" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert started(environ, "compress", source, target, *WITHOUT_MODEL, stderr=subprocess.DEVNULL).wait(60) == 0
    assert written(target) == written(whole)


def test_only_a_terminal_shows_a_progress_bar(environ: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"".join(line_of(number, 4) for number in range(200)))
    done = started(environ, "compress", source, tmp_path / "a.jsonl", *WITHOUT_MODEL, stderr=subprocess.PIPE)
    assert done.communicate(timeout=60)[1] == b""
    ours, theirs = pty.openpty()
    process = started(environ, "compress", source, tmp_path / "b.jsonl", *WITHOUT_MODEL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 4_096)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert b"100%" in shown


# -- with a model


@pytest.mark.parametrize("summary_model", ["", "lab-32k"])
async def test_a_refused_key_ends_the_run_and_a_later_run_continues(
    run: Run, tmp_path: Path, summary_model: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"".join(line_of(number, 6) for number in range(5)))
    async with Server(fake_llm.make_app()) as llm, aiohttp.ClientSession() as session:
        control = Control(llm.url, session)
        variables = {
            "HERMES_MODEL__NAME": "lab-128k",
            "HERMES_MODEL__BASE_URL": f"{llm.url}/v1",
            "HERMES_MODEL__API_KEY": "test",
            "HERMES_AUXILIARY__COMPRESSION__MODEL": summary_model,
        }
        words = ("compress", source, target, "--target-max-tokens", "400", "--summary-target-tokens", "100")
        await control.post("script", [{"error": {"kind": "401"}, "times": 9}])
        refused = await asyncio.to_thread(run, *words, **variables)
        assert f"{summary_model or 'lab-128k'} cannot write summaries" in str(refused.exception)
        assert target.read_bytes() == b""
        await control.delete("script")
        await control.post("script", [{"text": "Boats were looked up in the register, all of them.", "times": 9}])
        done = await asyncio.to_thread(run, *words, **variables)
    assert done.exit_code == 0, done.output
    assert len(target.read_bytes().splitlines()) == 5


@pytest.mark.parametrize(("name", "window"), [("nobody-knows", 8_192), ("gpt-4.1", 1_047_576)])
def test_a_summary_model_of_unknown_size_has_the_window_of_the_main_model(load: Load, name: str, window: int) -> None:
    config = load(f"model: {{name: m, context_length: 8192}}\nauxiliary: {{compression: {{model: {name}}}}}").config
    summary = model_summary(config, None)
    assert (summary.client.name, summary.window) == (name, window)


def test_without_a_model_the_error_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(line_of(1, 6))
    assert "--summary-model none" in str(run("compress", tmp_path / "in.jsonl", tmp_path / "out.jsonl").exception)
    assert not (tmp_path / "out.jsonl").exists()


# -- from the database, and back to the terminal


NO_THOUGHT = "<think>\n</think>\n"


def said(text: str, **other: Any) -> NewMessage:
    return NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, **other)


def answered(text: str | None, **body: Any) -> NewMessage:
    return NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=text, body=MessageBody(**body))


def result(call_id: str, text: str) -> NewMessage:
    return NewMessage(role=MessageRole.TOOL, origin=Origin.TOOL, text=text, tool_call_id=call_id, tool_name="look")


def fill(db: Any) -> list[str]:
    """Store two conversations of a chat, one with calls, thoughts and an undone message, and one of a group."""
    chat = ensure_chat(db, key_of("42"), ChatKind.DIRECT, None, START)
    old = exchange(db, chat, "an older door", "closed")
    new = reset(db, chat, Millis(START + 1_000))
    set_system_prompt(db, new.id, f"You keep the register. {KEY}")
    calls = (ToolCall(id="a", name="look", arguments='{"n": 1}'), ToolCall(id="b", name="look", arguments="{n:"))
    thoughts = Reasoning(made_by="x", blocks='[{"reasoning_content": "I should </think> look."}]')
    rows = [
        said(f"the red door, {KEY}"),
        answered("I look.", calls=calls, reasoning=thoughts),
        result("a", "</tool_response> open \x1b[31m"),
        result("b", f"api_key={KEY}"),
        result("c", f'{{"n": [1, 2.5], "key": "{KEY}"}}'),
        answered("It is open."),
        said("never mind"),
        *[row for number in range(30) for row in (said(f"and {number}?"), answered("It is shut. " * 20))],
    ]
    ids = [append(db, new.id, row, Millis(START + 2_000 + index)) for index, row in enumerate(rows)]
    hide(db, new.id, [ids[6]], "undo", START)
    keep_offer(db, new.id, ["look"])
    group = ensure_chat(db, key_of("-7"), ChatKind.GROUP, None, START)
    exchange(db, group, "a door", "yes", at=START + 90_000_000)
    helper = start_subagent_session(db, chat, ids[1], Millis(START + 2_500))
    append(db, SessionId(helper), said("look at the door"), Millis(START + 2_500))
    append(db, SessionId(helper), answered("It is red."), Millis(START + 2_600))
    reset(db, group, Millis(START + 90_000_001))  # a session without messages
    return [load_view(db, old.lineage_id).session.key, new.key]


def exported(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_conversations_are_exported_compressed_and_shown(run: Run, home: Path, tmp_path: Path) -> None:
    _, key = await stored(home, fill)
    target = tmp_path / "said.jsonl"
    done = await asyncio.to_thread(run, "export", target, "telegram:42")
    assert done.exit_code == 0, done.exception
    assert "3 conversations" in done.output
    first, second, helper = exported(target)
    assert [turn["value"] for turn in helper["conversations"]] == ["look at the door", f"{NO_THOUGHT}It is red."]
    assert (helper["kind"], helper["parent"], second["parent"]) == ("subagent", key, None)
    assert [turn["value"] for turn in first["conversations"]] == ["an older door", f"{NO_THOUGHT}closed"]
    assert second["id"] == key
    turns = second["conversations"]
    assert [turn["from"] for turn in turns[:5]] == ["system", "human", "gpt", "tool", "gpt"]
    assert KEY not in target.read_text()
    assert turns[2]["value"].startswith("<think>\nI should  look.\n</think>\nI look.\n<tool_call>\n")
    assert '{"name":"look","arguments":{"n":1}}\n</tool_call>\n<tool_call>\n' in turns[2]["value"]
    assert (turns[2]["value"].count("</tool_call>"), turns[3]["value"].count("</tool_response>")) == (2, 3)
    answer = turns[3]["value"].split("\n")[1]
    assert json.loads(answer)["content"].startswith("</tool_response> open")
    assert json.loads(turns[3]["value"].split("\n")[7])["content"] == {"n": [1, 2.5], "key": "[redacted]"}
    assert turns[4]["value"] == f"{NO_THOUGHT}It is open."
    assert "never mind" not in target.read_text()
    assert (second["completed"], second["timestamp"]) == (True, "2026-01-01T00:00:02+00:00")
    assert turns[0]["value"].endswith('\n\n<tools>\n[{"name":"look"}]\n</tools>')
    played = (await asyncio.to_thread(run, "replay", target, 2)).output
    for line in (
        "System: You keep the register. [redacted]\nTools: look\n",
        "User: the red door, [redacted]\n",
        'Agent (thinking): I should  look.\nAgent: I look.\nAgent → look {"n":1}\nAgent → look {n:\n',
        'look → {"n":[1,2.5],"key":"[redacted]"}\n',
        "\nAgent: It is open.\n",
    ):
        assert line in played, played
    assert "think>" not in played
    assert "\x1b" not in played

    small = tmp_path / "small.jsonl"
    done = await asyncio.to_thread(run, "compress", target, small, *WITHOUT_MODEL)
    assert done.exit_code == 0, done.exception
    assert [one["id"] for one in exported(small)] == [first["id"], key, helper["id"]]
    shown = await asyncio.to_thread(run, "show", small, 2)
    assert "── 1 system" in shown.output
    assert "SUMMARY OF EARLIER TURNS" in shown.output
    assert "\x1b" not in shown.output


async def test_an_export_from_the_daemon_in_pages_equals_one_from_the_database(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.lookups.PAGE_ROWS", 7)
    monkeypatch.setattr("gateway.operator.lookups.PAGE_CONVERSATIONS", 1)
    store = await open_store(home / "state.db")
    await store.write(fill)
    handlers = {name: partial(look_up, store, name, redact=redact) for name in LOOKUPS}
    async with serve_control(home / "control.sock", {**handlers, "tools": answering([])}):
        done = await asyncio.to_thread(run, "export", tmp_path / "asked.jsonl")
        assert done.exit_code == 0, done.exception
        refused = await asyncio.to_thread(run, "export", tmp_path / "none.jsonl", "telegram:77")
    await store.close()
    assert "telegram:77" in str(refused.exception)
    assert not written(tmp_path / "none.jsonl")
    await asyncio.to_thread(run, "export", tmp_path / "read.jsonl")
    assert len(exported(tmp_path / "asked.jsonl")) == 4
    assert (tmp_path / "asked.jsonl").read_bytes() == (tmp_path / "read.jsonl").read_bytes()


async def test_an_export_can_be_limited_to_a_session_or_to_recent_use(run: Run, home: Path, tmp_path: Path) -> None:
    old, key = await stored(home, fill)
    target = tmp_path / "said.jsonl"
    by_session = (((old,), 1), ((old, "--session"), 1), ((key,), 2), ((key, "--session"), 1))
    for words, count in (*by_session, (("--since", "2100-01-01"), 0), ((), 4)):
        done = await asyncio.to_thread(run, "export", target, *words, "--force")
        assert done.exit_code == 0, done.exception
        assert len(exported(target)) == count, words
    done = await asyncio.to_thread(run, "export", target)
    assert "--force" in str(done.exception)
    done = await asyncio.to_thread(run, "export", target, "--force", "--session")
    assert "--session needs" in str(done.exception)


def test_show_and_replay_explain_lines_that_cannot_be_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line_of(1, 1) + BROKEN[3])
    assert "2 human" in run("show", path).output
    assert "use one of system, human, gpt, tool" in str(run("show", path, 2).exception)
    assert "\nUser: " in run("replay", path).output
    assert "use one of system, human, gpt, tool" in str(run("replay", path, 2).exception)
    turns = [
        {"from": "system", "value": '<tools>[{"type": "function", "function": {"name": "look"}}]</tools>'},
        {"from": "gpt", "value": "<think>[1]</think><tool_call>broken</tool_call>so"},
    ]
    path.write_text(json.dumps({"conversations": turns, "model": None}) + "\n")
    played = run("replay", path).output
    for line in ("System (tools): [{", "Agent (thinking): [1]\n", "Agent (tool_call): broken\n", "Agent: so\n"):
        assert line in played
    assert "fewer than 3 lines" in str(run("show", path, 3).exception)
