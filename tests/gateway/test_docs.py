"""The documentation says what the code does; each test here fails when one changes without the other."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command
from typer.testing import CliRunner

from agent.model import replies
from gateway.cli import EXIT_CONFIG, EXIT_OWNED_ELSEWHERE, app, load_command
from gateway.commands.registry import Command
from gateway.commands.table import REGISTRY
from gateway.config import CUSTOMARY, load_config
from gateway.config.docs import settings_markdown
from gateway.config.fields import FIELDS, variable_name
from gateway.config.loader import NO_SETTINGS
from gateway.config.old_keys import OLD_KEYS
from gateway.config.schema import json_schema
from gateway.config.settings import Config
from gateway.models.routes import window_of
from gateway.operator.doctor import STOP_MARGIN_SECONDS, stop_timeout_seconds
from hermes_state.store.writer import Store
from platforms.settings import LocalSettings
from tests.databases import open_store, sqlite_only
from tests.gateway.models.windows import CountingModel, talking
from tests.hermes_state.rows import exchange, make_chat

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def between(text: str, start: str, end: str) -> str:
    """Return the text between the comment that begins with `start` and the comment `end`."""
    found = re.search(rf"<!-- {start}[^\n]*-->\n(.*?)\n?<!-- {end} -->", text, re.DOTALL)
    assert found is not None, start
    return found[1].strip()


def test_the_lists_of_settings_are_those_of_the_code() -> None:
    assert between(read("docs/reference/configuration.md"), "settings:", "end of settings") == settings_markdown(), (
        "put the output of `hermes-gateway config keys --format markdown` between the markers"
    )


def test_every_variable_in_the_documentation_is_one_that_counts() -> None:
    known = {variable_name(key) for key in FIELDS} | NO_SETTINGS | set(CUSTOMARY)
    for page in PAGES:
        for name in re.findall(r"\b(?:HERMES_[A-Z0-9_]+|[A-Z]+_BOT_TOKEN|OPENAI_[A-Z_]+)\b", page.read_text("utf-8")):
            assert name in known, (page.name, name)


def load_service(file: Any, service: Any, tmp_path: Path) -> Config:
    """Return the settings of a gateway that a compose file starts, with an example for each secret."""
    example = {"store.url": "postgresql://hermes:secret@db/hermes", "telegram.token": "1:x", "model.api_key": "sk-x"}
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for secret in service["secrets"]:
        assert secret in file["secrets"]
        (credentials / secret).write_text(example[secret])
    environ = {
        **service["environment"],
        "CREDENTIALS_DIRECTORY": str(credentials),
        "HERMES_HOME": str(tmp_path / "home"),
    }
    loaded = load_config(environ)
    assert loaded.warnings == ()
    grace = float(service["stop_grace_period"].removesuffix("s"))
    assert grace > loaded.config.lifecycle.drain_seconds + STOP_MARGIN_SECONDS
    return loaded.config


@pytest.mark.parametrize("role", ["node", "worker"])
def test_the_compose_file_of_a_cluster_is_a_configuration(role: str, tmp_path: Path) -> None:
    file = yaml.safe_load(read("docker/cluster.yaml"))
    service = file["services"][role]
    config = load_service(file, service, tmp_path)
    assert (config.cluster.role, config.store.url) == (role, "postgresql://hermes:secret@db/hermes")
    (volume,) = service["volumes"]
    folder = volume.partition(":")[2]
    assert config.attachments.url == f"file://{folder}"
    assert f"install --directory --owner=hermes-gateway --mode=0700 {folder}" in read("docker/Dockerfile")
    assert {str(Path("docker", one["file"]).parent) for one in file["secrets"].values()} == {"docker/secrets"}
    assert all("docker/secrets/" in read(name) for name in (".gitignore", ".dockerignore"))


def test_the_compose_file_of_one_gateway_is_a_configuration(tmp_path: Path) -> None:
    file = yaml.safe_load(read("docker/compose.yaml"))
    service = file["services"]["gateway"]
    config = load_service(file, service, tmp_path)
    assert config.telegram.token is not None
    assert config.local.host == "0.0.0.0"
    assert service["ports"] == [f"127.0.0.1:{config.local.port}:{config.local.port}"]
    (volume,) = service["volumes"]
    assert f"HERMES_HOME={volume.partition(':')[2]} " in read("docker/Dockerfile")


MODEL_GUIDE = "docs/guides/connecting-a-model.md"
YAML_PAGES = [
    MODEL_GUIDE,
    "README.md",
    *(name for name in PAGE_NAMES if name.startswith(("docs/guides/", "docs/how-to/"))),
]


def yaml_blocks(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the heading, the settings and the variables of each block of settings on a page."""
    for section in re.split(r"^(?=#+ )", read(name), flags=re.MULTILINE):
        for block in re.finditer(r"```yaml\n(.*?)```(?:\s*```sh\n(.*?)```)?", section, re.DOTALL):
            yield section.partition("\n")[0].lstrip("# "), block[1], block[2] or ""


