"""A PostgreSQL of the tests' own: Debian's package, in a private folder on a free port of the loopback.

It is started by the first test that asks for it, in whichever worker, and serves all workers of the run. A keeper
beside them ends it with the last one, also when the run was killed: it waits for the end of a pipe that they hold open.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    import psycopg

USERS = "users"
"""Pipe in the folder that the workers share: the server runs as long as somebody has it open."""
MISSING = "PostgreSQL is not installed; on Debian: apt install postgresql"
ROLE, PASSWORD = "hermes", "secret-of-tests"
QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "wal_level": "minimal",
}
"""Settings of a server whose data nobody misses."""
_RUNS_AS = None if os.geteuid() else "postgres"  # it refuses to be root; the package has made this user
_LOCK, _PORT, _TEMPLATE = "lock", "port", "template"  # in the folder that the workers share


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server."""

    folder: Path
    """Place of what the workers of a run share."""
    port: int

    def url(self, database: str, role: str = ROLE, password: str = PASSWORD) -> str:
        """Address of a database, as an operator configures it."""
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the server's superuser, each on its own."""
        with connect(self.url(database, "postgres")) as db:
            for statement in statements:
                db.execute(statement)

    @contextlib.contextmanager
    def database(self, options: str = "", owner: str = ROLE) -> Iterator[str]:
        """Address of a new, empty database; it is dropped at the end."""
        name = f"test_{uuid4().hex}"
        self.run(f"CREATE DATABASE {name} OWNER {owner} {options}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """Address of a new database that has the newest schema; it is dropped at the end."""
        with _locked(self.folder):
            self._ensure_template()
        with self.database(f"TEMPLATE {_TEMPLATE}") as url:
            yield url

    def _ensure_template(self) -> None:
        from hermes_state.engines.postgres.migrate import migrate

        made = self.folder / _TEMPLATE
        if not made.exists():
            self.run(f"DROP DATABASE IF EXISTS {_TEMPLATE}", f"CREATE DATABASE {_TEMPLATE} OWNER {ROLE}")
            with connect(self.url(_TEMPLATE)) as db:
                migrate(db)
            made.touch()


class PlainConnection:
    """A connection in autocommit mode that takes parameters as `?`."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status)  # IDLE is 0

    def execute(self, sql: str, parameters: Any = None, /) -> "psycopg.Cursor[Any]":
        query = sql.replace("%", "%%").replace("?", "%s") if parameters else sql
        return self._connection.execute(query.encode(), parameters or None)

    def executemany(self, sql: str, parameters: Any, /) -> "psycopg.Cursor[Any]":
        cursor = self._connection.cursor()
        cursor.executemany(sql.replace("?", "%s").encode(), list(parameters))
        return cursor


@contextlib.contextmanager
def connect(url: str) -> Iterator[PlainConnection]:
    """A connection of the test's own, without the store."""
    import psycopg  # late: most runs need none

    with contextlib.closing(psycopg.connect(url, autocommit=True, client_encoding="utf-8")) as connection:
        yield PlainConnection(connection)


def count_trips(connection: "psycopg.Connection[Any]", work: Callable[[], object]) -> int:
    """How often the driver waits for the server in `work`, by its own trace."""
    with tempfile.TemporaryFile("w+") as trace:
        connection.pgconn.trace(trace.fileno())
        work()
        connection.pgconn.untrace()
        trace.seek(0)
        return sum("\tQuery\t" in line or "\tSync" in line for line in trace)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The run's server; skips the test where the package is missing."""
    if _programs() is None:
        pytest.skip(MISSING)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres"
    with running_server(folder) as server:
        yield server


class PrivateServer(Postgres):
    """A server that one test has alone: it may be stopped and started again."""

    def stop_at_once(self) -> None:
        """End it as a crash does: whoever is connected is cut off, what was committed is found by the next start."""
        _run(self.folder, "pg_ctl", "--pgdata=data", "--mode=immediate", "--silent", "stop")

    def start_again(self) -> None:
        """Start it on the port that it had."""
        _run_server(self.folder, self.port, QUICK)


@contextlib.contextmanager
def private_server() -> Iterator[PrivateServer]:
    """A server for the length of the block; skips the test where the package is missing."""
    if _programs() is None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="hermes-postgres-"))
    try:
        server = PrivateServer(folder=folder, port=_start(folder, QUICK))
        server.run(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        yield server
    finally:
        _run(folder, "pg_ctl", "--pgdata=data", "--mode=immediate", "--silent", "stop", check=False)
        shutil.rmtree(folder)


@contextlib.contextmanager
def running_server(folder: Path, settings: Mapping[str, str] = QUICK) -> Iterator[Postgres]:
    """The server of those who name this folder, for the length of the block at least."""
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(folder / USERS)
    users = os.open(folder / USERS, os.O_RDWR)
    try:
        yield Postgres(folder=folder, port=_ensure_running(folder, settings))
    finally:
        os.close(users)


def _ensure_running(folder: Path, settings: Mapping[str, str]) -> int:
    """Port of the server, started by the first who asks."""
    with _locked(folder):
        if not (folder / _PORT).exists():
            keeper = [sys.executable, __file__, str(folder), *(f"{name}={value}" for name, value in settings.items())]
            port = int(subprocess.run(keeper, stdout=subprocess.PIPE, check=True).stdout)
            Postgres(folder=folder, port=port).run(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
            (folder / _PORT).write_text(str(port))
        return int((folder / _PORT).read_text())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _programs() -> Path | None:
    """Folder of the newest server that is installed; Debian has none of them on the PATH."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _keep(folder: Path, settings: Mapping[str, str]) -> None:
    """Start a server and say its port; leave a process behind that ends it when nobody holds the pipe open."""
    data = Path(tempfile.mkdtemp(prefix="hermes-postgres-"))
    print(_start(data, settings), flush=True)
    if os.fork():
        return
    os.setsid()  # whatever ends the run does not end the keeper
    with open(os.devnull, "r+b") as nowhere:
        for stream in range(3):
            os.dup2(nowhere.fileno(), stream)
    try:
        _wait_for_end(folder)
    finally:
        _run(data, "pg_ctl", "--pgdata=data", "--mode=immediate", "--silent", "stop", check=False)
        shutil.rmtree(data)


def _wait_for_end(folder: Path) -> None:
    users = os.open(folder / USERS, os.O_RDONLY | os.O_NONBLOCK)  # opening it must not wait for a worker
    while True:
        os.set_blocking(users, True)
        os.read(users, 1)  # nobody writes: it returns when nobody holds it open any more
        os.set_blocking(users, False)
        with _locked(folder), contextlib.suppress(BlockingIOError):  # raised when somebody has come meanwhile
            os.read(users, 1)
            (folder / _PORT).unlink(missing_ok=True)
            (folder / _TEMPLATE).unlink(missing_ok=True)
            return


def _start(data: Path, settings: Mapping[str, str]) -> int:
    """Make a server in the folder `data` and start it; returns its port."""
    (data / "password").write_text(PASSWORD)
    if _RUNS_AS:
        shutil.chown(data, _RUNS_AS)
        shutil.chown(data / "password", _RUNS_AS)
    login = ("--username=postgres", "--auth=scram-sha-256", "--pwfile=password")
    _run(data, "initdb", "--pgdata=data", "--encoding=UTF8", "--locale=C", "--no-sync", *login)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    _run_server(data, port, settings)
    return port


def _run_server(data: Path, port: int, settings: Mapping[str, str]) -> None:
    private = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": data}
    options = " ".join(f"-c {name}={value}" for name, value in {**settings, **private}.items())
    _run(data, "pg_ctl", "--pgdata=data", "--log=log", f"--options={options}", "--silent", "--wait", "start")


def _run(folder: Path, program: str, *arguments: str, check: bool = True) -> None:
    """Run a program of PostgreSQL's in `folder`; what it says goes to standard error."""
    programs = _programs()
    assert programs is not None
    subprocess.run(
        [programs / program, *arguments],
        cwd=folder,
        env={"PATH": os.defpath, "LC_ALL": "C"},
        user=_RUNS_AS,
        group=_RUNS_AS,
        extra_groups=[] if _RUNS_AS else None,
        stdout=sys.stderr if program != "initdb" else subprocess.DEVNULL,
        check=check,
    )


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), dict(one.split("=") for one in sys.argv[2:]))
