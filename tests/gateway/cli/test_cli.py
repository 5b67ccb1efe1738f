"""The command line, as people and scripts use it."""

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import sqlite3
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import Result

from gateway.access.pairing import WELCOME, offer_pairing
from gateway.operator.socket import serve_control
from hermes_state.admin import pairings
from hermes_state.admin.browsers import SignedInBrowser
from hermes_state.admin.browsers import add as add_browser
from hermes_state.admin.pairings import UserRole
from hermes_state.engines import opening
from hermes_state.engines.sqlite.migrate import APPLICATION_ID
from hermes_state.errors import CommandError, ConfigError, LockUnavailable
from hermes_state.store.lock import FileLock
from hermes_state.values import ChatKey, ChatKind, InboundMessage, Millis, Sender, SystemClock
from tests.databases import about_files, open_store
from tests.fakes import fake_discord, fake_llm, fake_telegram
from tests.fakes.labkit import Server
from tests.fakes.object_store import SECRET, object_store
from tests.gateway.command_line import answering, make_database, stored
from tests.gateway.helpers import Run

TELEGRAM_TOKEN = "123456:LABTOKEN"
DISCORD_TOKEN = "lab-discord-token"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def made_home(home: Path) -> Path:
    home.mkdir(mode=0o700)
    return home


