"""What is set up before the daemon starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import load_config
from gateway.daemon.process import lock_folder, loop_factory, token_locks


@pytest.mark.skipif(not os.access("/run/lock", os.W_OK), reason="/run/lock is closed to this user")
def test_processes_meet_where_the_temporary_folder_does_not_matter(tmp_path: Path) -> None:
    assert lock_folder({"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/run/lock")


def test_a_lock_is_one_token_s_at_one_server_and_does_not_tell_it(tmp_path: Path) -> None:
    def locks(**variables: str) -> list[tuple[str, Path]]:
        return list(token_locks(load_config({"HERMES_HOME": str(tmp_path / "home"), **variables}), tmp_path))

    assert locks() == []
    both = locks(HERMES_TELEGRAM__TOKEN="1:one", HERMES_DISCORD__TOKEN="two")
    assert [what for what, _ in both] == ["the Telegram token", "the Discord token"]
    assert locks(HERMES_DISCORD__TOKEN="two") == both[1:]
    assert locks(HERMES_DISCORD__TOKEN="two", HERMES_DISCORD__API_URL="http://127.0.0.1:9") != both[1:]
    assert "one" not in both[0][1].name


def test_the_event_loop_is_uvloop_s_unless_the_environment_says_asyncio() -> None:
    assert loop_factory({"HERMES_EVENT_LOOP": "asyncio"}) is None
    uvloop = pytest.importorskip("uvloop")
    assert loop_factory({}) is uvloop.new_event_loop


def test_the_gateway_starts_without_what_is_off_or_loaded_late() -> None:
    late = {"markdown_it", "openai._client", "httpx2", "telegram", "discord", "aiohttp", "jinja2", "apscheduler"}
    code = "import gateway.daemon.process, gateway.daemon.run, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) & late == set()


def test_platforms_and_models_come_without_what_they_are_not_used_for() -> None:
    code = """
import asyncio, sys
import platforms.telegram, platforms.discord
from agent.model.base import Endpoint
from agent.model.protocols.chat_completions import ChatCompletionsModel
async def made():
    await ChatCompletionsModel(Endpoint(model="m", api_key="k")).close()
asyncio.run(made())
print(*sys.modules, sep=chr(10))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    unused = {"httpx", "httpcore", "cryptography", "trio", "h11", "openai.types.chat", "openai.types.responses"}
    unused.add("openai.types.shared.metadata")
    assert set(done.stdout.split()) & unused == set()


def test_platforms_load_the_parser_of_markdown_and_the_webhook_late() -> None:
    code = "import platforms.telegram, platforms.discord, sys; print(*sys.modules, sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    late = {"markdown_it", "pyromark", "aiohttp.web", "cryptography", "platforms.telegram.webhook"}
    assert set(done.stdout.split()) & late == set()


def test_cryptography_and_httpx_can_be_imported_after_telegram() -> None:
    code = "import platforms.telegram, httpx, cryptography.hazmat.primitives.hashes; assert httpx.__name__ == 'httpx'"
    pytest.importorskip("cryptography")
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_objects_of_many_running_turns_are_not_scanned_again_and_again() -> None:
    code = """
import gc
from gateway.daemon import run
scans = []
run._freeze_memory()
gc.callbacks.append(lambda phase, facts: scans.append(facts["generation"]))
kept = [[] for _ in range(60_000)]
print(*set(scans))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0"]


def test_patterns_for_refusals_are_compiled_when_a_refusal_comes() -> None:
    code = """
import re, sys
from agent.model.errors.classifier import status_error
compiled = re._compiler.compile
re._compiler.compile = lambda pattern, flags=0: print(len(pattern)) or compiled(pattern, flags)
from agent.model.errors.answer import load_features
load_features()
print("refused")
print(type(status_error(400, {}, "max_tokens is too large: 32000. This model supports at most 16384 tokens")).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    before, _, after = done.stdout.partition("refused")
    assert before == ""
    assert after.split()[-1] == "OutputCapExceeded"
    assert len(after.split()) < 40
