"""Results of `doctor`, which changes nothing."""

import asyncio
import contextlib
import importlib.util
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import asdict

from agent.engines.loader import FOLDER
from agent.model.catalog import SizeSource
from agent.tools.terminal.sandbox import probe_sandbox
from gateway.models.routes import window_from
from gateway.operator.checks import CheckResult, CheckStatus, check_database, failed
from gateway.operator.doctor import run_checks
from gateway.operator.socket import serve_control
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.migrate import APPLICATION_ID
from hermes_state.store.lock import FileLock
from tests.agent.engines.test_loader import ENGINE
from tests.databases import IS_POSTGRES, about_files, open_store, sqlite_only, store_environ
from tests.fakes import fake_discord, fake_llm, fake_telegram
from tests.fakes.labkit import Server
from tests.gateway.command_line import answering, make_database, stored
from tests.hermes_state.search.test_full_text import say, start
from tests.sandboxes import needs_sandbox

TELEGRAM_TOKEN = "123456:LABTOKEN"


def findings(environ: Mapping[str, str], *, is_online: bool = False) -> dict[str, CheckResult]:
    """Return the findings by check: the worst one if a check has several."""
    environ = {**store_environ(Path(environ["HERMES_HOME"], "state.db")), **environ}
    order = list(CheckStatus)
    found: dict[str, CheckResult] = {}
    for finding in sorted(run_checks(environ, is_online=is_online), key=lambda one: order.index(one.verdict)):
        found[finding.check] = finding
    return found


async def examined(environ: Mapping[str, str], *, is_online: bool = False) -> dict[str, CheckResult]:
    return await asyncio.to_thread(findings, environ, is_online=is_online)


def test_a_fresh_machine_only_lacks_a_model(environ: dict[str, str], home: Path) -> None:
    found = findings(environ)
    assert {name for name, one in found.items() if one.verdict is CheckStatus.FAILED} == set()
    assert found["model"].verdict is CheckStatus.WARNING
    assert "offline" in found["model"].text
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("package", ["gateway", "other"])
def test_another_program_with_our_package_names_is_named(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    assert "packages" not in findings(environ)
    installed = tmp_path / "site" / "hermes_agent-0.19.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-agent\nVersion: 0.19.0\n")
    (installed / "top_level.txt").write_text(f"{package}\nhermes_cli\n")
    monkeypatch.syspath_prepend(installed.parent)
    if package == "other":
        assert "packages" not in findings(environ)
    else:
        found = findings(environ)["packages"]
        assert found.verdict is CheckStatus.WARNING
        assert "hermes-agent and hermes-gateway overwrite each other's packages" in found.text


def test_a_file_in_place_of_the_state_directory_is_not_called_missing(environ: dict[str, str], home: Path) -> None:
    home.rmdir()
    home.touch()
    found = findings(environ)
    assert "is not a directory" in found["config"].text
    assert "home" not in found


def test_an_unreadable_state_directory_is_one_finding(environ: dict[str, str]) -> None:
    found = findings({**environ, "HERMES_HOME": f"/{'x' * 300}"})
    assert "cannot be read" in found["config"].text
    assert "home" not in found


async def test_an_invalid_configuration_hides_neither_warnings_nor_the_running_daemon(
    environ: dict[str, str], home: Path
) -> None:
    (home / "config.yaml").write_text("sessions: {groups: both}")
    async with serve_control(home / "control.sock", {"doctor": answering([])}):
        found = await examined({**environ, "HERMES_NONSENSE": "1"})
    assert found["config"].verdict is CheckStatus.FAILED
    assert "HERMES_NONSENSE" in found["environment"].text
    assert found["daemon"].verdict is CheckStatus.FINE


async def test_a_daemon_of_another_version_is_a_finding(environ: dict[str, str], home: Path) -> None:
    async with serve_control(home / "control.sock", {"doctor": answering({"findings": []})}):
        found = await examined(environ)
    assert found["daemon"].verdict is CheckStatus.FAILED
    assert "Restart " in found["daemon"].text


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a file without tables"])
def test_an_empty_database_of_a_failed_start_is_not_called_broken(
    environ: dict[str, str], home: Path, left: str
) -> None:
    if left == "an empty file":
        (home / "state.db").touch()
    elif left == "a file without tables":
        with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    found = findings(environ)
    assert found["database"].verdict is CheckStatus.SKIPPED
    assert ("first start creates it" in found["database"].text) == (left == "nothing")


