"""hermes-agent as a bot to compare with, in its default settings except for features that our bot disables too.

`BENCH_PEER=/path/to/python` is an interpreter of a separate virtual environment with `pip install
'hermes-agent[messaging]==0.19.0'`.
"""

import json
import os
from pathlib import Path

from bench.measure import PEER
from bench.subjects import TOKEN, Lab, Subject

PEER_NAME = "hermes-agent 0.19.0"
MISSING = (
    f"{PEER} names no interpreter with {PEER_NAME}: the comparison with it is left out.\n"
    "python3 -m venv peer && peer/bin/pip install 'hermes-agent[messaging]==0.19.0' makes one; "
    f"then {PEER}=$PWD/peer/bin/python\n"
)


def peer(interpreter: str, here: Lab, model_url: str, folder: Path) -> Subject:
    """Return hermes-agent's gateway as a child process, with its state in `folder`."""
    home = folder / "home"
    home.mkdir()
    (home / "config.yaml").write_text(json.dumps(_config(here, model_url)))  # valid YAML
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HERMES_HOME": str(home),
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "TELEGRAM_HOME_CHANNEL": "1",  # otherwise it tells every chat that no home channel is set
        "GATEWAY_ALLOW_ALL_USERS": "true",
        "HERMES_TELEGRAM_DISABLE_FALLBACK_IPS": "1",
        "HERMES_TELEGRAM_TEXT_BATCH_DELAY_SECONDS": "0.08",  # the minimum; our gateway merges no messages either
    }
    command = ["-m", "hermes_cli.main", "gateway", "run"]
    return Subject(PEER_NAME, command, environ, "Connecting to Telegram", python=interpreter, folder=folder)


def _config(here: Lab, model_url: str) -> dict[str, object]:
    telegram = {
        "base_url": f"{here.telegram.url}/bot",
        "base_file_url": f"{here.telegram.url}/file/bot",
        "fallback_ips": ["149.154.167.220"],  # unused, but without an address it asks the internet for some
    }
    return {
        "model": {
            "default": "lab-200k",
            "provider": "custom",
            "base_url": model_url,
            "api_key": "none",
            "context_length": 200_000,
        },
        "platforms": {"telegram": {"enabled": True, "token": TOKEN, "extra": telegram}},
        "auxiliary": {"title_generation": {"enabled": False}},
        "memory": {"nudge_interval": 0},
        "skills": {"creation_nudge_interval": 0},
    }
