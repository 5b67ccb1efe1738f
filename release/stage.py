"""Copy what a wheel and an sdist contain into a folder, with our packages inside the package `hermes_gateway`."""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "platforms", "agent", "hermes_state")
CHANGES = {
    '"gateway.cli:main"': '"hermes_gateway.__main__:main"',
    'include = ["gateway*", "platforms*", "agent*", "hermes_state*"]': 'include = ["hermes_gateway*"]',
}


def stage(target: Path) -> None:
    """Fill the folder `target`, which is removed first."""
    shutil.rmtree(target, ignore_errors=True)
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "release" / "hermes_gateway", target / "hermes_gateway", ignore=unwanted)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, target / "hermes_gateway" / name, ignore=unwanted)
    shutil.copytree(ROOT / "systemd", target / "systemd")
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for old, new in CHANGES.items():
        if old not in project:
            sys.exit(f"pyproject.toml does not contain {old}: update release/stage.py")
        project = project.replace(old, new)
    project = re.split(r"^\[tool\.(?!setuptools)", project, maxsplit=1, flags=re.MULTILINE)[0]
    (target / "pyproject.toml").write_text(project, encoding="utf-8")


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