@pytest.mark.parametrize(("name", "mode"), [("", 0o755), (".env", 0o644), ("config.yaml", 0o640)])
def test_files_open_to_other_users_are_reported_with_a_fix(
    environ: dict[str, str], home: Path, name: str, mode: int
) -> None:
    path = home / name
    if name:
        path.write_text("")
    path.chmod(mode)
    found = findings(environ)
    assert found["home"].verdict is CheckStatus.WARNING
    assert f"{mode:04o}" in found["home"].text
    assert f"chmod {'0600' if name else '0700'} {path}" in found["home"].text


async def test_the_database_is_checked_while_no_daemon_runs(environ: dict[str, str], home: Path) -> None:
    await make_database(home)
    found = await examined(environ)
    assert found["database"].verdict is CheckStatus.FINE
    assert found["daemon"].verdict is CheckStatus.SKIPPED


@about_files
async def test_a_damaged_database_is_reported(environ: dict[str, str], home: Path) -> None:
    await make_database(home)
    damage(home / "state.db")
    assert (await examined(environ))["database"].verdict is CheckStatus.FAILED


def damage(path: Path) -> None:
    """Overwrite every page but the first two."""
    content = bytearray(path.read_bytes())
    content[8192:] = b"\x55" * (len(content) - 8192)
    path.write_bytes(bytes(content))


async def test_a_running_daemon_checks_its_own_database(environ: dict[str, str], home: Path) -> None:
    store = await open_store(home / "state.db")

    async def doctor(_args: Mapping[str, Any]) -> Any:
        return [await store.read(check_database)]

    try:
        async with serve_control(home / "control.sock", {"doctor": doctor}):
            found = await examined(environ)
    finally:
        await store.close()
    assert found["daemon"].verdict is CheckStatus.FINE
    assert found["database"].verdict is CheckStatus.FINE
    assert ("(UTF8)" if IS_POSTGRES else "sound") in found["database"].text


def test_a_process_that_has_the_database_and_does_not_answer_is_named(environ: dict[str, str], home: Path) -> None:
    with FileLock.acquire(home / "state.db.lock", what="the database"):
        found = findings(environ)
    assert found["daemon"].verdict is CheckStatus.FAILED
    assert str(os.getpid()) in found["daemon"].text
    assert "database" not in found


async def test_tokens_are_tested_only_with_online(environ: dict[str, str]) -> None:
    async with (
        Server(fake_telegram.make_app(token=TELEGRAM_TOKEN)) as telegram,
        Server(fake_discord.make_app()) as discord,
    ):
        variables = {
            **environ,
            "HERMES_TELEGRAM__TOKEN": TELEGRAM_TOKEN,
            "HERMES_TELEGRAM__BASE_URL": telegram.url,
            "HERMES_DISCORD__TOKEN": "lab",
            "HERMES_DISCORD__API_URL": discord.url,
        }
        offline = await examined(variables)
        assert offline["telegram"].verdict is offline["discord"].verdict is CheckStatus.SKIPPED
        online = await examined(variables, is_online=True)
        assert "lab_gateway_bot" in online["telegram"].text
        assert online["discord"].verdict is CheckStatus.FINE
        wrong = await examined({**variables, "HERMES_TELEGRAM__TOKEN": "1:WRONG"}, is_online=True)
        assert wrong["telegram"].verdict is CheckStatus.FAILED
        assert "1:WRONG" not in wrong["telegram"].text


async def asked(
    environ: Mapping[str, str], app: web.Application, name: str, path: str = "/v1"
) -> tuple[CheckResult, str]:
    """Return the finding about a model on this server, and the server's address."""
    async with Server(app) as server:
        variables = {**environ, "HERMES_MODEL__NAME": name, "HERMES_MODEL__BASE_URL": f"{server.url}{path}"}
        return (await examined(variables))["model"], server.url


async def test_the_models_server_is_asked(environ: dict[str, str]) -> None:
    async with Server(fake_llm.make_app()) as llm:
        variables = {**environ, "HERMES_MODEL__NAME": "lab-128k", "HERMES_MODEL__BASE_URL": f"{llm.url}/v1"}
        assert (await examined(variables))["model"].verdict is CheckStatus.FINE
    gone = (await examined(variables))["model"]
    assert gone.verdict is CheckStatus.FAILED
    assert "cannot be reached" in gone.text