@pytest.mark.parametrize(
    ("name", "settings", "variables"),
    [
        pytest.param(name, settings, variables, id=f"{Path(name).stem}: {heading}")
        for name in dict.fromkeys(YAML_PAGES)
        for heading, settings, variables in yaml_blocks(name)
    ],
)
def test_blocks_of_settings_pass_config_check(
    name: str, settings: str, variables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in CUSTOMARY:
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "config.yaml").write_text(settings, encoding="utf-8")
    (tmp_path / ".env").write_text((variables or "OPENAI_API_KEY=sk-…\n").replace("…", "example"), encoding="utf-8")
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    done = CliRunner().invoke(app, ["config", "check"], env={"HERMES_HOME": str(tmp_path)})
    assert done.exit_code == 0, done.exception
    assert "warning" not in done.output
    jsonschema.validate(yaml.safe_load(settings), json_schema())
    if name == MODEL_GUIDE and variables:
        assert load_config({"HERMES_HOME": str(tmp_path)}).config.model.api_key is not None


def test_the_model_guide_has_a_block_for_every_provider() -> None:
    headings = {heading for heading, _, _ in yaml_blocks(MODEL_GUIDE)}
    wanted = {"OpenAI", "Anthropic", "OpenRouter", "Ollama", "LM Studio", "vLLM", "Azure OpenAI", "Gemini", "DeepSeek"}
    assert wanted <= headings


def test_the_guide_says_where_a_conversation_is_compressed(tmp_path: Path) -> None:
    environ = {"HERMES_HOME": str(tmp_path), "OPENAI_API_KEY": "sk-x", "HERMES_MODEL__CONTEXT_LENGTH": "200000"}
    limits, _ = window_of(load_config(environ).config)
    page = read("docs/guides/how-it-works.md")
    assert f"| the agent | from {limits.threshold:,} tokens" in page
    assert f"| hygiene, before a turn | from {limits.hygiene:,} tokens" in page


def test_the_tunnel_has_the_port_of_the_web_chat_on_both_sides() -> None:
    [ports] = re.findall(r"ssh -N -L (\d+):127\.0\.0\.1:(\d+) ", read("docs/how-to/web-chat-from-a-phone.md"))
    assert set(ports) == {str(LocalSettings().port)}


async def test_the_chat_of_the_readme_has_the_replies_of_the_gateway(store: Store, tmp_path: Path) -> None:
    chat = between(read("README.md"), "chat:", "end of chat").removeprefix("```text\n").removesuffix("```")
    [command, *_] = re.findall(r"^Ann +(/.*)$", chat, re.MULTILINE)
    shown = [re.sub(r"^ +", "", one, flags=re.MULTILINE) for one in re.split(r"^Bot +", chat, flags=re.MULTILINE)[1:]]
    async with talking(store, tmp_path, CountingModel(), count=24) as gateway:
        before = len(gateway.adapter.texts())
        await gateway.tell(command)
        replies = gateway.adapter.texts()[before:]

    def shape(text: str) -> str:
        """Return a reply without its numbers, its id and the name of the model."""
        text = re.sub(r"`[0-9a-z]{8}`", "ID", text.replace("scripted", "gpt-5"))
        return re.sub(r"(?<!gpt-)\b\d[\d,]*", "N", text).strip()

    assert [shape(one) for one in shown] == [shape(one) for one in replies]


