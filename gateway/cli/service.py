"""`hermes-gateway service …`: install, remove and watch the systemd service."""

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from gateway.cli.output import echo
from gateway.config import process_environment
from gateway.config.files import find_user_home, locate_home
from hermes_state.errors import CommandError

service = typer.Typer(
    no_args_is_help=True, help="Install, remove and watch the systemd service.", rich_markup_mode=None
)

NAME: Final = "hermes-gateway"
UNIT_FOLDERS: Final = (Path(__file__).parents[2] / "systemd", Path(sys.prefix, "share", NAME, "systemd"))
"""Folders with the units: in a clone, and in an installation from a wheel."""
_PROGRAMS: Final[Mapping[bool, str]] = {False: f"/opt/{NAME}/.venv/bin/{NAME}", True: f"%h/{NAME}/.venv/bin/{NAME}"}
"""Path of the program in the units as they are shipped, by `is_user`."""

User = Annotated[
    bool | None,
    typer.Option("--user/--system", help="Service of this user or of the machine. Default: the machine's for root."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files and commands without changing anything.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a unit that differs, and keep it as a .bak file.")]
Root = Annotated[Path | None, typer.Option(help="Change an image in this folder instead of this machine.")]


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    """Service of a machine, an image or a user, and a way to change it."""

    is_user: bool
    root: Path | None
    is_dry: bool

    @property
    def unit(self) -> Path:
        """Path of the installed unit."""
        if not self.is_user:
            return Path(self.root or "/", "etc/systemd/system", f"{NAME}.service")
        if (home := find_user_home(process_environment())) is None:
            raise CommandError("This user has no home directory, so it cannot have a service. Use --system as root.")
        return home / ".config/systemd/user" / f"{NAME}.service"

    def systemctl(self, *words: str) -> None:
        """Run systemctl. Raises `CommandError` if it fails."""
        scope = ["--user"] if self.is_user else [f"--root={self.root}"] if self.root else []
        self.run("systemctl", *scope, *words)

    def run(self, *command: str) -> None:
        """Run a command, or print it. Raises `CommandError` if it fails."""
        if self.is_dry:
            echo(f"$ {shlex.join(command)}")
            return
        try:
            done = subprocess.run(command, check=False)
        except OSError as error:
            raise CommandError(f"{command[0]} cannot be run: {error.strerror}. Is systemd on this machine?") from error
        if done.returncode:
            raise CommandError(f"`{shlex.join(command)}` ended with exit code {done.returncode}; its message is above.")


def _target(is_user: bool | None, *, root: Path | None = None, is_dry: bool = False) -> _Target:
    is_root = os.geteuid() == 0
    target = _Target(is_user=not is_root if is_user is None else is_user, root=root, is_dry=is_dry)
    if not (target.is_user or is_root or is_dry):
        raise CommandError("Only root can change the machine's service. Use sudo, or --user for a service of your own.")
    if target.is_user and root is not None:
        raise CommandError("--root is for the machine's service only: leave out --user.")
    return target


@service.command()
def install(is_user: User = None, is_dry: DryRun = False, is_forced: Force = False, root: Root = None) -> None:
    """Install the service, and start or restart it. Settings, data and drop-ins of `systemctl edit` stay."""
    target = _target(is_user, root=root, is_dry=is_dry)
    text = unit_text(is_user=target.is_user, environ=process_environment())
    if is_dry:
        echo(f"# {target.unit}\n{text}")
    else:
        _write(target, text, is_forced=is_forced)
    if not (target.is_user or _has_user(root)):
        prefix, home = ["--prefix", str(root)] if root else [], f"/var/lib/{NAME}"
        target.run("useradd", *prefix, "--system", "--home-dir", home, "--shell", "/usr/sbin/nologin", NAME)
    if root is None:
        target.systemctl("daemon-reload")
    target.systemctl("enable", NAME)
    if root is None:
        target.systemctl("restart", NAME)  # also starts it
    if target.is_user:
        target.run("loginctl", "enable-linger")  # otherwise the service stops when the user logs out
    if not is_dry:
        echo(f"Installed {target.unit}. See `{NAME} service status` and `{NAME} service logs`.")
        if not target.is_user:
            echo(f"Settings: /var/lib/{NAME}/config.yaml; secrets: LoadCredential= in `systemctl edit {NAME}`.")


def _write(target: _Target, text: str, *, is_forced: bool) -> None:
    unit, copy = target.unit, target.unit.with_suffix(".service.bak")
    try:
        unit.parent.mkdir(parents=True, exist_ok=True)
        if unit.exists() and unit.read_text(encoding="utf-8") != text:
            if not is_forced:
                edit = f"systemctl {'--user ' if target.is_user else ''}edit {NAME}"
                raise CommandError(
                    f"{unit} was edited, or another version installed it, so nothing was changed. Move your own lines "
                    f"to a drop-in with `{edit}`, then repeat the command with --force."
                )
            unit.replace(copy)
            echo(f"The earlier unit was kept as {copy}.")
        unit.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{unit} cannot be written: {error.strerror}.") from error


@service.command()
def uninstall(is_user: User = None, is_dry: DryRun = False, root: Root = None) -> None:
    """Stop and remove the service. Settings, data, drop-ins and the service's user stay."""
    target = _target(is_user, root=root, is_dry=is_dry)
    if not target.unit.exists():
        raise CommandError(f"There is no {target.unit}, so nothing was changed.")
    try:
        target.systemctl("disable", *(["--now"] if root is None else []), NAME)
    finally:  # otherwise a unit that systemd cannot disable could never be removed
        if is_dry:
            echo(f"$ rm {target.unit}")
        else:
            target.unit.unlink()
            echo(f"Removed {target.unit}. The state directory was not changed.")
        if root is None:
            target.systemctl("daemon-reload")


@service.command()
def status(is_user: User = None) -> None:
    """Show the state of the service, as systemd sees it. `hermes-gateway status` shows the gateway's own view."""
    _replace_by("systemctl", is_user, "status", NAME)


@service.command()
def logs(is_user: User = None, is_following: Annotated[bool, typer.Option("--follow", "-f")] = False) -> None:
    """Show the log of the service."""
    _replace_by("journalctl", is_user, "--unit", NAME, "--lines", "100", *(["--follow"] if is_following else []))


def _replace_by(program: str, is_user: bool | None, *words: str) -> NoReturn:
    """Continue as another program, so that its output, signals and exit code are its own."""
    if (path := shutil.which(program)) is None:
        raise CommandError(f"{program} is not on this machine. Is systemd on it?")
    is_own = os.geteuid() != 0 if is_user is None else is_user
    os.execv(path, [program, *(["--user"] if is_own else []), *words])


def unit_text(*, is_user: bool, environ: Mapping[str, str]) -> str:
    """Return the unit with the path of this program. Raises `CommandError` if the service could not run it."""
    name = Path("user" if is_user else "", f"{NAME}.service")
    unit = next((folder / name for folder in UNIT_FOLDERS if (folder / name).exists()), None)
    if unit is None:
        raise CommandError(f"The file systemd/{name} is missing. Install hermes-gateway again.")
    program = Path(sys.prefix, "bin", NAME)
    if (not is_user and program.is_relative_to("/home")) or program.is_relative_to("/root"):
        raise CommandError(
            f"{program} is in a home directory, which the machine's service cannot see. Move the clone to /opt/{NAME} "
            "and run `make install` there, or use --user."
        )
    text = unit.read_text(encoding="utf-8").replace(_PROGRAMS[is_user], _quoted(str(program)))
    if is_user and environ.get("HERMES_HOME"):
        home = _quoted(f"HERMES_HOME={locate_home(environ)}")
        text = text.replace("\nEnvironment=", f"\nEnvironment={home}\nEnvironment=", 1)
    return text


def _quoted(text: str) -> str:
    """Return a text as systemd writes it in units. Its escapes are those of JSON, and it replaces codes such as %h."""
    return json.dumps(text, ensure_ascii=False).replace("%", "%%")


def _has_user(root: Path | None) -> bool:
    with suppress(KeyError, FileNotFoundError):
        if root is None:
            return bool(pwd.getpwnam(NAME))
        return any(line.startswith(f"{NAME}:") for line in (root / "etc/passwd").read_text("utf-8").splitlines())
    return False