async def test_every_configured_api_is_asked_once(environ: dict[str, str]) -> None:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer right":
            raise web.HTTPUnauthorized
        return web.json_response({"data": [{"id": "llama"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with Server(fake_llm.make_app()) as llm, Server(app) as other:
        aliases = {
            "fast": "lab-32k",
            "slow": "lab-33k",
            "home": {"name": "llama", "base_url": f"{other.url}/v1"},
            "wrong": {"name": "llama", "base_url": f"{other.url}/v1", "api_key": "not-this-one"},
            "same": {"name": "other", "base_url": f"{other.url}/v1", "api_key": "not-this-one"},
            "right": {"name": "llama", "base_url": f"{other.url}/v1", "api_key": "right"},
            "big": {"name": "lama-big", "base_url": f"{other.url}/v1", "api_key": "right"},
        }
        variables = {**environ, "HERMES_MODEL__NAME": "lab-128k", "HERMES_MODEL__BASE_URL": f"{llm.url}/v1"}
        variables["HERMES_MODEL__ALIASES"] = json.dumps(aliases)
        found = await asyncio.to_thread(lambda: list(run_checks(variables, is_online=False)))
    unlisted = "but does not list"
    assert [(one.verdict, one.text) for one in found if one.check == "route"] == [
        (
            CheckStatus.WARNING,
            f"lab-33k: The model's server answers at {llm.url}/v1, {unlisted} lab-33k; did you mean lab-32k or lab-8k "
            "or lab-4k?",
        ),
        (CheckStatus.WARNING, f"llama: The model's server at {other.url}/v1 requires a key (api_key)."),
        (CheckStatus.WARNING, f"llama: The model's server at {other.url}/v1 rejected the API key."),
        (CheckStatus.FINE, f"llama: The model's server answers at {other.url}/v1."),
        (
            CheckStatus.WARNING,
            f"lama-big: The model's server answers at {other.url}/v1, {unlisted} lama-big; did you mean llama?",
        ),
    ]


def listing(*names: str, root: str = "/v1", **more: Any) -> web.Application:
    """Make a server that lists models under `root`, and accepts calls there."""

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, **more} for name in names]})

    async def call(_request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "model is required"}}, status=400)

    app = web.Application()
    if names:
        app.router.add_get(f"{root}/models", models)
    app.router.add_post(f"{root}/chat/completions", call)
    return app


@pytest.mark.parametrize(
    ("name", "names", "words"),
    [
        ("llama3.1", ["another", "llama3.1:latest"], None),
        ("llama3.1:latest", ["another", "llama3.1"], None),
        ("qwen3:8b", ["another", "qwen3:8b"], None),
        ("openai/gpt-4o:nitro", ["another", "openai/gpt-4o"], None),
        ("claude-sonnet-4-5", ["another", "claude-sonnet-4-5-20250929"], None),
        ("claude-3-5-sonnet-latest", ["another", "claude-3-5-sonnet-20241022"], None),
        ("gemini-2.5-pro", ["another", "models/gemini-2.5-pro"], None),
        ("gpt-4o-mni", ["gpt-4o", "gpt-4o-mini"], "does not list gpt-4o-mni; did you mean gpt-4o-mini or gpt-4o?"),
        ("gpt-4o", ["openai/gpt-4o", "x/y"], "does not list gpt-4o; did you mean openai/gpt-4o?"),
        ("qwen3:32b", ["qwen3:8b"], "does not list qwen3:32b; did you mean qwen3:8b?"),
        ("llama3.1", ["zephyr"], "does not list llama3.1. It lists zephyr."),
    ],
)
async def test_a_model_must_be_listed_in_some_form(
    environ: dict[str, str], name: str, names: list[str], words: str | None
) -> None:
    found, _ = await asked(environ, listing(*names), name)
    assert found.verdict is (CheckStatus.FINE if words is None else CheckStatus.FAILED)
    assert (words or "answers at") in found.text


async def test_a_server_with_one_model_accepts_any_name(environ: dict[str, str]) -> None:
    found, _ = await asked(environ, listing("/models/some.gguf", owned_by="llamacpp"), "anything")
    assert found.verdict is CheckStatus.FINE


