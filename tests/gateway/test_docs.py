"""The documentation says what the code does; each test here fails when one changes without the other."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from agent.model import bodies, replies
from gateway.cli import EXIT_CONFIG, EXIT_OWNED_ELSEWHERE, app, load_command
from gateway.commands.registry import Command
from gateway.commands.table import REGISTRY
from gateway.config import CUSTOMARY, load_config
from gateway.config.docs import settings_markdown
from gateway.config.fields import FIELDS, variable_name
from gateway.config.loader import NO_SETTINGS
from gateway.config.old_keys import OLD_KEYS
from gateway.config.settings import Config
from gateway.operator.doctor import STOP_MARGIN_SECONDS, stop_timeout_seconds
from hermes_state.store.writer import Store

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


def test_the_settings_tables_are_those_of_the_code() -> None:
    assert between(read("docs/reference/configuration.md"), "settings:", "end of settings") == settings_markdown(), (
        "put the output of `hermes-gateway config keys --format markdown` between the markers"
    )


def test_every_variable_in_the_documentation_is_one_that_counts() -> None:
    known = {variable_name(key) for key in FIELDS} | NO_SETTINGS | set(CUSTOMARY)
    for page in PAGES:
        for name in re.findall(r"\b(?:HERMES_[A-Z0-9_]+|[A-Z]+_BOT_TOKEN|OPENAI_[A-Z_]+)\b", page.read_text("utf-8")):
            assert name in known, (page.name, name)


def test_the_compose_file_of_the_guide_is_a_configuration(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(.*?)```", read("docs/reference/cluster.md"), re.DOTALL)
    assert block is not None
    compose = yaml.safe_load(block[1])
    example = {"store.url": "postgresql://hermes:secret@db/hermes", "telegram.token": "1:x", "model.api_key": "sk-x"}
    for name, role in (("node", "node"), ("worker", "worker")):
        service = compose["services"][name]
        given = tmp_path / name
        given.mkdir()
        for secret in service["secrets"]:
            assert secret in compose["secrets"]
            (given / secret).write_text(example[secret])
        environ = service["environment"]
        loaded = load_config({**environ, "CREDENTIALS_DIRECTORY": str(given), "HERMES_HOME": str(tmp_path / "home")})
        assert loaded.warnings == ()
        assert (loaded.config.cluster.role, loaded.config.store.url) == (role, example["store.url"])
        (volume,) = service["volumes"]
        assert loaded.config.attachments.url == f"file://{volume.partition(':')[2]}"
        grace = float(service["stop_grace_period"].removesuffix("s"))
        assert grace > loaded.config.lifecycle.drain_seconds + STOP_MARGIN_SECONDS


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
    assert f"{bodies.MAX_BODY_BYTES // 1_000_000} MB and {bodies.MAX_VALUES:,} values" in page
    assert f"{replies.MAX_CHARACTERS:,} characters and {replies.MAX_CALLS} tool calls" in page


def test_every_target_of_make_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE))
    wanted = {
        "setup",
        "install",
        "run",
        "test",
        "test-browser",
        "test-cluster",
        "check",
        "fmt",
        "lint",
        "type",
        "bench",
        "crash",
    }
    assert wanted <= targets
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


def test_decision_records_have_the_four_parts_in_order() -> None:
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (.+)$", record.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Status", "Context", "Decision", "Consequences"], record.name


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


def test_requirements_hold_what_the_project_names() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    anthropic, cluster, mcp, development = (
        [line for line in read(f"requirements/{name}.in").splitlines() if line and line[0] not in "#-"]
        for name in ("anthropic", "cluster", "mcp", "dev")
    )
    assert project["optional-dependencies"] == {"anthropic": anthropic, "cluster": cluster, "mcp": mcp}
    for name, wanted in (
        ("requirements/base.txt", project["dependencies"]),
        ("requirements/anthropic.txt", anthropic),
        ("requirements/cluster.txt", cluster),
        ("requirements/mcp.txt", mcp),
        ("requirements/dev.txt", [*anthropic, *cluster, *mcp, *development]),
    ):
        pinned = dict(re.findall(r"^([a-z0-9][^\s=]*)==([^\s;]+)", read(name), re.MULTILINE))
        for line in wanted:
            requirement = Requirement(line)
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{line} is not in {name}: make lock"
            assert version in requirement.specifier, f"{line} but {name} has {version}: make lock"


def test_requirements_have_hashes_and_no_index_address() -> None:
    for name in ("base", "anthropic", "cluster", "mcp", "dev", "bench"):
        text = read(f"requirements/{name}.txt")
        pins = re.findall(r"^[a-z0-9][^\s=]*==[^\s;]+.*?(?=^[a-z0-9#]|\Z)", text, re.MULTILINE | re.DOTALL)
        assert pins
        assert all("--hash=sha256:" in pin for pin in pins)
        assert "://" not in text
        assert not re.search(r"^-", text, re.MULTILINE)
