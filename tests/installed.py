"""The wheel and the sdist work in a new environment where hermes-agent is installed too.

`make test-dist` builds them and runs this file. It downloads hermes-agent and our dependencies.
"""

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from agent.tools.terminal.sandbox import probe_sandbox
from tests.documents import pdf
from tests.e2e.protocols import CHAT_COMPLETIONS, prompt_of
from tests.e2e.test_compression import page_of
from tests.e2e.test_documents import send
from tests.e2e.world import ROOT, World, world_in
from tests.pictures import noise, saved

pytestmark = pytest.mark.timeout(900)  # two installations
HAS_SANDBOX = probe_sandbox().fault is None
CLASHING = ("gateway", "agent", "hermes_state.py")
"""Top-level names of hermes-agent that are also names of our packages."""
WHERE = "import gateway, agent, hermes_state; print(gateway.__file__, agent.__file__, hermes_state.__file__, sep='\\n')"


def run(*command: object, home: Path) -> str:
    """Run a program outside the clone, without our variables, and return its output."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "HERMES_HOME": str(home / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def hashes(packages: Path) -> dict[str, str]:
    """Return the hash of each source file of hermes-agent that has the name of one of our files."""
    found = [path for name in CLASHING for path in [packages / name, *(packages / name).rglob("*.py")]]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.is_file()}


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install hermes-agent, then our wheel or sdist, into a new environment. Return its folder of programs."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    [built] = (ROOT / "dist").glob(request.param)
    subprocess.run([*pip, "hermes-agent"], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    before = hashes(packages)
    assert len(before) > 3
    subprocess.run([*pip, f"{built}[documents]"], check=True)
    assert hashes(packages) == before
    assert not (packages / "platforms").exists()
    return folder / "bin"


def test_both_programs_import_their_own_packages(program: Path, tmp_path: Path) -> None:
    own = run(program / "python", "-c", WHERE, home=tmp_path).split()
    assert not any("hermes_gateway" in path for path in own)
    assert "Hermes Agent" in run(program / "hermes", "--version", home=tmp_path)
    assert "hermes gateway install" in run(program / "hermes", "gateway", "status", home=tmp_path)
    assert run(program / "hermes-gateway", "--version", home=tmp_path).startswith("hermes-gateway ")
    assert run(program / "python", "-m", "hermes_gateway", "--version", home=tmp_path).startswith("hermes-gateway ")
    assert "hermes-agent" not in run(program / "hermes-gateway", "doctor", home=tmp_path)
    unit = run(program / "hermes-gateway", "service", "install", "--user", "--dry-run", home=tmp_path)
    assert f"ExecStart={program / 'hermes-gateway'} run" in unit


async def test_the_gateway_serves_a_chat_with_every_kind_of_worker(program: Path, tmp_path: Path) -> None:
    command = str(program / "hermes-gateway")
    start = f"import os; os.chdir('/'); os.execv({command!r}, [{command!r}, 'run'])"
    async with world_in(tmp_path / "world", CHAT_COMPLETIONS, program=("-c", start)) as world:
        await world.gateway.start(
            **world.web_chat(),
            HERMES_MODEL__IMAGES="true",
            HERMES_TERMINAL__ENABLED="true" if HAS_SANDBOX else "false",
            HERMES_TOOLS__APPROVAL__EXECUTES="allow",
        )
        await world.converse("hello")
        await send(world, "rent.pdf", pdf("rent is 500"), "read the rent")
        assert await world.replies(1, match="read the rent")
        await send(world, "page.html", b"<html><body><p>tea is 3</p></body></html>", "read the page")
        assert await world.replies(1, match="read the page")
        await look(world)
        if HAS_SANDBOX:
            await world.script_call("who", "terminal", command="echo $((6 * 7))")
            await world.converse("who are you")
            assert "42" in (await world.visible())[-1]
        seen = [prompt_of(request)[-1] for request in await world.asked(4)]
        assert any('<document name="rent.pdf">\n[page 1 of 1]\nrent is 500' in message.text for message in seen)
        assert any("tea is 3" in message.text for message in seen)
        assert any(message.images == 1 for message in seen)
        async with page_of(world) as page:
            await page.write("hello from the page")
            await page.until_answered(1)
        assert await world.gateway.stop() == 0
        assert "Traceback" not in world.gateway.log_text()


async def look(world: World) -> None:
    """Send an image that is too large for the model, so that a worker scales it."""
    image = saved(noise((3000, 2000)), "JPEG")
    await world.say("", media="photo", caption="look", file_b64=base64.b64encode(image).decode())
    assert await world.replies(1, match="look")