@pytest.mark.parametrize(
    ("root", "written"), [("/v1", ""), ("/api/v1", ""), ("/v1", "/v1/chat/completions"), ("/openai/v1", "/v1")]
)
async def test_an_address_without_its_path_fails_with_the_right_address(
    environ: dict[str, str], root: str, written: str
) -> None:
    found, url = await asked(environ, listing("m", root=root), "m", written)
    assert found.verdict is CheckStatus.FAILED
    assert f"did you mean {url}{root}?" in found.text


async def test_a_server_without_a_list_is_fine_if_it_accepts_calls(environ: dict[str, str]) -> None:
    found, url = await asked(environ, listing(), "m")
    no_list = f"The model's server answers at {url}/v1. It has no model list, so the name could not be checked."
    assert (found.verdict, found.text) == (CheckStatus.FINE, no_list)
    lost, _ = await asked(environ, listing(), "m", "")
    assert lost.verdict is CheckStatus.FAILED
    assert "base_url has no path" in lost.text


async def test_the_audio_models_are_asked_at_their_own_paths(environ: dict[str, str]) -> None:
    async def listen(_request: web.Request) -> web.Response:
        return web.json_response({"error": "no 'file' field in the request"}, status=400)

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", listen)
    async with Server(app) as audio:
        server = {"HERMES_TRANSCRIPTION__BASE_URL": f"{audio.url}/v1", "HERMES_TRANSCRIPTION__MODEL": "whisper"}
        variables = {**environ, **server, "HERMES_VOICE__MODEL": "tts@coral"}
        found = await asyncio.to_thread(lambda: list(run_checks(variables, is_online=False)))
    heard, spoken = [one for one in found if one.check == "audio"]
    assert (heard.verdict, spoken.verdict) == (CheckStatus.FINE, CheckStatus.WARNING)
    assert f"tts: No API was found at {audio.url}/v1/audio/speech" in spoken.text


@pytest.mark.parametrize("tail", ["", "/v1"])
async def test_an_anthropic_server_is_asked_in_its_own_way(environ: dict[str, str], tail: str) -> None:
    async with Server(fake_llm.make_app()) as llm:
        llm.app[fake_llm.LLM_KEY].config["api_key"] = "lab-key"
        variables = {**environ, "HERMES_MODEL__NAME": "lab-128k", "HERMES_MODEL__BASE_URL": f"{llm.url}{tail}"}
        variables |= {"HERMES_MODEL__PROTOCOL": "anthropic", "HERMES_MODEL__API_KEY": "lab-key"}
        found = await examined(variables)
    assert found["model"].verdict is CheckStatus.FINE
    assert found["model"].text == f"The model's server answers at {llm.url}/v1."
    assert "extra" not in found


async def test_a_missing_sdk_is_reported_with_the_install_command(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "anthropic" else find(name))
    variables = {**environ, "HERMES_MODEL__NAME": "m", "HERMES_MODEL__BASE_URL": "http://127.0.0.1:9"}
    assert "extra" not in await examined(variables)
    for variable in ("HERMES_MODEL__PROTOCOL", "HERMES_AUXILIARY__COMPRESSION__PROTOCOL"):
        named = {variable: "anthropic", "HERMES_AUXILIARY__COMPRESSION__MODEL": "small"}
        found = (await examined({**variables, **named}))["extra"]
        assert found.verdict is CheckStatus.FAILED
        assert "make anthropic" in found.text


async def test_a_probe_follows_no_redirect_with_its_key(environ: dict[str, str]) -> None:
    seen: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        raise web.HTTPFound("/elsewhere")

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", redirect)
    found, _ = await asked({**environ, "OPENAI_API_KEY": "sk-1"}, app, "m", "")
    assert found.verdict is CheckStatus.FAILED
    assert seen == ["/models"]


TOKEN = {"HERMES_TELEGRAM__TOKEN": TELEGRAM_TOKEN}
NOWHERE = {"HERMES_MODEL__BASE_URL": "http://127.0.0.1:9/v1"}
CAPPED = {"HERMES_MODEL__NAME": "gpt-5-mini", "HERMES_COSTS__DAILY_CAP": "1", **NOWHERE}
CLAUDE = {"HERMES_MODEL__NAME": "claude-haiku-4-5", "HERMES_MODEL__PROTOCOL": "anthropic", **NOWHERE}
WARM = {**CLAUDE, "HERMES_MODEL__TEMPERATURE": "0.2"}
SMALL = {"HERMES_MODEL__CONTEXT_LENGTH": "3000", "HERMES_AGENT__PERSONA": "You are patient. " * 100}