def test_every_key_in_the_documentation_is_a_setting() -> None:
    known = {".".join(key) for key in FIELDS} | {".".join(key[:end]) for key in FIELDS for end in (1, 2)}
    blocks = "|".join(sorted({key[0] for key in FIELDS}))
    for page in PAGES:
        names = known | {".".join(key) for key in OLD_KEYS} if page.name == "CHANGELOG.md" else known
        for name in re.findall(rf"`((?:{blocks})\.[a-z_.]+)`", page.read_text("utf-8")):
            if not name.endswith((".py", ".db", ".md")):
                assert name in names, (page.name, name)


def _row(command: Command) -> str:
    argument = f" {command.argument}" if command.argument else ""
    names = ", ".join([f"`/{command.name}{argument}`", *(f"`/{alias}`" for alias in command.aliases)])
    admin = " (admins)" if command.is_admin_only else ""
    return f"| {names} | {command.kind.value} | {command.description}{admin} |"


def test_the_chat_commands_are_those_of_the_registry() -> None:
    table = between(read("docs/reference/commands.md"), "commands:", "end of commands").splitlines()[2:]
    assert [line.replace("\\|", "|") for line in table] == [_row(command) for command in REGISTRY.commands]


def _command_lines(group: typer.Typer) -> Iterator[str]:
    for name in get_command(group).commands:
        inner = getattr(load_command(name), "commands", None)
        if inner is None:
            yield name
        else:
            yield from (f"{name} {below}" for below in inner)


def test_the_command_line_is_documented_completely() -> None:
    documented = set(
        re.findall(r"^\| `hermes-gateway ([a-z ]+)` \|", read("docs/reference/operations.md"), re.MULTILINE)
    )
    assert documented == set(_command_lines(app))


def test_the_documentation_calls_only_commands_that_exist() -> None:
    known = set(_command_lines(app)) | {"config", "pair"}
    for page in PAGES:
        for words in re.findall(r"`(?:\.venv/bin/)?hermes-gateway ((?:[a-z]+ ?)+)", page.read_text("utf-8")):
            parts = words.split()
            assert " ".join(parts[:2]) in known or parts[0] in known, (page.name, words)


def test_the_exit_codes_are_documented() -> None:
    table = read("docs/reference/operations.md").partition("## Exit codes")[2]
    for code in (EXIT_CONFIG, EXIT_OWNED_ELSEWHERE):
        assert f"| {code} |" in table


def test_the_limits_of_the_units_are_documented() -> None:
    unit, page = read("systemd/hermes-gateway.service"), read("docs/reference/operations.md")
    memory, tasks, files = (
        re.search(rf"^{name}=(\d+)", unit, re.MULTILINE)[1]  # type: ignore[index]
        for name in ("MemoryMax", "TasksMax", "LimitNOFILE")
    )
    assert f"{memory} GB of memory, {tasks} tasks, {int(files):,} open files" in page
    stop = stop_timeout_seconds(unit)
    assert stop is not None
    assert f"`lifecycle.drain_seconds` plus {stop - Config().lifecycle.drain_seconds:.0f} s" in page


def test_the_limits_on_replies_are_documented() -> None:
    page = read("docs/reference/models.md")
    assert f"{replies.MAX_BODY_BYTES // 1_000_000} MB and {replies.MAX_VALUES:,} values" in page
    assert f"{replies.MAX_CHARACTERS:,} characters and {replies.MAX_CALLS} tool calls" in page


