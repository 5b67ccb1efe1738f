"""`hermes-gateway plugins list`, as people and scripts use it."""

import json
from pathlib import Path

import pytest

from agent.context.compressor import Engine
from agent.context.model_handle import ModelInfo
from agent.engines.adapter import PluginEngine
from agent.engines.loader import FOLDER
from hermes_state.redaction import redact
from hermes_state.store.writer import Store
from hermes_state.values import SystemClock, Tokens
from tests.agent.engines.examples import KeepNewest
from tests.agent.engines.test_loader import ENGINE
from tests.gateway.helpers import BOSS, Run
from tests.gateway.models.windows import CountingModel, talking


def put(home: Path, name: str, code: str) -> Path:
    folder = home / FOLDER / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(code)
    return folder


def test_every_engine_is_listed_with_its_state(home: Path, run: Run) -> None:
    folder = put(home, "sample", ENGINE)
    put(home, "broken", "import no_such_module_here")
    shown = run("plugins", "list", HERMES_CONTEXT__ENGINE="sample")
    assert shown.exit_code == 0
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [
        ["compressor", "found"],
        ["broken", "failed"],
        ["sample", "active"],
    ]
    assert "ModuleNotFoundError: No module named 'no_such_module_here'" in shown.stdout
    document = json.loads(run("plugins", "list", "--json", HERMES_CONTEXT__ENGINE="sample").stdout)
    assert (document["active"], document["problem"]) == ("sample", None)
    assert document["plugins"][-1] == {
        "name": "sample",
        "state": "active",
        "source": str(folder),
        "about": "A sample.",
        "why": None,
    }


@pytest.mark.parametrize(("engine", "problem"), [("smaple", "did you mean sample?"), ("broken", "ModuleNotFoundError")])
def test_an_unusable_engine_is_a_configuration_error(home: Path, run: Run, engine: str, problem: str) -> None:
    put(home, "sample", ENGINE)
    put(home, "broken", "import no_such_module_here")
    shown = run("plugins", "list", HERMES_CONTEXT__ENGINE=engine)
    assert shown.exit_code == 78
    assert problem in shown.stderr
    document = json.loads(run("plugins", "list", "--json", HERMES_CONTEXT__ENGINE=engine).stdout)
    assert document["active"] is None
    assert problem in document["problem"]


class Early(KeepNewest):
    threshold_percent = 0.125


async def test_status_names_the_plugin_engine_and_its_threshold(store: Store, tmp_path: Path) -> None:
    def make_engine(built_in: Engine) -> Engine:
        facts = ModelInfo(name="scripted", context_length=Tokens(32_768))
        return PluginEngine("early", Early, model=facts, fallback=built_in, redact=redact, clock=SystemClock())

    async with talking(store, tmp_path, CountingModel(), make_engine=make_engine) as gateway:
        await gateway.ask("hello")
        for command in ("/status", "/usage"):
            assert "compression by `early` starts at 4,096 or earlier" in await gateway.ask(command, sender=BOSS)
        lines = [
            [line for line in (await gateway.ask(command, sender=BOSS)).splitlines() if line.startswith("- Context:")]
            for command in ("/status", "/usage")
        ]
        assert lines[0] == lines[1], "/status and /usage show the same threshold"