@pytest.mark.parametrize(
    ("variables", "check", "verdict", "words"),
    [
        ({"HERMES_TELEGRAM_TOKEN": "x"}, "environment", CheckStatus.WARNING, "HERMES_TELEGRAM__TOKEN"),
        (CAPPED, "costs", CheckStatus.FINE, "every configured model has a price."),
        (
            {**CAPPED, "HERMES_MODEL__FALLBACKS": "gpt-99-mini"},
            *("costs", CheckStatus.FINE, "Estimated from the model family: `gpt-99-mini`."),
        ),
        (TOKEN, "access", CheckStatus.FINE, ""),
        ({**TOKEN, "HERMES_ACCESS__ALLOW_ALL": "true"}, "access", CheckStatus.WARNING, ""),
        ({**TOKEN, "HERMES_PAIRING__ENABLED": "false"}, "access", CheckStatus.WARNING, "access.allow"),
        (
            {**WARM, "HERMES_AUXILIARY__COMPRESSION__REASONING_EFFORT": "low"},
            *("settings", CheckStatus.WARNING, "claude-haiku-4-5: `temperature` is not sent when reasoning is enabled"),
        ),
        (
            {**CLAUDE, "HERMES_MODEL__TEMPERATURE": "1.5"},
            *("settings", CheckStatus.WARNING, "a `temperature` of at most 1, so the gateway sends 1"),
        ),
        (
            {"HERMES_MODEL__PROTOCOL": "offline", "HERMES_MODEL__TEMPERATURE": "0.5"},
            *("settings", CheckStatus.WARNING, "The built-in offline model ignores all call settings"),
        ),
        ({}, "context", CheckStatus.FINE, "16,384 of 28,672"),
        ({}, "context", CheckStatus.FINE, f"32,768 tokens ({window_from(SizeSource.ASSUMED)})"),
        (SMALL, "context", CheckStatus.WARNING, "model.context_length"),
    ],
)
def test_settings_are_judged(
    environ: dict[str, str], variables: dict[str, str], check: str, verdict: CheckStatus, words: str
) -> None:
    found = findings({**environ, **variables})[check]
    assert found.verdict is verdict
    assert words in found.text


def test_settings_that_reach_every_model_are_not_mentioned(environ: dict[str, str]) -> None:
    assert "settings" not in findings({**environ, **WARM})


def user_unit(tmp_path: Path, text: str, name: str = "hermes-gateway.service") -> None:
    folder = tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)


def test_a_stop_timeout_below_the_drain_is_reported(environ: dict[str, str], tmp_path: Path) -> None:
    user_unit(tmp_path, "[Service]\nTimeoutStopSec=75\n")
    assert "TimeoutStopSec" not in findings(environ)["service"].text
    found = findings({**environ, "HERMES_LIFECYCLE__DRAIN_SECONDS": "120"})["service"]
    assert found.verdict is CheckStatus.WARNING
    assert "Raise TimeoutStopSec" in found.text


