"""A real S3 server on loopback: S3Proxy over a directory, which checks every request's signature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow.fs import S3FileSystem

from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.server import Server, free_port, listens

BUCKET = "lake"
ACCESS_KEY = "lake-user"
SECRET_KEY = "object-store-secret-0001"


@dataclass
class ObjectStore:
    """The server; its objects are files below ``objects / BUCKET``."""

    work: Path
    port: int = field(default_factory=free_port)
    secret_key: str = SECRET_KEY
    host: str = "127.0.0.1"
    server: Server | None = None

    @property
    def objects(self) -> Path:
        return self.work / "objects"

    def start(self) -> None:
        """Start it, on the port and the objects of last time."""
        self.objects.mkdir(parents=True, exist_ok=True)
        (self.objects / BUCKET).mkdir(exist_ok=True)
        conf = self.work / "s3proxy.conf"
        conf.write_text(
            f"s3proxy.endpoint=http://{self.host}:{self.port}\n"
            "s3proxy.authorization=aws-v4\n"
            f"s3proxy.identity={ACCESS_KEY}\n"
            f"s3proxy.credential={self.secret_key}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={self.objects}\n"
        )
        jvm = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        jars = class_path(JAVA_PROJECTS / "s3")
        command = [java(), *jvm, "-cp", jars, "org.gaul.s3proxy.Main", "--properties", str(conf)]
        self.server = Server(command, self.work / "s3proxy.log", {"LOG_LEVEL": "warn"})
        self.server.wait_until(lambda: listens(self.port, self.host))

    def stop(self) -> None:
        """End it; what it has acknowledged is in its files."""
        if self.server is not None:
            self.server.kill()
            self.server = None

    def properties(self, *, port: int | None = None) -> dict[str, str]:
        """What a lake in it is configured with; the limits are short, as a test waits for them.

        :param port: of a proxy before it.
        """
        return {
            "warehouse": f"s3://{BUCKET}/warehouse",
            "s3.endpoint": f"http://{self.host}:{port or self.port}",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": self.secret_key,
            "s3.connect-timeout": "2",
            "s3.request-timeout": "2",
        }

    def names(self) -> set[str]:
        """Every object in the bucket, by key."""
        root = self.objects / BUCKET
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def client(self) -> S3FileSystem:
        """A client with the right credentials."""
        return S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=self.secret_key,
            region="us-east-1",
            endpoint_override=f"http://{self.host}:{self.port}",
        )


@contextmanager
def object_store(work: Path, host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """An object store for the duration of the block."""
    work.mkdir(parents=True, exist_ok=True)
    store = ObjectStore(work, host=host)
    store.start()
    try:
        yield store
    finally:
        store.stop()
