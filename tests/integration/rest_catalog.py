"""A real Iceberg REST catalog on loopback, whose tables lie in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.object_store import ACCESS_KEY, BUCKET, ObjectStore
from tests.integration.server import Server, free_port


@dataclass
class RestCatalog:
    """The server; it can be killed and started again."""

    work: Path
    store: ObjectStore
    port: int = field(default_factory=free_port)
    server: Server | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        project = JAVA_PROJECTS / "rest"
        properties = {
            "uri": f"jdbc:sqlite:{self.work}/catalog.db",
            "jdbc.schema-version": "V1",
            "warehouse": f"s3://{BUCKET}/rest-warehouse",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": f"http://127.0.0.1:{self.store.port}",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": self.store.secret_key,
            "s3.path-style-access": "true",
            "client.region": "us-east-1",
        }
        jvm = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        arguments = [str(self.port), *(f"{key}={value}" for key, value in properties.items())]
        command = [java(), *jvm, "-cp", class_path(project), "CatalogServer", *arguments]
        self.server = Server(command, self.work / "rest.log", {"AWS_REGION": "us-east-1"})
        self.server.wait_until(self._answers)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.server is not None:
            self.server.kill()
            self.server = None

    def _answers(self) -> bool:
        with urlopen(f"{self.uri}/v1/config", timeout=30) as answer:
            return bool(answer.status == 200)


@contextmanager
def rest_catalog(work: Path, store: ObjectStore) -> Iterator[RestCatalog]:
    """A catalog for the duration of the block."""
    work.mkdir(parents=True, exist_ok=True)
    catalog = RestCatalog(work, store)
    catalog.start()
    try:
        yield catalog
    finally:
        catalog.kill()