@pytest.mark.parametrize("name", ["hermes-gateway.service", "hermes-gateway@.service"])
def test_a_stop_timeout_in_a_drop_in_counts(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    user_unit(tmp_path, "[Service]\nTimeoutStopSec=75\n", name)
    long_drain = {**environ, "HERMES_LIFECYCLE__DRAIN_SECONDS": "120"}
    assert "Raise TimeoutStopSec" in findings(long_drain)["service"].text
    drop_ins = tmp_path / f".config/systemd/user/{name}.d"
    drop_ins.mkdir()
    (drop_ins / "override.conf").write_text("[Service]\nTimeoutStopSec=180\n")
    assert "TimeoutStopSec" not in findings(long_drain)["service"].text


def test_a_user_service_that_nothing_starts_is_reported(environ: dict[str, str], tmp_path: Path) -> None:
    user_unit(tmp_path, "[Service]\nTimeoutStopSec=75\n[Install]\nWantedBy=multi-user.target\n")
    found = findings(environ)["service"]
    assert found.verdict is CheckStatus.WARNING
    assert "WantedBy=default.target" in found.text


@pytest.mark.parametrize(("answer", "verdict"), [("no", CheckStatus.WARNING), ("yes", CheckStatus.FINE)])
def test_a_user_service_without_linger_is_reported(
    environ: dict[str, str], tmp_path: Path, answer: str, verdict: CheckStatus
) -> None:
    user_unit(tmp_path, "[Service]\nTimeoutStopSec=75\n")
    loginctl = tmp_path / "loginctl"
    loginctl.write_text(f"#!/bin/sh\necho {answer}\n")
    loginctl.chmod(0o755)
    found = findings({**environ, "PATH": f"{tmp_path}:{environ['PATH']}"})["service"]
    assert found.verdict is verdict
    assert ("enable-linger" in found.text) is (answer == "no")


async def test_doctor_changes_nothing(environ: dict[str, str], home: Path) -> None:
    await make_database(home)
    before = snapshot(home)
    await examined(environ)
    assert snapshot(home) == before


def snapshot(home: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in home.iterdir()
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_the_latest_compression_with_a_plugin_engine_is_reported(environ: dict[str, str]) -> None:
    folder = Path(environ["HERMES_HOME"]) / FOLDER / "sample"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(ENGINE)
    environ["HERMES_CONTEXT__ENGINE"] = "sample"
    fine = findings(environ)["context"]
    assert fine.verdict is CheckStatus.FINE
    assert "at 25,805 of 28,672 tokens at the latest, by the context engine sample" in fine.text


def test_the_models_and_context_of_every_agent_are_checked(environ: dict[str, str], home: Path) -> None:
    model = "{name: own, base_url: http://127.0.0.1:1/v1, context_length: 16384}"
    (home / "config.yaml").write_text(f"agents: {{ops: {{model: {model}, costs: {{daily_cap: 1}}}}}}\n")
    texts = [finding.text for finding in run_checks(environ, is_online=False)]
    assert any(text.startswith("Agent ops: Context window: 16,384 tokens") for text in texts)
    assert any("without a known price are not called: `own`" in text for text in texts)


def test_an_unknown_context_engine_is_reported(environ: dict[str, str]) -> None:
    environ["HERMES_CONTEXT__ENGINE"] = "compresor"
    texts = [finding.text for finding in run_checks(environ, is_online=False) if finding.verdict is CheckStatus.FAILED]
    assert len(texts) == 1
    assert "compressor" in texts[0]


@sqlite_only
async def test_the_search_index_is_checked_against_the_messages(environ: dict[str, str], home: Path) -> None:
    await stored(home, lambda db: say(db, start(db, "a"), "the door"))
    await stored(home, add_words)
    assert (await examined(environ))["search"].verdict is CheckStatus.FINE
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db, db:
        db.execute("DELETE FROM messages_fts_docsize")
    found = (await examined(environ))["search"]
    assert found.verdict is CheckStatus.WARNING
    assert "rebuilt" in found.text


@needs_sandbox
def test_an_enabled_terminal_is_reported_and_a_disabled_one_is_not(environ: dict[str, str]) -> None:
    assert "terminal" not in findings(environ)
    found = findings({**environ, "HERMES_TERMINAL__ENABLED": "true"})["terminal"]
    assert found.verdict is CheckStatus.FINE
    assert found.text.startswith("Commands run in a sandbox without network access. The ")


def test_a_terminal_without_a_sandbox_is_a_finding(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        found = findings({**environ, "HERMES_TERMINAL__ENABLED": "true"})["terminal"]
        assert found.verdict is CheckStatus.FAILED
        assert "apt install bubblewrap" in found.text
        unsafe = {"HERMES_TERMINAL__ENABLED": "true", "HERMES_TERMINAL__UNSAFE": "true"}
        found = findings({**environ, **unsafe})["terminal"]
        assert found.verdict is CheckStatus.WARNING
    finally:
        probe_sandbox.cache_clear()


@needs_sandbox
async def test_the_running_daemon_checks_its_own_terminal(environ: dict[str, str], home: Path) -> None:
    """The daemon's unit may forbid what the shell of `doctor` allows."""
    finding = asdict(failed("terminal", "no"))
    async with serve_control(home / "control.sock", {"doctor": answering([finding])}):
        found = await examined({**environ, "HERMES_TERMINAL__ENABLED": "true"})
    assert found["terminal"].text == "no"
