"""A real PostgreSQL server on loopback, with a database for a lake's catalog."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.integration.server import Server, ServerError, free_port

USER = "lake"
PASSWORD = "catalog-secret-0001"


@dataclass
class Postgres:
    """The server; it can be killed and started again.

    :param via: the words of a command that runs it in its turn.
    """

    work: Path
    port: int = field(default_factory=free_port)
    server: Server | None = None
    host: str = "127.0.0.1"
    via: Sequence[str] = ()

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://{USER}:{PASSWORD}@{self.host}:{self.port}/postgres"

    def create(self) -> None:
        """Make the server's files; they belong to an ordinary user, as root may not run it."""
        password = self.work / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            for path in (self.work, password):
                os.chown(path, account.pw_uid, account.pw_gid)
        options = ["--auth=scram-sha-256", f"--pwfile={password}", f"--username={USER}"]
        command = [*self._as_user(), _program("initdb"), f"--pgdata={self.work}/data", *options, "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.work)
        with (self.work / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet scram-sha-256\n")

    def start(self) -> None:
        settings = [f"-cport={self.port}", f"-clisten_addresses={self.host}", "-cunix_socket_directories="]
        command = [*self.via, *self._as_user(), _program("postgres"), "-D", f"{self.work}/data", *settings]
        self.server = Server(command, self.work / "postgres.log")
        self.server.wait_until(self._answers)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.server is not None:
            self.server.kill()
            self.server = None

    def dump(self) -> bytes:
        """What pg_dump writes of the database: SQL that replaces all that is there."""
        return self._client("pg_dump", "--clean", "--if-exists")

    def put_back(self, dump: bytes) -> None:
        """Restore what :meth:`dump` returned, of this server or another."""
        self._client("psql", "--quiet", "--set=ON_ERROR_STOP=1", stdin=dump)

    def _client(self, name: str, *options: str, stdin: bytes = b"") -> bytes:
        where = [f"--host={self.host}", f"--port={self.port}", f"--username={USER}", "--dbname=postgres"]
        ran = subprocess.run(
            [_program(name), *where, *options],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            input=stdin,
            capture_output=True,
            check=False,
        )
        if ran.returncode:
            raise ServerError(f"{name}: {ran.stderr.decode()}")
        return ran.stdout

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.uri.replace("+psycopg", ""), connect_timeout=30):
                return True
        except psycopg.OperationalError:
            return False

    def _as_user(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _program(name: str) -> str:
    """A server program, which Debian keeps off PATH."""
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None
    )
    if found is None:
        raise ServerError(f"No {name} found: install PostgreSQL (Debian: postgresql).")
    return found


@contextmanager
def postgres(host: str = "127.0.0.1", via: Sequence[str] = ()) -> Iterator[Postgres]:
    """A server for the duration of the block."""
    # Not below pytest's directories: those are closed to the user that it runs as.
    with tempfile.TemporaryDirectory(prefix="storage-engine-postgres-") as work:
        server = Postgres(Path(work), host=host, via=via)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.kill()