def spawned(environ: Mapping[str, str], *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as a process, with the exit code and standard error that a shell sees."""
    command = [sys.executable, "-m", "gateway", *words]
    return subprocess.run(
        command, env=dict(environ), input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


async def threaded(run: Run, *words: str, **variables: str) -> Result:
    """Run a command in a thread, next to the fake servers of this loop."""
    return await asyncio.to_thread(run, *words, **variables)


# -- as a process --------------------------------------------------------------------------------------------------


def test_a_configuration_error_exits_78_with_the_reason_and_no_traceback(environ: dict[str, str], home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").write_text("telegram: {tokn: x}")
    for words in (("run",), ("config", "check"), ("config", "show")):
        done = spawned(environ, *words)
        assert done.returncode == 78, words
        assert "telegram.token" in done.stderr
        assert "Traceback" not in done.stderr
    assert os.listdir(home) == ["config.yaml"]


def test_a_refused_configuration_still_shows_its_warnings(environ: dict[str, str], home: Path) -> None:
    for words in (("run",), ("config", "check")):
        done = spawned({**environ, "HERMES_LOCAL__PORT": "99999", "HERMES_NONSENSE": "1"}, *words)
        assert done.returncode == 78
        assert "warning: HERMES_NONSENSE" in done.stderr
        assert "configuration: HERMES_LOCAL__PORT" in done.stderr


def test_unwritable_attachments_are_reported_in_one_sentence_before_anything_is_created(
    environ: dict[str, str], home: Path
) -> None:
    with object_store() as store:
        options = {**store.options, "access_key_id": "S0MEBODY"}
        environ |= {"HERMES_ATTACHMENTS__URL": store.url, "HERMES_ATTACHMENTS__OPTIONS": json.dumps(options)}
        done, shown, checked = (spawned(environ, *words) for words in (("run",), ("config", "show"), ("doctor",)))
    assert done.returncode == 78
    assert f"do not let the gateway write, read and delete files in {store.url}" in done.stderr
    assert "XX  attachments  attachments.options: these keys" in checked.stdout
    assert "access_key_id" in spawned(environ, "config", "show", "--json").stdout
    for process in (done, shown, checked):
        assert not any(word in process.stdout + process.stderr for word in ("S0MEBODY", SECRET, "Traceback"))
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow_http": "maybe"}, "maybe"),
        ({"aws_allow_http": "maybe"}, "maybe"),
        ({"timeout": "soon"}, "soon"),
        ({"proxy_url": "::bad"}, "builder error"),
        ({"no_such_option": "x"}, "no_such_option"),
        ({"endpoint": "not an address"}, "an option is unknown or has an invalid value"),
        ({"endpoint": ""}, "an option is unknown or has an invalid value"),
        ({"endpoint": "ftp://127.0.0.1"}, "is not a valid address"),
        ({"token": "two\nlines"}, "an option is unknown or has an invalid value"),
    ],
    ids=str,
)
def test_an_invalid_object_store_option_exits_78(
    environ: dict[str, str], home: Path, options: dict[str, str], words: str
) -> None:
    keys = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b", "region": "c"}
    environ |= {"HERMES_ATTACHMENTS__URL": "s3://boats"}
    done = spawned({**environ, "HERMES_ATTACHMENTS__OPTIONS": json.dumps(keys | options)}, "run")
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hermes-gateway: configuration: attachments")
    assert words in last
    assert not home.exists()


def test_http_client_options_are_accepted(environ: dict[str, str]) -> None:
    with object_store() as store:
        options = {**store.options, "allow_http": "true", "aws_timeout": "20s"}
        environ |= {"HERMES_ATTACHMENTS__URL": store.url, "HERMES_ATTACHMENTS__OPTIONS": json.dumps(options)}
        done = spawned(environ, "doctor")
    assert "ok  attachments" in done.stdout


@pytest.mark.parametrize(
    ("file", "variables"),
    [
        (b"model:\0 x", {}),
        (b"", {"HERMES_MODEL__NAME": "m\udcff"}),
        (b"", {"HERMES_MCP__SERVERS": '{"a": {"command": "x\\ud800"}}'}),
        (b'model: {name: "m\\ud800"}', {}),
    ],
    ids=["a NUL", "bytes that are no text", "half a character in JSON", "half a character in YAML"],
)
def test_invalid_characters_in_the_configuration_exit_78(
    environ: dict[str, str], home: Path, file: bytes, variables: dict[str, str]
) -> None:
    home.mkdir()
    (home / "config.yaml").write_bytes(file)
    done = spawned({**environ, **variables}, "run")
    assert done.returncode == 78
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("hermes-gateway: configuration: ")


def test_a_wrong_command_line_is_not_a_configuration_error(environ: dict[str, str]) -> None:
    assert spawned(environ, "rnu").returncode == 2


def test_the_command_line_starts_without_importing_heavy_packages() -> None:
    """The SDKs take a second to import. Logging and the agent take as long as everything else together."""
    sdks = {"openai", "anthropic", "httpx2", "httpx", "telegram", "discord", "aiohttp", "apscheduler"}
    heavy = sdks | {"structlog", "rich", "gateway.daemon", "gateway.operator.doctor", "agent", "pydantic", "asyncio"}
    code = "import gateway.cli, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "gateway.cli" in loaded
    assert loaded & heavy == set()


def test_a_database_file_is_not_a_cluster(run: Run) -> None:
    said = run("cluster", "status")
    assert said.exit_code == 0
    assert "only one gateway can use it" in said.output
    assert json.loads(run("cluster", "status", "--json").output) == {"is_shared": False}


def test_a_worker_without_a_shared_database_is_a_configuration_error(environ: dict[str, str]) -> None:
    done = spawned(environ, "run", "--role", "worker")
    assert done.returncode == 78
    assert "cluster.role is worker, but store.url is not set" in done.stderr


# -- config --------------------------------------------------------------------------------------------------------


def test_config_check_names_the_served_platforms(run: Run, home: Path) -> None:
    done = run("config", "check", HERMES_TELEGRAM__TOKEN=TELEGRAM_TOKEN, HERMES_NONSENSE="1")
    assert done.exit_code == 0
    assert "warning: HERMES_NONSENSE" in done.output
    assert "Telegram" in done.output
    assert TELEGRAM_TOKEN not in done.output
    assert not home.exists()


def test_config_check_prints_json(run: Run) -> None:
    assert json.loads(run("config", "check", "--json").output)["ok"] is True
    done = run("config", "check", "--json", HERMES_LOCAL__PORT="99999", HERMES_NONSENSE="1")
    assert done.exit_code == 78
    assert json.loads(done.output)["ok"] is False
    assert "local.port" in json.loads(done.output)["errors"][0]
    assert "HERMES_NONSENSE" in json.loads(done.output)["warnings"][0]


def test_config_show_masks_secrets_and_names_sources(run: Run) -> None:
    variables = {"HERMES_TELEGRAM__TOKEN": TELEGRAM_TOKEN, "OPENAI_API_KEY": "sk-secret", "HERMES_MODEL__NAME": "gpt-5"}
    shown = run("config", "show", "--json", **variables).output
    assert TELEGRAM_TOKEN not in shown
    assert "sk-secret" not in shown
    settings = json.loads(shown)["settings"]
    assert settings["telegram.token"] == {"value": "[redacted]", "source": "HERMES_TELEGRAM__TOKEN"}
    assert settings["model.api_key"] == {"value": "[redacted]", "source": "OPENAI_API_KEY"}
    assert settings["model.protocol"] == {"value": "chat_completions", "source": "default"}
    assert settings["discord.token"] == {"value": None, "source": "default"}
    size = settings["model.context_length"]
    assert (size["value"], "built-in list" in size["source"]) == (400_000, True)
    text = run("config", "show", **variables).output
    assert "HERMES_MODEL__NAME" in text
    assert TELEGRAM_TOKEN not in text


def test_config_show_lists_the_names_in_a_block(run: Run) -> None:
    aliases = {"fast": "small", "claude": {"name": "claude-x", "protocol": "anthropic", "api_key": "sk-secret"}}
    models = {"HERMES_MODEL__NAME": "m", "HERMES_MODEL__ALIASES": json.dumps(aliases)}
    fallbacks = {"HERMES_MODEL__FALLBACKS": json.dumps(["fast", {"name": "spare", "api_key": "sk-secret"}])}
    shown = {line.split()[0]: line for line in run("config", "show", **models, **fallbacks).output.splitlines() if line}
    assert " fast, claude  " in shown["model.aliases"]
    assert " fast, spare  " in shown["model.fallbacks"]
    assert " -  " in shown["costs.prices"]


@pytest.mark.parametrize("password", ["a", 'its"own<word>', "it's"])
def test_any_password_in_the_database_address_is_masked(run: Run, password: str) -> None:
    url = f"postgresql://hermes:{password}@db/hermes?sslpassword={password}"
    for words in (("config", "show"), ("config", "show", "--json")):
        assert f":{password}@" not in run(*words, HERMES_STORE__URL=url).output
    shown = json.loads(run("config", "show", "--json", HERMES_STORE__URL=url).output)["settings"]["store.url"]
    assert shown["value"] == "postgresql://hermes:[redacted]@db/hermes?sslpassword=[redacted]"


def test_a_password_in_the_model_address_is_masked(run: Run) -> None:
    address = {"HERMES_MODEL__NAME": "m", "HERMES_MODEL__BASE_URL": "https://me:geheim@example.org/v1"}
    assert "geheim" not in run("config", "show", "--json", **address).output
    assert "geheim" not in str(
        run("config", "show", **{**address, "HERMES_MODEL__BASE_URL": "ftp://me:geheim@h"}).exception
    )


def test_config_keys_lists_every_setting(run: Run) -> None:
    rows = json.loads(run("config", "keys", "--format", "json").output)
    assert {"local.port", "model.name", "sessions.busy_mode"} <= {row["key"] for row in rows}
    assert all(row["text"] for row in rows)


# -- status, pair, url ---------------------------------------------------------------------------------------------


def test_status_of_a_gateway_that_never_ran(run: Run, home: Path) -> None:
    done = run("status", "--json")
    assert (done.exit_code, json.loads(done.output)) == (3, {"running": False, "home": str(home)})
    assert not home.exists()


async def test_status_of_a_stopped_gateway_counts_its_stored_messages(run: Run, home: Path) -> None:
    await make_database(home)
    done = await threaded(run, "status", "--json")
    assert (done.exit_code, json.loads(done.output)["database"]["messages"]) == (3, 0)
    said = (await threaded(run, "status")).output
    assert re.search(r"^Database: +\d.* MB, schema version \d+\n +0 chats, 0 conv", said, re.MULTILINE), said


def test_a_watched_status_continues_while_a_daemon_starts(
    run: Run, made_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, pauses = FileLock.acquire(made_home / "state.db.lock", what="the database"), iter((False, True))

    def sleep(_seconds: float) -> None:
        lock.release()
        if next(pauses):
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with lock:
        assert isinstance(run("status", HERMES_STORE__URL="").exception, LockUnavailable)
        done = run("status", "--watch", HERMES_STORE__URL="")
    assert done.exit_code == 3
    first, last = re.findall(r"^Gateway: +(.*)$", done.output, re.MULTILINE)
    assert re.match(rf"starting or busy: .*state\.db is in use by process {os.getpid()} ", first)
    assert last.startswith("not running")


async def test_status_asks_the_running_daemon(run: Run, made_home: Path) -> None:
    status = {
        "model": "offline",
        "protocol": "offline",
        "platforms": {"local": {"state": "running", "detail": ""}},
        "started_at": 0,
    }
    async with serve_control(made_home / "control.sock", {"status": answering(status)}):
        done = await threaded(run, "status")
    assert done.exit_code == 0
    assert re.search(r"^Gateway: +running for ", done.output)
    assert re.search(r"^Platforms: +local: connected$", done.output, re.MULTILINE)
    assert re.search(r"^Model: +built-in offline model$", done.output, re.MULTILINE)


async def test_a_running_daemon_is_asked_even_if_the_configuration_file_became_invalid(
    run: Run, made_home: Path
) -> None:
    answer = answering({"url": "http://127.0.0.1:1/", "user": "telegram:42", "name": "Ada", "role": "user"})
    (made_home / "config.yaml").write_text("local: {prot: 1}")
    handlers = dict.fromkeys(("status", "local.url", "pair.approve", "pair.revoke"), answer)
    commands = (("status",), ("url",), ("pair", "list"), ("pair", "approve", "K7QM4XPA"), ("pair", "revoke", "x"))
    async with serve_control(made_home / "control.sock", {**handlers, "pair.list": answering([])}):
        for words in commands:
            assert (await threaded(run, *words)).exit_code == 0, words


async def test_signed_in_browsers_are_listed_and_signed_out(run: Run, made_home: Path) -> None:
    asked: list[Mapping[str, Any]] = []

    browsers = answering([{"id": "0a1b2c3d", "person": "Ann", "since": "2026-11-22 14:00 UTC", "agent": "Firefox"}])

    async def revoke(args: Mapping[str, Any]) -> Any:
        asked.append(args)
        return {"signed_out": 0 if args.get("id") == "00000000" else 1}

    async with serve_control(made_home / "control.sock", {"local.browsers": browsers, "local.revoke": revoke}):
        assert "0a1b2c3d  Ann     2026-11-22 14:00 UTC  Firefox" in (await threaded(run, "url", "--list")).output
        assert "1 browser" in (await threaded(run, "url", "--revoke")).output
        assert "1 browser" in (await threaded(run, "url", "--revoke", "0a1b2c3d")).output
        unknown = await threaded(run, "url", "--revoke", "00000000")
    assert (unknown.exit_code, asked) == (1, [{}, {"id": "0a1b2c3d"}, {"id": "00000000"}])


async def test_browsers_are_listed_and_signed_out_while_no_daemon_runs(run: Run, home: Path) -> None:
    assert "No browser is signed in." in (await threaded(run, "url", "--list")).output
    browser = SignedInBrowser(digest="0a1b2c3d" * 8, agent="Firefox", created_at=SystemClock().now())
    await stored(home, add_browser, browser, 20)
    assert "0a1b2c3d" in (await threaded(run, "url", "--list")).output
    assert (await threaded(run, "url", "--revoke", "00000000")).exit_code == 1
    assert "1 browser" in (await threaded(run, "url", "--revoke", "0a1b2c3d")).output
    assert json.loads((await threaded(run, "url", "--list", "--json")).output) == []
    assert "The gateway is not running" in str((await threaded(run, "url")).exception)


OLD_SUMS = {"cost_usd": 1.5, "calls": 3, "failed_calls": 0, "estimated_calls": 0, "unpriced_calls": 0}
OLD_USAGE = {
    **{"scope": "gateway", "chat": None, "session": None, **OLD_SUMS, "by_purpose": {"turn": OLD_SUMS}, "caps": []},
    **{"compressions": None, "reported_prompt_tokens": None, "today_since": 0, "chat_today": None, "today": OLD_SUMS},
}
"""Answer of the version in which reports did not cross the socket field by field."""


async def test_a_usage_report_of_another_version_is_an_error_not_zero_cost(run: Run, made_home: Path) -> None:
    async with serve_control(made_home / "control.sock", {"usage": answering(OLD_USAGE)}):
        done = await threaded(run, "usage")
    assert done.exit_code == 1
    assert "different version from this command. Restart" in str(done.exception)


def test_status_works_when_a_failed_start_left_a_database_without_tables(run: Run, made_home: Path) -> None:
    leave_an_empty_database(made_home / "state.db")
    done = run("status", "--json")
    assert done.exit_code == 3
    assert "database" not in json.loads(done.output)
    assert json.loads(run("pair", "list", "--json").output) == []


def leave_an_empty_database(path: Path) -> None:
    """Leave the file that a first start on a full disk leaves: it is ours, but has no tables."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


@about_files
async def test_a_database_held_by_another_process_is_not_opened(run: Run, home: Path) -> None:
    store = await open_store(home / "state.db")
    try:
        for words in (("status",), ("pair", "list")):
            done = await threaded(run, *words)
            assert done.exit_code != 0
            assert f"process {os.getpid()}" in str(done.exception)
    finally:
        await store.close()


async def test_pairings_are_listed_while_no_daemon_runs(run: Run, home: Path) -> None:
    person = Sender(platform="telegram", id="42", name="Ada")
    await stored(home, pairings.offer, person, pairings.new_code(), 60_000, 10, SystemClock().now())
    rows = json.loads((await threaded(run, "pair", "list", "--json")).output)
    assert [(row["user"], row["name"], row["state"]) for row in rows] == [("telegram:42", "Ada", "pending")]
    text = (await threaded(run, "pair", "list")).output
    assert "telegram:42" in text
    assert "Ada" in text


async def test_a_running_daemon_approves_and_revokes_pairings(run: Run, made_home: Path) -> None:
    asked: list[Mapping[str, Any]] = []

    async def approve(args: Mapping[str, Any]) -> Any:
        asked.append(args)
        if args["code"] == "WRONG":
            raise CommandError("That code is not valid.")
        return {"user": "telegram:42", "name": "Ada", "role": args["role"], "state": "approved"}

    async def revoke(args: Mapping[str, Any]) -> Any:
        asked.append(args)
        return {"user": args["user"], "name": "Ada", "role": "user", "state": "revoked"}

    async with serve_control(made_home / "control.sock", {"pair.approve": approve, "pair.revoke": revoke}):
        done = await threaded(run, "pair", "approve", "K7QM4XPA", "--admin")
        assert "Ada (telegram:42) can now use the bot as admin." in done.output
        done = await threaded(run, "pair", "revoke", "telegram:42", "--json")
        assert json.loads(done.output)["state"] == "revoked"
        done = await threaded(run, "pair", "approve", "WRONG")
        assert done.exit_code != 0
        assert "not valid" in str(done.exception)
    assert [dict(args) for args in asked[:2]] == [{"code": "K7QM4XPA", "role": "admin"}, {"user": "telegram:42"}]


async def test_pairing_works_without_a_daemon_and_the_person_gets_a_message_at_the_next_start(
    run: Run, home: Path
) -> None:
    code = "K7QM4XPA"
    chat = ChatKey(platform="telegram", account="telegram", chat_ref="42")
    message = InboundMessage(
        event_ref="7:1",
        chat=chat,
        chat_kind=ChatKind.DIRECT,
        sender=Sender(platform="telegram", id="42", name="Ada"),
        text="let me in",
        message_ref="1",
        sent_at=Millis(0),
        is_addressed=True,
    )
    await stored(home, offer_pairing, message, code, None, SystemClock().now())
    done = await threaded(run, "pair", "approve", code)
    assert "Ada (telegram:42) can now use the bot as user." in done.output
    done = await threaded(run, "pair", "approve", code)
    assert "not valid" in str(done.exception)
    owed = await stored(home, lambda db: db.execute("SELECT payload FROM outbox ORDER BY id").fetchall())
    assert [WELCOME[UserRole.USER] in payload for (payload,) in owed] == [False, True]
    done = await threaded(run, "pair", "revoke", "telegram:42")
    assert "no longer has access" in done.output


@pytest.mark.parametrize(
    "words",
    [
        *(("pair", "list"), ("pair", "approve", "K7QM4XPA"), ("pair", "revoke", "telegram:42"), ("status",)),
        *(("sessions",), ("lineage",), ("search", "word"), ("history", "m1"), ("usage",), ("insights",)),
        *(("store", "copy", "--to", "copy.db"), ("backup", "copy.db"), ("doctor", "--repair"), ("cluster", "status")),
        ("trajectories", "export", "out.jsonl"),
    ],
    ids=" ".join,
)
async def test_a_mistyped_database_address_never_falls_back_to_the_file(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opening.open_store(home / "state.db"):
        pass
    before = (home / "state.db").read_bytes()
    slip = {"HERMES_STORE__URL": "postgresq://hermes@db/hermes"}
    done = await threaded(run, *words, **slip)
    assert isinstance(done.exception, ConfigError), done.output
    assert "store.url: must be an address" in str(done.exception)
    assert (done.output, (home / "state.db").read_bytes(), os.listdir(tmp_path)) == ("", before, ["home"])
    assert "XX  config" in (await threaded(run, "doctor", **slip)).output


def test_pairing_without_a_daemon_and_a_database_says_so(environ: dict[str, str]) -> None:
    done = spawned(environ, "pair", "approve", "K7QM4XPA")
    assert done.returncode == 1
    assert "The gateway is not running" in done.stderr


# -- init ----------------------------------------------------------------------------------------------------------


def modes(home: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("config.yaml", ".env")}


def content(path: Path) -> str | None:
    """Return the text of a file, None if it does not exist."""
    return path.read_text() if path.exists() else None


def test_init_without_a_terminal_and_options_says_what_it_needs(environ: dict[str, str], home: Path) -> None:
    done = spawned(environ, "init")
    assert done.returncode == 1
    assert "needs a terminal" in done.stderr
    assert not home.exists()


async def test_init_tests_the_answers_and_writes_private_files(run: Run, home: Path) -> None:
    async with (
        Server(fake_telegram.make_app(token=TELEGRAM_TOKEN)) as telegram,
        Server(fake_discord.make_app(token=DISCORD_TOKEN)) as discord,
        Server(fake_llm.make_app()) as llm,
    ):
        done = await threaded(
            run,
            *("init", "--telegram-token", TELEGRAM_TOKEN, "--discord-token", DISCORD_TOKEN),
            *("--model-name", "lab-model", "--model-base-url", f"{llm.url}/v1", "--model-key", "sk-lab'key"),
            *("--admin", "telegram:42"),
            HERMES_TELEGRAM__BASE_URL=telegram.url,
            HERMES_DISCORD__API_URL=discord.url,
        )
        assert done.exit_code == 0, done.output
        assert "lab_gateway_bot" in done.output
    assert (modes(home), stat.S_IMODE(os.stat(home).st_mode)) == ({"config.yaml": 0o600, ".env": 0o600}, 0o700)
    for secret in (TELEGRAM_TOKEN, DISCORD_TOKEN, "sk-lab"):
        assert secret not in (content(home / "config.yaml") or secret)
        assert secret not in done.output
    settings = json.loads(run("config", "show", "--json").output)["settings"]
    assert (settings["model.name"]["value"], settings["access.admins"]["value"]) == ("lab-model", ["telegram:42"])
    assert settings["model.api_key"]["source"].endswith(".env: HERMES_MODEL__API_KEY")


async def test_init_writes_nothing_when_a_token_is_refused(run: Run, home: Path) -> None:
    async with Server(fake_telegram.make_app(token=TELEGRAM_TOKEN)) as telegram:
        done = await threaded(run, "init", "--telegram-token", "999:WRONG", HERMES_TELEGRAM__BASE_URL=telegram.url)
    assert done.exit_code != 0
    assert "rejected this token" in str(done.exception)
    assert content(home) is None


async def test_init_uses_the_given_protocol_to_test_the_model(run: Run, home: Path) -> None:
    async with Server(fake_llm.make_app()) as llm:
        model = ("--model-name", "claude-lab", "--model-protocol", "anthropic", "--model-base-url", llm.url)
        done = await threaded(run, "init", *model)
    assert done.exit_code == 0, done.exception
    assert f"answers at {llm.url}/v1" in done.output
    assert json.loads(run("config", "show", "--json").output)["settings"]["model.protocol"]["value"] == "anthropic"


def test_init_names_the_missing_package_of_a_protocol(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.init.missing_extra", lambda protocol: f"{protocol} needs more")
    done = run("init", "--model-name", "claude-lab", "--model-protocol", "anthropic", "--no-test")
    assert done.exit_code == 0, done.exception
    assert "Anthropic needs more." in done.output


async def test_init_tests_a_key_without_a_model_name(run: Run, home: Path) -> None:
    async with Server(fake_llm.make_app()) as llm:
        done = await threaded(run, "init", "--model-base-url", f"{llm.url}/v1", "--model-key", "sk-lab")
    assert done.exit_code == 0
    assert "answers at" in done.output


def test_init_checks_the_answers_as_run_would(run: Run, home: Path) -> None:
    assert "access.admins: '@alice' is not an id" in str(run("init", "--admin", "@alice", "--no-test").exception)
    assert not home.exists()


def test_init_replaces_a_configuration_only_with_force_and_keeps_a_copy(run: Run, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("sessions: {merge_seconds: 7}\n")
    assert "config.yaml exists. Use --force" in str(run("init", "--model-name", "m", "--no-test").exception)
    assert (home / "config.yaml").read_text() == "sessions: {merge_seconds: 7}\n"
    assert run("init", "--model-name", "m", "--no-test", "--force").exit_code == 0
    assert "name: m" in (home / "config.yaml").read_text()
    assert (home / "config.yaml.bak").read_text() == "sessions: {merge_seconds: 7}\n"


def test_init_leaves_another_programs_directory_alone(run: Run, home: Path) -> None:
    home.mkdir()
    (home / "state.db").write_bytes(b"somebody else's")
    assert "state.db" in str(run("init", "--model-name", "m", "--no-test", "--force").exception)
    assert os.listdir(home) == ["state.db"]


def test_init_asks_at_a_terminal_and_does_not_echo_secrets(environ: dict[str, str], home: Path) -> None:
    answers = {
        "Telegram bot token": TELEGRAM_TOKEN,
        "Discord bot token": "",
        "Model name": "lab-model",
        "API type": "anthropic",
        "Base URL of the API": "http://127.0.0.1:9/v1",
        "API key": "sk-typed-by-hand",
        "Your user id": "telegram:42",
    }
    shown = at_a_terminal(environ, ["init", "--no-test"], answers)
    command = re.search(r"Start with: (.+?)\r", shown)
    assert command is not None
    started = subprocess.run(["sh", "-c", f"{command[1]} --help"], capture_output=True, text=True, check=False)
    assert "gateway run [OPTIONS]" in started.stdout, "the command works where it was typed"
    assert TELEGRAM_TOKEN not in shown
    assert "sk-typed-by-hand" not in shown
    assert modes(home) == {"config.yaml": 0o600, ".env": 0o600}
    assert "sk-typed-by-hand" in (home / ".env").read_text()
    assert "lab-model" in (home / "config.yaml").read_text()
    assert "protocol: anthropic" in (home / "config.yaml").read_text()


def test_init_repeats_only_the_question_with_a_wrong_answer(environ: dict[str, str], home: Path) -> None:
    answers = {
        "Telegram bot token": TELEGRAM_TOKEN,
        "Discord bot token": "",
        "Model name": "lab-model",
        "API type": "antropic",
        "must be one of": "",
        "Base URL of the API": "localhost",
        "must be an address": "http://127.0.0.1:9/v1",
        "API key": "",
        "Your user id": "Ada",
        "is not an id": "telegram:42",
    }
    assert "Start with: " in at_a_terminal(environ, ["init", "--no-test"], answers)
    config = (home / "config.yaml").read_text()
    assert "http://127.0.0.1:9/v1" in config
    assert "protocol" not in config
    assert "telegram:42" in config


@pytest.mark.parametrize("takes_calls", [True, False], ids=["works", "unknown"])
async def test_init_without_a_terminal_writes_an_unlisted_model_only_if_it_answers_calls(
    run: Run, home: Path, takes_calls: bool
) -> None:
    async with Server(fake_llm.make_app()) as llm:
        if not takes_calls:
            await llm_refuses(llm.url, "lab-unlisted")
        model = ("--model-name", "lab-unlisted", "--model-base-url", f"{llm.url}/v1")
        done = await threaded(run, "init", *model)
    if takes_calls:
        assert "does not list lab-unlisted, but accepts calls" in done.output
    else:
        assert "does not list lab-unlisted. It lists lab-" in str(done.exception)
        assert "Nothing was written" in str(done.exception)
    assert (home / "config.yaml").exists() is takes_calls


async def llm_refuses(url: str, model: str) -> None:
    """Let the fake model's server refuse calls for one name."""
    error = {"status": 404, "body": {"error": {"message": f"The model `{model}` does not exist"}}}
    async with aiohttp.ClientSession() as session:
        await session.post(f"{url}/_ctl/script", json=[{"model": model, "error": error}])


def at_a_terminal(environ: Mapping[str, str], words: list[str], answers: Mapping[str, str]) -> str:
    """Run a command in a terminal, and answer each question as it appears.

    Secrets are answered only once the echo is off, because the prompt discards earlier input.
    """
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", *words]
    child = subprocess.Popen(
        command, env={**environ, "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown, waiting = "", list(answers)
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.02)[0]:
                try:
                    shown += os.read(terminal, 65_536).decode(errors="replace")
                except OSError:  # Linux reports the other side's end so
                    break
            elif waiting and waiting[0] in shown and _is_ready(terminal, is_secret=waiting[0].startswith(SECRETS)):
                os.write(terminal, answers[waiting.pop(0)].encode() + b"\n")
    finally:
        os.close(terminal)
        child.kill()
        child.wait()
    assert waiting == [], shown
    return shown


SECRETS = ("Telegram bot token", "Discord bot token", "API k")
"""First words of the questions whose answers are not shown."""


def _is_ready(terminal: int, *, is_secret: bool) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO) is not is_secret


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "model.api_key is not set, so api.openai.com is called without a key"),
        ({"HERMES_MODEL__PROTOCOL": "anthropic"}, "model.api_key is not set, so api.anthropic.com is called without"),
        ({"HERMES_MODEL__BASE_URL": "https://openrouter.ai/api/v1"}, "model.api_key is not set, so openrouter.ai is"),
        (
            {"OPENAI_API_KEY": "sk-x", "HERMES_MODEL__FALLBACKS": '[{"name": "c", "protocol": "anthropic"}]'},
            "api_key of the model c is not set, so api.anthropic.com",
        ),
        (
            {
                "OPENAI_API_KEY": "sk-x",
                "HERMES_AGENTS": '{"ops": {"model": {"name": "c", "protocol": "anthropic"}}}',
                "HERMES_ROUTES": '[{"agent": "ops"}]',
            },
            "agents.ops.model.api_key is not set, so api.anthropic.com is called without a key",
        ),
        (
            {
                "OPENAI_API_KEY": "sk-x",
                "HERMES_AGENTS": '{"ops": {"model": {"name": "odd"}, "costs": {"daily_cap": 1}}}',
                "HERMES_ROUTES": '[{"agent": "ops"}]',
            },
            "these models without a known price are not called: `odd`",
        ),
        (
            {"OPENAI_API_KEY": "sk-x", "HERMES_TOOLS__USE": '{"terminl": "off", "*": "on", "web__get": "off"}'},
            "tools.use: there is no built-in tool terminl; did you mean terminal?",
        ),
        ({"OPENAI_API_KEY": "sk-x"}, None),
        ({"HERMES_MODEL__BASE_URL": "http://192.168.0.7:11434/v1"}, None),
        ({"HERMES_MODEL__BASE_URL": "https://llm.lan/v1"}, None),
        ({"HERMES_MODEL__EXTRA_HEADERS": '{"api-key": "sesame-sesame"}'}, None),
    ],
)
def test_config_check_warns_of_a_missing_key_price_or_tool(
    run: Run, variables: dict[str, str], words: str | None
) -> None:
    done = run("config", "check", HERMES_MODEL__NAME="gpt-4.1", **variables)
    assert done.exit_code == 0
    assert ("warning: " in done.output) is (words is not None)
    assert (words or "The configuration is valid. ") in done.output
    assert "sesame" not in run("config", "show", "--json", HERMES_MODEL__NAME="gpt-4.1", **variables).output