def test_every_target_of_make_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE))
    wanted = "setup install run test test-browser test-cluster check fmt lint type bench crash"
    assert set(wanted.split()) <= targets
    for name in [*PAGE_NAMES, ".ci/run", ".pre-commit-config.yaml"]:
        for target in re.findall(r"(?:^ *|`|&& |entry: )make ([a-z][a-z-]*)", read(name), re.MULTILINE):
            assert target in targets, (name, target)


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_the_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", read("docs/README.md")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/*/*.md")}
    assert pages <= linked, sorted(pages - linked)


def test_decision_records_have_the_four_parts_in_order() -> None:
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (.+)$", record.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Status", "Decision", "Reasons", "Consequences"], record.name


def test_the_tables_of_the_database_are_documented() -> None:
    schema = "\n".join(
        path.read_text("utf-8") for path in sorted(ROOT.glob("hermes_state/engines/sqlite/migrations/*.sql"))
    )
    text = read("docs/reference/storage.md")
    for table in re.findall(r"^CREATE (?:VIRTUAL )?TABLE (\w+)", schema, re.MULTILINE):
        assert f"`{table}`" in text, table


def test_every_migration_is_documented() -> None:
    text = read("docs/reference/storage.md")
    for path in ROOT.glob("hermes_state/engines/sqlite/migrations/*.sql"):
        assert f"| `{path.name}` |" in text, path.name


async def test_the_queries_of_the_documentation_find_a_conversation(store: Store) -> None:
    for query in re.findall(r"```sql\n(.*?)```", read("docs/reference/storage.md"), re.DOTALL):
        await store.read(lambda db, query=query: db.execute(query).fetchall())


@sqlite_only
async def test_the_python_example_prints_the_newest_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"<!-- example: .*?-->\n```python\n(.*?)```", read("docs/reference/storage.md"), re.DOTALL)
    assert found is not None
    store = await open_store(tmp_path / "state.db")
    for chat_ref, text in (("1", "an older chat"), ("2", "Is the door open?")):
        await store.write(lambda db, ref=chat_ref, text=text: exchange(db, make_chat(db, ref), text, "Yes."))
    await store.close()
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    exec(compile(found[1], "storage.md", "exec"), {})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d [\d:]{8} user Is the door open\?\n.* assistant Yes\.\n", capsys.readouterr().out
    )


def test_requirements_hold_what_the_project_names() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    anthropic, cluster, documents, mcp, development = (
        [line for line in read(f"requirements/{name}.in").splitlines() if line and line[0] not in "#-"]
        for name in ("anthropic", "cluster", "documents", "mcp", "dev")
    )
    extras = {"anthropic": anthropic, "cluster": cluster, "documents": documents, "mcp": mcp}
    assert project["optional-dependencies"] == extras
    for name, wanted in (
        ("requirements/base.txt", project["dependencies"]),
        ("requirements/anthropic.txt", anthropic),
        ("requirements/cluster.txt", cluster),
        ("requirements/documents.txt", documents),
        ("requirements/mcp.txt", mcp),
        ("requirements/dev.txt", [*anthropic, *cluster, *documents, *mcp, *development]),
    ):
        pinned = dict(re.findall(r"^([a-z0-9][^\s=]*)==([^\s;]+)", read(name), re.MULTILINE))
        for line in wanted:
            requirement = Requirement(line)
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{line} is not in {name}: make lock"
            assert version in requirement.specifier, f"{line} but {name} has {version}: make lock"


def test_requirements_have_hashes_and_no_index_address() -> None:
    for name in ("base", "anthropic", "cluster", "documents", "mcp", "dev", "bench"):
        text = read(f"requirements/{name}.txt")
        pins = re.findall(r"^[a-z0-9][^\s=]*==[^\s;]+.*?(?=^[a-z0-9#]|\Z)", text, re.MULTILINE | re.DOTALL)
        assert pins
        assert all("--hash=sha256:" in pin for pin in pins)
        assert "://" not in text
        assert not re.search(r"^-", text, re.MULTILINE)
