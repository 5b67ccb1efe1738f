"""PostgreSQL server for tests: Debian's package in a private folder, on a free loopback port.

The first test that needs the server starts it, and all workers of the run use it. A separate keeper process stops it
when the last worker ends, even if the run was killed. The workers keep a pipe open, and the keeper waits until it is
closed.
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
"""Pipe in the workers' shared folder. The server runs while a process has the pipe open."""
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
"""Settings that are fast and do not protect the data."""
_RUNS_AS = None if os.geteuid() else "postgres"  # the server refuses to run as root; the package has created this user
_LOCK, _PORT, _TEMPLATE = "lock", "port", "template"  # in the workers' shared folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server."""

    folder: Path
    """Folder that the workers of a run share."""
    port: int

    def url(self, database: str, role: str = ROLE, password: str = PASSWORD) -> str:
        """Return the address of a database in the form that operators configure."""
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the server's superuser, each in a separate transaction."""
        with connect(self.url(database, "postgres")) as db:
            for statement in statements:
                db.execute(statement)

    @contextlib.contextmanager
    def database(self, options: str = "", owner: str = ROLE) -> Iterator[str]:
        """Yield the address of a new, empty database, which is dropped at the end."""
        name = f"test_{uuid4().hex}"
        self.run(f"CREATE DATABASE {name} OWNER {owner} {options}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """Yield the address of a new database with the newest schema, which is dropped at the end."""
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
    """Connection in autocommit mode, whose SQL parameters are written as `?`."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status)  # the value of IDLE is 0

    def execute(self, sql: str, parameters: Any = None, /) -> "psycopg.Cursor[Any]":
        query = sql.replace("%", "%%").replace("?", "%s") if parameters else sql
        return self._connection.execute(query.encode(), parameters or None)

    def executemany(self, sql: str, parameters: Any, /) -> "psycopg.Cursor[Any]":
        cursor = self._connection.cursor()
        cursor.executemany(sql.replace("?", "%s").encode(), list(parameters))
        return cursor


@contextlib.contextmanager
def connect(url: str) -> Iterator[PlainConnection]:
    """Yield a connection for the test that does not use the store."""
    import psycopg  # imported late, because most runs do not need it

    with contextlib.closing(psycopg.connect(url, autocommit=True, client_encoding="utf-8")) as connection:
        yield PlainConnection(connection)


def count_trips(connection: "psycopg.Connection[Any]", work: Callable[[], object]) -> int:
    """Return how often the driver waits for the server during `work`, according to the driver's trace."""
    with tempfile.TemporaryFile("w+") as trace:
        connection.pgconn.trace(trace.fileno())
        work()
        connection.pgconn.untrace()
        trace.seek(0)
        return sum("\tQuery\t" in line or "\tSync" in line for line in trace)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The run's server. Skips the test if the package is not installed."""
    if _programs() is None:
        pytest.skip(MISSING)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres"
    with running_server(folder) as server:
        yield server


class PrivateServer(Postgres):
    """Server that only one test uses, so that the test can stop and restart it."""

    def stop_at_once(self) -> None:
        """Stop the server as in a crash: connections are closed, and the next start recovers the committed data."""
        _run(self.folder, "pg_ctl", "--pgdata=data", "--mode=immediate", "--silent", "stop")

    def start_again(self) -> None:
        """Restart the server on the same port."""
        _run_server(self.folder, self.port, QUICK)


@contextlib.contextmanager
def private_server() -> Iterator[PrivateServer]:
    """Run a server for the duration of the block. Skips the test if the package is not installed."""
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
    """Yield the server of this folder, which runs at least until the block ends."""
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(folder / USERS)
    users = os.open(folder / USERS, os.O_RDWR)
    try:
        yield Postgres(folder=folder, port=_ensure_running(folder, settings))
    finally:
        os.close(users)


def _ensure_running(folder: Path, settings: Mapping[str, str]) -> int:
    """Return the server's port. The first caller starts the server."""
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
    """Return the program folder of the newest installed server. Debian does not add these programs to the PATH."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _keep(folder: Path, settings: Mapping[str, str]) -> None:
    """Start a server and print its port. A child process stops the server when no process has the pipe open."""
    data = Path(tempfile.mkdtemp(prefix="hermes-postgres-"))
    print(_start(data, settings), flush=True)
    if os.fork():
        return
    os.setsid()  # so that a signal to the run does not end this process
    with open(os.devnull, "r+b") as nowhere:
        for stream in range(3):
            os.dup2(nowhere.fileno(), stream)
    try:
        _wait_for_end(folder)
    finally:
        _run(data, "pg_ctl", "--pgdata=data", "--mode=immediate", "--silent", "stop", check=False)
        shutil.rmtree(data)


def _wait_for_end(folder: Path) -> None:
    users = os.open(folder / USERS, os.O_RDONLY | os.O_NONBLOCK)  # opening the pipe must not wait for a worker
    while True:
        os.set_blocking(users, True)
        os.read(users, 1)  # no process writes, so this returns when no worker has the pipe open
        os.set_blocking(users, False)
        with _locked(folder), contextlib.suppress(BlockingIOError):  # raised if a worker has opened the pipe meanwhile
            os.read(users, 1)
            (folder / _PORT).unlink(missing_ok=True)
            (folder / _TEMPLATE).unlink(missing_ok=True)
            return


def _start(data: Path, settings: Mapping[str, str]) -> int:
    """Create a server in the folder `data`, start it, and return its port."""
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
    """Run one of PostgreSQL's programs in `folder`. Its output goes to standard error."""
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
